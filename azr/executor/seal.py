"""What a process gives up before a program runs in it: files, user, limits, and all but ten system calls.

The zygote gives up what it does not need itself, once; each forked child gives up the rest, with a seccomp filter built
by hand: an allowlist. Everything else fails with EPERM, so that a program sees an ordinary OSError; calls through
another ABI (i386, x32) end the process. Linux only; standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import platform
import resource
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Callable

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_NOBODY = 65534
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_ARCH_X86_64 = 0xC000003E
_LOAD, _JUMP_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_OFFSET, _ARCH_OFFSET, _THIRD_ARGUMENT_OFFSET = 0, 4, 32

_CLONE = {"x86_64": 56, "aarch64": 220}
"""Number of the system call that makes a process, by machine."""
_FORK_RETRIES_S = (0.01, 0.05, 0.2, 0.5)
"""Waits after failed forks, seconds."""

_ALLOWED_X86_64 = {
    "read": 0, "write": 1, "munmap": 11, "brk": 12, "mremap": 25, "madvise": 28, "futex": 202, "clock_gettime": 228,
    "clock_nanosleep": 230, "exit_group": 231,
}  # fmt: skip
_MMAP, _PROT_EXEC = 9, 4
"""Allowed unless the memory is to hold code."""


class Lockdown:
    """Built and applied to the zygote; ``seal`` then applies the rest in a child."""

    def __init__(self, memory_mb: int, cpu_s: float) -> None:
        # Calls that keep the interpreter lock: there is no other thread to give it to.
        self._libc = ctypes.PyDLL(None, use_errno=True)
        self._libc.prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_ulong]
        self._libc.syscall.argtypes = [ctypes.c_long] * 6
        self._libc.syscall.restype = ctypes.c_long
        self._clone = _CLONE.get(platform.machine())
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

    def fork(self) -> int:
        """0 in a new child, and its positive id in this process; a signal to any other number would reach others.

        The bare system call: Python's fork would reseed and reinitialise what a sealed child never uses, and the C
        library's would have the kernel write the child's id, which counts the programs before it, into memory that the
        program can read. Safe because the zygote has one thread. Raises OSError when the machine has no process to
        give, several tries later too.
        """
        for wait_s in _FORK_RETRIES_S:
            # No flags, no stack of its own, nowhere to write an id; processors differ in the order of these zeros.
            child: int = self._libc.syscall(self._clone, signal.SIGCHLD, 0, 0, 0, 0)
            if child >= 0:
                return child
            time.sleep(wait_s)
        raise OSError(ctypes.get_errno(), "the machine has no process to give")

    def seal(self) -> None:
        """Leave the forked child nothing but computing and the descriptors that it has."""
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


def self_test_failures(zygote: int) -> list[str]:
    """Try to get out of a sealed child; names of what could be reached."""
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


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def available() -> bool:
    """Whether this machine's system calls are the ones the filter knows."""
    return platform.machine() == "x86_64" and ctypes.sizeof(ctypes.c_void_p) == 8


class Filter:
    """The compiled filter; built once before forking, installed in each child."""

    def __init__(self, libc: ctypes.PyDLL) -> None:
        assert available(), "seccomp filter is written for x86-64"
        code = _compile(sorted(_ALLOWED_X86_64.values()))
        self._libc = libc
        self._buffer = ctypes.create_string_buffer(code, len(code))
        self._program = _Program(len(code) // 8, ctypes.addressof(self._buffer))

    def install(self) -> None:
        """Bind this process for good. Needs no_new_privs or root. Raises OSError when the kernel refuses."""
        pointer = ctypes.byref(self._program)
        if self._libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, pointer, 0, 0):
            raise OSError(ctypes.get_errno(), "seccomp filter refused")


def _compile(allowed: list[int]) -> bytes:
    """Instructions of classic BPF: (opcode, jump if true, jump if false, operand)."""
    instructions = [
        (_LOAD, 0, 0, _ARCH_OFFSET),
        (_JUMP_EQUAL, 1, 0, _ARCH_X86_64),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
        (_JUMP_EQUAL, 0, 2, _MMAP),
        (_LOAD, 0, 0, _THIRD_ARGUMENT_OFFSET),
        (_JUMP_ANY_BIT, len(allowed), len(allowed) + 1, _PROT_EXEC),
    ]
    for position, number in enumerate(allowed):
        to_allow = len(allowed) - position
        instructions.append((_JUMP_EQUAL, to_allow, 0, number))
    instructions += [(_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
