"""What a process gives up before a program runs in it: files, rights, user, limits, and nearly all system calls.

The zygote gives up what it does not need itself, once; each forked child gives up the rest, last of all the system
calls that are not on a [short list](syscalls.py). Linux only; standard library only.

Covered: files, network, other processes, rights, memory and time of one program, and with `take_clocks` what the
interpreter and machine code know of time. Not covered: the kernel's own faults, addresses and hash seeds, which a
process has.
"""

from __future__ import annotations

import _socket
import contextlib
import ctypes
import errno
import gc
import importlib
import math
import os
import posix
import resource
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from azr.executor import syscalls

_PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 1, 3, 4
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_PR_CAPBSET_READ, _PR_CAPBSET_DROP = 23, 24
_CAP_KILL, _CAP_SETUID, _CAP_SETPCAP = 5, 7, 8
_AT_SYSINFO_EHDR, _MADV_DOFORK = 33, 11
_PROT_READ, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS = 1, 0x02, 0x10, 0x20
_CAPABILITIES_V3 = 0x20080522
_NOBODY = 65534
_FORK_RETRIES_S = (0.01, 0.05, 0.2, 0.5)
"""Waits after failed forks, seconds."""
_CODECS = (
    "ascii", "cp1252", "idna", "latin-1", "punycode", "raw-unicode-escape", "unicode-escape", "utf-8", "utf-8-sig",
    "utf-16", "utf-16-be", "utf-16-le", "utf-32", "utf-32-be", "utf-32-le",
)  # fmt: skip
_UNLOADED = ("azr", "ctypes", "_ctypes", "select", "socket", "_socket", "resource", "tempfile", "gc", "__main__")
_MOST_DESCRIPTORS = 2**16
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")


_Word = Any
"""What ctypes passes as it is: a number made ready, or a reference."""


class Lockdown:
    """Built and applied to the zygote; ``seal`` then applies the rest in a child."""

    def __init__(self, memory_mb: int, cpu_s: float, *, clocks: bool) -> None:
        """``clocks``: whether children may ask the kernel for the time, and sleep."""
        # Calls that keep the interpreter lock: there is no other thread to give it to.
        self._libc = ctypes.PyDLL(None, use_errno=True)
        self._libc.prctl.argtypes = [ctypes.c_int, *[ctypes.c_ulong] * 4]
        self._drops_user = os.geteuid() == 0 and _is_mapped(_NOBODY)
        self._syscall = self._libc.syscall
        self._syscall.restype = ctypes.c_long
        machine = syscalls.machine()
        # No flags, no stack of its own, nowhere to write an id; processors differ in the order of these zeros.
        self._clone = _words(machine.clone, signal.SIGCHLD, 0, 0, 0, 0)
        self._seal = self._sealing_calls(machine, math.ceil(cpu_s) + 1, clocks)
        as_it_is = ctypes.byref((ctypes.c_ulong * 2)(*resource.getrlimit(resource.RLIMIT_CPU)))
        self._rehearsal = (
            (*_words(machine.setrlimit, resource.RLIMIT_CPU), as_it_is),
            _words(machine.prctl, _PR_GET_DUMPABLE, 0, 0, 0, 0),
        )
        # What a program writes there must reach no log, and must never wait for somebody to read it.
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        os.close(null)
        if os.geteuid() == 0:
            _enter_empty_root()
        if self._drops_user:
            os.setgroups([])
            os.setresgid(_NOBODY, _NOBODY, _NOBODY)
        # With a user of their own, the children must be given it and killed.
        self._keep_capabilities({_CAP_KILL, _CAP_SETUID} if self._drops_user else set())
        for limit, amount in (
            (resource.RLIMIT_AS, memory_mb * 2**20),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(limit, (amount, amount))
        for option in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_DUMPABLE, 0), (_PR_SET_CHILD_SUBREAPER, 1)):
            self._prctl(*option)

    def _keep_capabilities(self, kept: set[int]) -> None:
        """Give up all other capabilities for good, and for whatever this process may become or make."""
        header = struct.pack("=Ii", _CAPABILITIES_V3, 0)
        held = ctypes.create_string_buffer(24)
        self._check(self._libc.capget(header, held), "capget")
        # Lower and upper half, each as what is effective, permitted and inheritable.
        low, _, _, high, _, _ = struct.unpack("=6I", held.raw)
        held_bits = low | high << 32
        if held_bits >> _CAP_SETPCAP & 1:
            number = 0
            while (bound := self._libc.prctl(_PR_CAPBSET_READ, number, 0, 0, 0)) >= 0:
                if bound:
                    self._prctl(_PR_CAPBSET_DROP, number)
                number += 1
        bits = sum(1 << number for number in kept) & held_bits
        # What can be inherited goes, and the ambient set with it.
        self._check(self._libc.capset(header, struct.pack("=6I", bits, bits, 0, 0, 0, 0)), "capset")

    def _check(self, returned: int, name: str) -> None:
        if returned:
            raise OSError(ctypes.get_errno(), f"{name} refused")

    def _prctl(self, option: int, value: int) -> None:
        self._check(self._libc.prctl(option, value, 0, 0, 0), f"prctl({option})")

    def fork(self) -> int:
        """0 in a new child, and its positive id in this process; a signal to any other number would reach others.

        The bare system call: Python's fork would reseed and reinitialise what a sealed child never uses, and the C
        library's would have the kernel write the child's id, which counts the programs before it, into memory that the
        program can read. Safe because the zygote has one thread. Raises OSError when the machine has no process to
        give, several tries later too.
        """
        for wait_s in _FORK_RETRIES_S:
            child: int = self._syscall(*self._clone)
            if child >= 0:
                return child
            select.select((), (), (), wait_s)  # sleep may be taken
        raise OSError(ctypes.get_errno(), "the machine has no process to give")

    def seal(self) -> None:
        """Leave the forked child nothing but computing and the descriptors that it has."""
        _make(self._syscall, self._seal)

    def rehearse(self) -> None:
        """Do as ``seal`` does, to no effect."""
        _make(self._syscall, self._rehearsal)

    def _sealing_calls(self, machine: syscalls.Machine, cpu_s: int, clocks: bool) -> tuple[tuple[_Word, ...], ...]:
        """System calls, made ready here: whatever a child touches first is a page that is copied for it."""
        limits = {
            resource.RLIMIT_CPU: (cpu_s, cpu_s + 1), resource.RLIMIT_NPROC: (0, 0), resource.RLIMIT_NOFILE: (0, 0),
        }  # fmt: skip
        calls = [_words(machine.setresuid, _NOBODY, _NOBODY, _NOBODY)] if self._drops_user else []
        calls += [
            (*_words(machine.setrlimit, limit), ctypes.byref((ctypes.c_ulong * 2)(*amounts)))
            for limit, amounts in limits.items()
        ]
        # A change of user clears the death signal, so it comes after.
        calls.append(_words(machine.prctl, _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
        allowlist = ctypes.byref(syscalls.Filter(machine, clocks))
        calls.append((*_words(machine.prctl, _PR_SET_SECCOMP, _MODE_FILTER), allowlist, *_words(0, 0)))
        return tuple(calls)


class _MethodDef(ctypes.Structure):
    """Python's ``PyMethodDef``: what all function objects of one function in C share."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("function", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p),
    )  # fmt: skip


def _definition(function: Callable[..., object]) -> _MethodDef:
    """The definition of a function in C, which lies right behind its object's head."""
    return ctypes.POINTER(_MethodDef).from_address(id(function) + object.__basicsize__).contents


def take_clocks() -> tuple[Callable[..., float], ...]:
    """Have every function that reads a clock raise TypeError; ``monotonic`` and ``clock_gettime`` for the caller alone.

    Not the names are taken but the functions in C, so a module that is imported anew, or another's reference, raises
    as well. ``sleep`` reads one too.
    """
    _blank_kernel_time()
    make, kept = ctypes.pythonapi.PyCFunction_NewEx, []
    make.argtypes, make.restype = [ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.c_void_p], ctypes.py_object
    for function in (time.monotonic, time.clock_gettime):
        own = _MethodDef.from_buffer_copy(_definition(function))
        kept.append(make(own, time, None))
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(own))
    taken: list[Callable[..., object]] = [os.times]
    taken += [each for each in vars(time).values() if isinstance(each, type(len))]
    if "_datetime" in sys.builtin_module_names:
        dates = importlib.import_module("_datetime")
        taken += [dates.datetime.now, dates.datetime.utcnow, dates.date.today]
    # A function of one argument, which these modules and classes are not fit for.
    refusal = ctypes.cast(ctypes.pythonapi.PyObject_GetIter, ctypes.c_void_p)
    for clock in taken:
        _definition(clock).function = refusal
    return tuple(kept)


def _blank_kernel_time() -> None:
    """Put zeros in place of the pages that the kernel writes the time to.

    The C library then asks by system call, which a sealed child may not. The pages lie below the kernel's own library,
    the vDSO, and are known by the advice on forks that the kernel refuses for a device's memory. A kernel that is built
    with ``CONFIG_MSEAL_SYSTEM_MAPPINGS`` lets nobody replace them.
    """
    libc, page = ctypes.PyDLL(None, use_errno=True), resource.getpagesize()
    libc.getauxval.restype = ctypes.c_ulong
    start = end = libc.getauxval(_AT_SYSINFO_EHDR)
    while start and libc.madvise(*_words(start - page, page, _MADV_DOFORK)) and ctypes.get_errno() == errno.EINVAL:
        start -= page
    flags = _MAP_PRIVATE | _MAP_FIXED | _MAP_ANONYMOUS
    libc.mmap(*_words(start, end - start, _PROT_READ, flags), -1, ctypes.c_ulong(0))


def _make(syscall: Callable[..., int], calls: tuple[tuple[_Word, ...], ...]) -> None:
    """Make system calls, all of which return 0 when they succeed."""
    for arguments in calls:
        if syscall(*arguments):
            raise OSError(ctypes.get_errno(), "a process could not be sealed")


def take_standard_streams(commands: int, replies: int) -> None:
    """Move the pipes to the pool from 0 and 1 to two successive descriptors, and leave /dev/null there; close what else
    was inherited."""
    os.dup2(0, commands)
    os.dup2(1, replies)
    os.closerange(3, commands)
    os.closerange(replies + 1, _MOST_DESCRIPTORS)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.close(null)


def preload(allowed: Iterable[str], more: Iterable[str]) -> None:
    """Import what programs may, and what there is of ``more``: nothing can be once the files are out of reach."""
    for name in allowed:
        importlib.import_module(name)
    for name in more:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for codec in _CODECS:
        "a".encode(codec).decode(codec)
    "\N{BULLET}".isidentifier()
    warnings.simplefilter("ignore")


def shift_addresses() -> list[bytes]:
    """Memory to hold on to, of every size and another amount in each zygote.

    Addresses decide the order of sets of objects; interpreters that came up alike would agree on it.
    """
    return [bytes(size) for size in range(16, 1024, 16) for _ in range(hash(str(size)) % 13)]


def erase_environment() -> None:
    """Leave nothing of the environment, the hash seed in it above all, where a program could read it."""
    environment = ctypes.POINTER(ctypes.c_void_p).in_dll(ctypes.PyDLL(None), "environ")
    addresses: list[int] = []
    while environment and (address := environment[len(addresses)]):
        addresses.append(address)
    for address in addresses:
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
    ctypes.PyDLL(None).clearenv()
    os.environ.clear()
    os.environb.clear()
    posix.environ.clear()
    sys.argv = sys.orig_argv = []


def unload_modules(root: str) -> None:
    """Take out of the programs' reach what only the zygote needs; no file can be imported again later."""
    for name in list(sys.modules):
        if name.split(".")[0] in _UNLOADED:
            del sys.modules[name]
    sys.path.remove(root)
    sys.stdin = sys.stdout = sys.stderr = None
    gc.collect()
    gc.freeze()
    gc.disable()


def self_test_failures(zygote: int) -> list[str]:
    """Try to get out of a sealed child; names of what could be reached."""
    attempts: dict[str, Callable[[], object]] = {
        "files": lambda: os.open("/", os.O_RDONLY),
        "paths": lambda: os.stat("/usr"),
        "network": lambda: _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM),
        "processes": lambda: os.fork() or os._exit(0),
        "signals": lambda: os.kill(zygote, 0),
    }
    reached = []
    for name, attempt in attempts.items():
        with contextlib.suppress(OSError):
            attempt()
            reached.append(name)
    return reached


def _words(*numbers: int) -> tuple[_Word, ...]:
    return tuple(map(ctypes.c_ulong, numbers))


def _is_mapped(user: int) -> bool:
    """Whether a user namespace, if any, knows this user."""
    with open("/proc/self/uid_map", encoding="ascii") as lines:
        ranges = [tuple(map(int, line.split())) for line in lines]
    return any(start <= user < start + length for start, _, length in ranges)


def _enter_empty_root() -> None:
    """Make an empty, already deleted folder the root: nothing can be found or created in it."""
    place = next(place for place in _TEMPORARY if os.access(place, os.W_OK))
    name = f"{place}/azr-empty-{os.urandom(8).hex()}"
    os.mkdir(name, 0o700)
    folder = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
    os.rmdir(name)
    os.fchdir(folder)
    os.chroot(".")
    os.close(folder)
