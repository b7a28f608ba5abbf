"""The filter of system calls: its table against the kernel's, and what it says of made-up calls on both machines."""

import asyncio
import errno
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from azr.executor import syscalls
from azr.executor.syscalls import ALLOW, CALLS, KILL, MACHINES, REFUSE, compile_filter
from tests import tables
from tests.tables import table

LAST_CALL = 600
PAST_ANY_FILTER = (335, 336)
"""Linux lets uretprobe and uprobe past every filter. Called by anything but a probe they end the process."""
KERNEL = dict(table(__file__, "calls"))
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h", "/usr/include/asm/unistd_64.h"),
    "aarch64": ("/usr/include/asm-generic/unistd.h",),
}
OTHER_ABIS = {"i386": 0x40000003, "arm": 0x40000028, "big-endian arm": 0x800000B7, "none": 0}
machines = pytest.mark.parametrize("machine", list(MACHINES))


def verdict(machine: str, name: str | int, *arguments: int, architecture: int | None = None, clocks=True) -> int:
    """What the compiled filter returns for a call, run by an interpreter of the few instructions that it uses."""
    number = name if isinstance(name, int) else KERNEL[machine][name]
    words = [argument % 2**64 for argument in (*arguments, *[0] * (6 - len(arguments)))]
    known = MACHINES[machine]
    data = struct.pack("<IIQ6Q", number, known.architecture if architecture is None else architecture, 0, *words)
    code = list(struct.iter_unpack("<HBBI", compile_filter(known, clocks)))
    place, held = 0, 0
    while True:
        opcode, if_true, if_false, operand = code[place]
        place += 1
        match opcode:
            case 0x20:
                (held,) = struct.unpack_from("<I", data, operand)
            case 0x06:
                return operand
            case 0x15 | 0x35 | 0x45:
                holds = {0x15: held == operand, 0x35: held >= operand, 0x45: bool(held & operand)}[opcode]
                place += if_true if holds else if_false
            case _:
                raise AssertionError(f"instruction {opcode:#x}")


@machines
def test_numbers_are_the_kernels(machine):
    ours = {name: getattr(call, machine) for name, call in CALLS.items()}
    assert ours == {name: KERNEL[machine][name] for name in CALLS}
    others = ("clone", "prctl", "setresuid", "setrlimit")
    assert {name: getattr(MACHINES[machine], name) for name in others} == {
        name: KERNEL[machine][name] for name in others
    }
    for header in filter(Path.exists, map(Path, HEADERS[machine])):
        found = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text())
        theirs = {name: int(number) for name, number in found}
        assert {name: theirs[name] for name in KERNEL[machine]} == KERNEL[machine]


@machines
def test_what_is_not_in_the_table_is_refused(machine):
    allowed = {number for number in range(LAST_CALL) if verdict(machine, number) == ALLOW}
    some_need_arguments = {getattr(call, machine) for call in CALLS.values() if call.rules}
    assert allowed - some_need_arguments == {getattr(call, machine) for call in CALLS.values() if not call.rules}
    without = {number for number in range(LAST_CALL) if verdict(machine, number, clocks=False) == ALLOW}
    assert without == allowed - {KERNEL[machine]["clock_gettime"], KERNEL[machine]["clock_nanosleep"]}
    refused = set(range(LAST_CALL)) - {getattr(call, machine) for call in CALLS.values()}
    assert {verdict(machine, number) for number in refused} == {REFUSE} == {0x00050000 | errno.EPERM}
    assert verdict(machine, 0x40000000 | KERNEL[machine]["write"]) == REFUSE, "the x32 ABI"
    assert {verdict(machine, "write", architecture=other) for other in OTHER_ABIS.values()} == {KILL}


PRIVATE, REALTIME = 0x80, 0x100
HIGH = 2**32
RIGHT = {
    "mmap": [(0, 4096, 3, 0x22, -1, 0), (0, 4096, 0, 0x22, -1, 0)],
    "mremap": [(0x1000, 4096, 8192, 1), (0x1000, 2**32 - 4096, 2**32, 1)],
    "madvise": [(0x1000, 4096, 4)],
    "futex": [(0, PRIVATE), (0, PRIVATE | 1), (0, PRIVATE | 9), (0, PRIVATE | REALTIME | 9)],
    "clock_gettime": [(clock,) for clock in range(16)],
    "clock_nanosleep": [(clock, 1) for clock in range(16)],
}
WRONG = {
    "mmap": [
        *((0, 4096, prot, 0x22, -1, 0) for prot in (4, 5, 7, 8, 0x10, 0x20, 0x01000000, 0x02000000)),
        # Shared, of a file, at a fixed place, of huge pages, pinned, growing, unreserved, without a kind.
        *((0, 4096, 3, flags, -1, 0) for flags in (0x21, 0x23, 2, 1, 0x32, 0x100022, 0x40022, 0x2022, 0x122)),
        *((0, 4096, 3, flags, -1, 0) for flags in (0x4022, 0x20, 0)),
    ],
    "mremap": [
        *((0x1000, old_size, 4096, 1) for old_size in (0, -1, -4095)),
        *((0x1000, 4096, 8192, flags) for flags in (0, 2, 3, 4, 5, 7)),
    ],
    "madvise": [(0x1000, 4096, advice) for advice in [*range(4), *range(5, 30), *range(100, 104), -1]],
    "futex": [
        *((0, command) for command in (0, 1, 9, 10, REALTIME | 9, -1)),
        *((0, PRIVATE | command) for command in (2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13)),
        *((0, PRIVATE | REALTIME | command) for command in (0, 1, 10, 11, 13)),
    ],
    # Of process or thread n: ~n << 3 | kind; of a descriptor n: ~n << 3 | 3.
    "clock_gettime": [(clock,) for clock in (16, 24, -1, *((~n << 3 | kind) for n in (0, 1, 77) for kind in range(8)))],
    "clock_nanosleep": [(clock, 0) for clock in (16, -1, -2, -6, -14, 2**31)],
}  # fmt: skip


@machines
def test_arguments_are_looked_at(machine):
    assert set(RIGHT) == set(WRONG) == {name for name, call in CALLS.items() if call.rules}
    for name, some in RIGHT.items():
        assert {arguments: verdict(machine, name, *arguments) for arguments in some} == dict.fromkeys(some, ALLOW)
    for name, some in WRONG.items():
        assert {arguments: verdict(machine, name, *arguments) for arguments in some} == dict.fromkeys(some, REFUSE)
    # Clock ids and commands are 32-bit numbers to the kernel, so an upper half must not turn a wrong one right.
    for name, place in {"clock_gettime": 0, "clock_nanosleep": 0, "futex": 1, "madvise": 2}.items():
        for some, expected in ((RIGHT[name], ALLOW), (WRONG[name], REFUSE)):
            for arguments in some:
                wide = [*arguments]
                wide[place] = wide[place] % HIGH + 5 * HIGH
                assert verdict(machine, name, *wide) == expected


ATTEMPTS = tables.programs(Path(__file__).with_name("programs.txt"), "process")["straight at the filter"]


async def test_this_machines_kernel_refuses_every_other_call_and_every_wrong_argument():
    """Straight at the filter, for behind the other walls a hole in it would not show."""
    numbers = KERNEL[syscalls.machine().name]
    others = set(range(LAST_CALL)) - {numbers[name] for name in CALLS} - set(PAST_ANY_FILTER)
    wrong = [(numbers[name], *arguments) for name, some in WRONG.items() for arguments in some]
    calls = [(number, *[-1] * 6) for number in sorted(others)] + wrong
    run = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", ATTEMPTS, repr(calls)], capture_output=True, text=True, timeout=60
    )
    assert run.stdout == "[]\n", run.stderr


def test_another_kind_of_machine_is_named(monkeypatch):
    monkeypatch.setattr(syscalls.platform, "machine", lambda: "riscv64")
    with pytest.raises(OSError, match="no filter of system calls for riscv64"):
        syscalls.machine()
