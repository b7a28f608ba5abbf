"""What a process gives up before a program runs in it. Linux only; standard library only.

The zygote gives up what it does not need itself, once; each forked child gives up the rest.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import signal
import socket
import tempfile
from collections.abc import Callable

from azr.executor.seccomp import Filter, available

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_NOBODY = 65534


class Lockdown:
    """Built and applied to the zygote; ``seal`` then applies the rest in a child."""

    def __init__(self, memory_mb: int, cpu_s: float) -> None:
        # Calls that keep the interpreter lock: there is no other thread to give it to.
        self._libc = ctypes.PyDLL(None, use_errno=True)
        self._libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
        self.fork: Callable[[], int] = self._libc.fork
        """The bare system call: Python's own would reseed and reinitialise what a sealed child never uses.

        Safe because the zygote has one thread. A negative number means that the machine had no process to give."""
        self._filter = Filter(self._libc) if available() else None
        self._cpu = (math.ceil(cpu_s) + 1, math.ceil(cpu_s) + 2)
        self._drops_user = os.geteuid() == 0 and _is_mapped(_NOBODY)
        if os.geteuid() == 0:
            _enter_empty_root()
        if self._drops_user:
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        for limit, amount in (
            (resource.RLIMIT_AS, memory_mb * 2**20),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(limit, (amount, amount))
        for option in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_DUMPABLE, 0), (_PR_SET_CHILD_SUBREAPER, 1)):
            self._prctl(*option)

    @property
    def filters(self) -> bool:
        """Whether children get a filter of system calls; not on processors it was not written for."""
        return self._filter is not None

    def _prctl(self, option: int, value: int) -> None:
        if self._libc.prctl(option, value, None, 0, 0):
            raise OSError(ctypes.get_errno(), f"prctl({option}) refused")

    def seal(self, keep: int) -> None:
        """Leave the forked child nothing but computing and the descriptor ``keep``, the zygote's highest."""
        os.closerange(3, keep)
        if self._drops_user:
            os.setresuid(_NOBODY, _NOBODY, _NOBODY)
        resource.setrlimit(resource.RLIMIT_CPU, self._cpu)
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
        # A change of user clears the death signal, so it comes after.
        if self._libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "death signal refused")
        if self._filter:
            self._filter.install()


def broken_walls(zygote: int) -> list[str]:
    """Try to get out of a sealed child; the names of the walls that did not hold."""
    attempts: dict[str, Callable[[], object]] = {
        "files": lambda: os.open("/", os.O_RDONLY),
        "paths": lambda: os.stat("/usr"),
        "network": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        "processes": _fork_and_end,
        "signals": lambda: os.kill(zygote, 0),
    }
    return [name for name, attempt in attempts.items() if _succeeds(attempt)]


def _succeeds(attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except OSError:
        return False
    return True


def _fork_and_end() -> None:
    if os.fork() == 0:
        os._exit(0)


def _is_mapped(user: int) -> bool:
    """Whether a user namespace, if any, knows this user."""
    with open("/proc/self/uid_map", encoding="ascii") as lines:
        ranges = [tuple(map(int, line.split())) for line in lines]
    return any(start <= user < start + length for start, _, length in ranges)


def _enter_empty_root() -> None:
    """Make an empty, already deleted folder the root: nothing can be found or created in it."""
    name = tempfile.mkdtemp(prefix="azr-empty-")
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
    os.rmdir(name)
    os.fchdir(folder)
    os.chroot(".")
    os.close(folder)
