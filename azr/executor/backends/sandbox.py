"""Interface of an isolation backend, which launches zygotes, each reached through one socket; and a zygote's files."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Protocol

from azr.executor.syscalls import MACHINES

ROOT = Path(__file__).resolve().parents[3]
"""The folder that holds the package."""
ZYGOTE = "azr/executor/zygote.py"
"""The zygote's script, below that folder."""
FILES = (
    "azr/__init__.py", "azr/execution.py", "azr/executor/__init__.py", "azr/executor/protocol.py",
    "azr/executor/seal.py", "azr/executor/static_check.py", "azr/executor/suspicion.py", "azr/executor/syntax.py",
    "azr/executor/syscalls.py", ZYGOTE, "azr/values.py",
)  # fmt: skip
"""The script and every module of ours that it imports; sandboxes and images hold no other files of ours."""
OPTIONS = ("-P", "-s", "-S", "-B")
"""Options of the zygote's interpreter. -I would ignore the hash seed, so its isolation is spelled out."""


class LaunchError(Exception):
    """A zygote could not be launched now; trying again later may work."""


class Sandbox(Protocol):
    """A launched zygote. It ends by itself when the other end of its socket is closed."""

    socket: socket.socket
    """Non-blocking. What is written reaches the zygote's standard input; its standard output arrives here."""
    multiplexed: bool
    """Whether standard output arrives in frames of Docker's attach stream rather than bare."""

    def kill(self) -> None:
        """End it at once, with everything in it. Does not wait, and may be called when it has ended already."""

    async def wait(self) -> None:
        """Until it has ended and nothing of it is left."""


class Launcher(Protocol):
    """Launches zygotes in one kind of isolation."""

    async def launch(self, hash_seed: int) -> Sandbox:
        """A fresh zygote. Raises LaunchError, or ValueError for what only the user can put right."""

    async def close(self) -> None:
        """Give back what is shared by all sandboxes of this launcher."""


class BackendUnavailable(Exception):
    """A backend does not work on this machine; the message says why and what to do, without a full stop."""


def require_filter(machine: str) -> None:
    """Raises BackendUnavailable when there is no filter of system calls for this kind of machine."""
    if machine not in MACHINES:
        raise BackendUnavailable(f"there is no filter of system calls for {machine}: use {' or '.join(MACHINES)}")
