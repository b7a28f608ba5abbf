"""The short form of `python -m tools.soak.chaos`: a few kills instead of twenty."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.long


def test_a_run_that_is_killed_again_and_again_ends_whole() -> None:
    command = [sys.executable, "-m", "tools.soak.chaos", "--kills", "2", "--steps", "6", "--seed", "4"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=570)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("every invariant held") >= 1 and "all of its 6 steps" in done.stdout
