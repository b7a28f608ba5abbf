"""The explorer's server on a free port, as `azr view` starts it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]


@contextmanager
def serving(*argv: str) -> Iterator[str]:
    """The printed address, without its last slash, while the command runs."""
    command = [sys.executable, "-m", "azr", "view", *argv, "--port", "0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        try:
            assert server.stdout is not None
            yield server.stdout.readline().split()[0].rstrip("/")
        finally:
            server.terminate()
