"""The few system calls that a sealed child may make, by argument, and the kernel's filter that refuses all others.

An allowlist, compiled by hand to the classic BPF that seccomp takes. What is not on it fails with EPERM, so that a
program sees an ordinary OSError; a call through the processor's 32-bit interface (i386, ARM) ends the process. Linux
only; standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL, REFUSE = 0x7FFF0000, 0x80000000, 0x00050000 | errno.EPERM
"""What the filter says of a call: run it, end the process, fail with EPERM."""
_NUMBER_OFFSET, _ARCHITECTURE_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
"""In the kernel's ``struct seccomp_data``."""
_ALL_BITS = 2**32 - 1
_Instruction = tuple[int, int, int, int]
"""Opcode, jump if true, jump if false, operand."""

_PROT_READ, _PROT_WRITE = 1, 2
_MAP_PRIVATE, _MAP_ANONYMOUS = 0x02, 0x20
_MREMAP_MAYMOVE, _MADV_DONTNEED = 1, 4
_FUTEX_WAIT, _FUTEX_WAKE, _FUTEX_WAIT_BITSET = 0, 1, 9
_FUTEX_PRIVATE, _FUTEX_CLOCK_REALTIME = 0x80, 0x100
_CLOCKS = 16
"""Clock ids below this are of no process and no descriptor; those are negative as signed numbers."""


_Step = tuple[int, int | None, int | None, int]
"""An instruction, where a jump to None means a refusal."""
Rule = tuple[_Step, ...]
"""Check of one argument's low 32 bits: all that the kernel reads of a command, a clock, an advice, or of flags that it
knows. It falls through if the argument is right."""


def _rule(argument: int, *steps: _Step) -> Rule:
    # Both machines are little-endian: the low half comes first.
    return (_LOAD, 0, 0, _ARGUMENTS_OFFSET + 8 * argument), *steps


def _one_of(argument: int, *numbers: int) -> Rule:
    left = range(len(numbers) - 1, -1, -1)
    steps = ((_JUMP_EQUAL, ahead, 0 if ahead else None, number) for ahead, number in zip(left, numbers, strict=True))
    return _rule(argument, *steps)


def _below(argument: int, limit: int) -> Rule:
    """Without its sign, as in the next."""
    return _rule(argument, (_JUMP_AT_LEAST, None, 0, limit))


def _at_least(argument: int, number: int) -> Rule:
    return _rule(argument, (_JUMP_AT_LEAST, 0, None, number))


def _only_bits(argument: int, bits: int) -> Rule:
    return _rule(argument, (_JUMP_ANY_BIT, None, 0, _ALL_BITS & ~bits))


@dataclass(frozen=True, slots=True)
class Call:
    """A system call that is allowed when its arguments are right."""

    x86_64: int
    aarch64: int
    rules: tuple[Rule, ...] = ()


CALLS = {
    # With the two descriptors that a child keeps; the others are closed, and it can open none.
    "read": Call(0, 63),
    "write": Call(1, 64),
    # Memory of its own that holds no code. Nothing is shared, of a file, at a place of its choosing or of huge pages,
    # whose number others could watch.
    "brk": Call(12, 214),
    "mmap": Call(9, 222, (_only_bits(2, _PROT_READ | _PROT_WRITE), _one_of(3, _MAP_PRIVATE | _MAP_ANONYMOUS))),
    "munmap": Call(11, 215),
    # With an old size of nothing, or one that is nothing once rounded up to pages, some kernels make a second view.
    "mremap": Call(25, 216, (_at_least(1, 1), _below(1, _ALL_BITS - 4094), _one_of(3, _MREMAP_MAYMOVE))),
    # What the C library's allocator gives back. Other advice moves pages of files that sandboxes share in and out.
    "madvise": Call(28, 233, (_one_of(2, _MADV_DONTNEED),)),
    # What the C library's locks and semaphores do. Without the private flag the kernel goes by the page, and pages of
    # the C library are the same in other sandboxes.
    "futex": Call(202, 98, (_one_of(1, *(command | _FUTEX_PRIVATE for command in (
        _FUTEX_WAIT, _FUTEX_WAKE, _FUTEX_WAIT_BITSET, _FUTEX_WAIT_BITSET | _FUTEX_CLOCK_REALTIME,
    ))),)),
    "clock_gettime": Call(228, 113, (_below(0, _CLOCKS),)),
    "clock_nanosleep": Call(230, 115, (_below(0, _CLOCKS),)),
    "exit_group": Call(231, 94),
}  # fmt: skip


_CLOCK_CALLS = frozenset({"clock_gettime", "clock_nanosleep"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the kernel calls things on one kind of machine."""

    name: str
    architecture: int
    """Number of its 64-bit interface."""
    clone: int
    """This and the next: numbers of the system calls with which processes are made and sealed."""
    prctl: int
    setresuid: int
    setrlimit: int


MACHINES = {
    one.name: one
    for one in (
        Machine(name="x86_64", architecture=0xC000003E, clone=56, prctl=157, setresuid=117, setrlimit=160),
        Machine(name="aarch64", architecture=0xC00000B7, clone=220, prctl=167, setresuid=147, setrlimit=164),
    )
}


def machine() -> Machine:
    """This machine. Raises OSError where the table does not know its system calls."""
    name = platform.machine()
    if name not in MACHINES or ctypes.sizeof(ctypes.c_void_p) != 8:
        raise OSError(errno.ENOSYS, f"no filter of system calls for {name}")
    return MACHINES[name]


class Filter(ctypes.Structure):
    """The compiled filter of a machine, as the kernel takes it: its ``struct sock_fprog``. Without ``clocks`` nothing
    reads the time or sleeps."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))

    def __init__(self, machine: Machine, clocks: bool) -> None:
        code = compile_filter(machine, clocks)
        self._buffer = ctypes.create_string_buffer(code, len(code))
        super().__init__(len(code) // 8, ctypes.addressof(self._buffer))


def compile_filter(machine: Machine, clocks: bool) -> bytes:
    """Instructions of classic BPF for a machine, 8 bytes each: opcode, jump if true, jump if false, operand."""
    instructions = [
        (_LOAD, 0, 0, _ARCHITECTURE_OFFSET),
        (_JUMP_EQUAL, 1, 0, machine.architecture),
        (_RETURN, 0, 0, KILL),
        (_LOAD, 0, 0, _NUMBER_OFFSET),
    ]
    calls = (call for name, call in CALLS.items() if clocks or name not in _CLOCK_CALLS)
    blocks = {getattr(call, machine.name): list(_block(call.rules)) for call in calls}
    instructions += _search(sorted(blocks.items()))
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def _search(blocks: list[tuple[int, list[_Instruction]]]) -> list[_Instruction]:
    """Find a call's block by bisection: every installation tries all numbers that there are, and pays for each step."""
    if len(blocks) == 1:
        ((number, block),) = blocks
        return [(_JUMP_EQUAL, 0, len(block) - 1, number), *block]
    middle = len(blocks) // 2
    below = _search(blocks[:middle])
    return [(_JUMP_AT_LEAST, len(below), 0, blocks[middle][0]), *below, *_search(blocks[middle:])]


def _block(rules: tuple[Rule, ...]) -> Iterator[_Instruction]:
    """What comes after a call's number was recognised: its rules, one after the other, then the two ends."""
    code = [step for rule in rules for step in rule]
    for place, (opcode, if_true, if_false, operand) in enumerate(code):
        # Past the rest of the rules and past the permission.
        refusal = len(code) - place
        yield opcode, refusal if if_true is None else if_true, refusal if if_false is None else if_false, operand
    yield _RETURN, 0, 0, ALLOW
    yield _RETURN, 0, 0, REFUSE
