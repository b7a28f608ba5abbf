"""A seccomp filter for programs that only compute: an allowlist of system calls, built by hand.

Everything that is not on the list fails with EPERM, so a program sees an ordinary OSError. What is left is memory that
holds no code, writing to the one open descriptor, reading the clock, sleeping and ending. Calls through another ABI
(i386, x32) end the process.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2
_ARCH_X86_64 = 0xC000003E
_LOAD, _JUMP_EQUAL, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER_OFFSET, _ARCH_OFFSET, _THIRD_ARGUMENT_OFFSET = 0, 4, 32

_ALLOWED_X86_64 = {
    "write": 1, "munmap": 11, "brk": 12, "mremap": 25, "madvise": 28, "futex": 202, "clock_gettime": 228,
    "clock_nanosleep": 230, "exit_group": 231,
}  # fmt: skip
_MMAP, _PROT_EXEC = 9, 4
"""Allowed unless the memory is to hold code."""


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
