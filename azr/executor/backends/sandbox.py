"""Interface of an isolation backend: it launches zygotes, each reached through one socket."""

from __future__ import annotations

import socket
from typing import Protocol

from azr.executor.syscalls import MACHINES


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
