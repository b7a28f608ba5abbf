"""A seccomp filter for programs that only compute: an allowlist of system calls, built by hand.

Everything that is not on the list fails with EPERM, so a program sees an ordinary OSError. There are no
calls for opening files, sockets, processes, signals to others or changing limits. Calls through another
ABI (i386, x32) end the process.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_ARCH_X86_64 = 0xC000003E
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_OFFSET, _ARCH_OFFSET = 0, 4

_ALLOWED_X86_64 = {
    "read": 0, "write": 1, "close": 3, "fstat": 5, "lseek": 8, "mmap": 9, "mprotect": 10, "munmap": 11, "brk": 12,
    "rt_sigaction": 13, "rt_sigprocmask": 14, "rt_sigreturn": 15, "sched_yield": 24, "mremap": 25, "madvise": 28,
    "nanosleep": 35, "getpid": 39, "exit": 60, "gettimeofday": 96, "getrusage": 98, "sysinfo": 99, "times": 100,
    "getuid": 102, "getgid": 104, "geteuid": 107, "getegid": 108, "getppid": 110, "sigaltstack": 131, "gettid": 186,
    "time": 201, "futex": 202, "restart_syscall": 219, "clock_gettime": 228, "clock_getres": 229,
    "clock_nanosleep": 230, "exit_group": 231, "set_robust_list": 273, "rseq": 334,
}  # fmt: skip


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def available() -> bool:
    """Whether this machine's system calls are the ones the filter knows."""
    return platform.machine() == "x86_64" and ctypes.sizeof(ctypes.c_void_p) == 8


class Filter:
    """The compiled filter; built once before forking, installed in each child."""

    def __init__(self, libc: ctypes.CDLL) -> None:
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
    ]
    for position, number in enumerate(allowed):
        to_allow = len(allowed) - position
        instructions.append((_JUMP_EQUAL, to_allow, 0, number))
    instructions += [(_RETURN, 0, 0, _ERRNO | errno.EPERM), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *instruction) for instruction in instructions)
