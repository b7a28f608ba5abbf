"""What becomes of an engine's GPUs when the node they were on dies: a Ray cluster of its own, which declares GPUs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tables

pytestmark = pytest.mark.long

PROGRAM = tables.programs(Path(__file__).with_name("programs.txt"), "ray")["a node that dies"]


@pytest.mark.parametrize(
    ("nodes", "taken", "after"),
    [
        ([3], 1, {"1", "2"}),
        ([1, 1], 0, "Ray has moved the 2 GPUs of a rollout engine to different nodes: resume the run once "),
    ],
)
def test_the_gpus_of_moved_bundles_are_looked_up_again(nodes: list[int], taken: int, after: set[str] | str) -> None:
    command = [sys.executable, "-c", PROGRAM, json.dumps([taken, nodes])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    before, alone, found = json.loads(done.stdout.splitlines()[-1])
    assert (before, alone) == (["0", "1"], [])
    assert found.startswith(after) if isinstance(after, str) else set(found) == after
