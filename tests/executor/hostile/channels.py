"""Ways to tell another sandbox something through what both share: pages of the C library, clocks, pools of memory."""

# ruff: noqa: E501 - an attack on one line is easier to read than a wrapped one

from tests import tables
from tests.executor.hostile.attack import PROGRAMS, ROUTES, Family

CHANNELS = Family("channels between sandboxes")
LIBRARY = (
    ROUTES
    + """
def library():
    c = namespace('ctypes')
    return c['cast'](c['CDLL'](None).printf, c['c_void_p']).value & ~4095
"""
)
"""Program text: the address of a page that every process on the machine with this C library maps from one file."""


def _add_refused(name: str, arguments: str) -> None:
    CHANNELS.add_call(name, arguments, LIBRARY)


_PRIVATE, _REALTIME = 128, 256
for _name, _operation in {
    "wait": 0, "wake": 1, "file": 2, "requeue": 3, "compare and requeue": 4, "wake and change": 5, "lock": 6, "unlock": 7,
    "try to lock": 8, "wait for bits": 9, "wake by bits": 10, "wait for a lock": 11, "requeue to a lock": 12, "lock, other clock": 13,
}.items():  # fmt: skip
    _add_refused(f"shared futex: {_name}", f"202, library(), {_operation}, 1, bytes(16), 0, 1")
    if _operation not in (0, 1, 9):
        _add_refused(f"private futex: {_name}", f"202, library(), {_operation | _PRIVATE}, 1, bytes(16), 0, 1")
_add_refused("shared futex: wait by the date", f"202, library(), {9 | _REALTIME}, 0, bytes(16), 0, 1")
_add_refused("futex: a command with unknown bits", "202, library(), 0x10081, 1")
for _name, _arguments in {
    "wait for several": "449, library(), 1, 0, bytes(16), 0", "wake, new call": "454, library(), 1, 1, 2",
    "wait, new call": "455, library(), 0, 1, 2, bytes(16), 0", "requeue, new call": "456, library(), 0, 1, 1",
}.items():  # fmt: skip
    _add_refused(f"futex: {_name}", _arguments)

for _name, _call in {"read": "228, one, bytes(16)", "sleep by": "230, one, 0, bytes(16), 0"}.items():
    for _whose, _ids in {
        "processes, threads and descriptors": "[~number << 3 | kind for number in range(50) for kind in range(8)]",
        "the machine's devices": "[16, 17, 23, 24, 255, 2**31, 2**32 - 1]",
    }.items():
        _program = f"{LIBRARY}\ndef f(): return {{syscall({_call}) for one in {_ids}}}"
        _options = {"value": lambda outcome: outcome == {(-1, 1)}}
        CHANNELS.add(f"clocks: {_name} those of {_whose}", "ok LookupError", _program, **_options)
CHANNELS.add("clocks: by the library", "PermissionError LookupError OSError TypeError",
    "import time\ndef f(): return [time.clock_gettime(~number << 3 | 2) for number in range(1, 40)]")  # fmt: skip
CHANNELS.add("clocks: of its own thread, by a number that could be another's",
    "PermissionError AttributeError OSError TypeError",
    "import _thread, time\ndef f(): return time.clock_gettime(time.pthread_getcpuclockid(_thread.get_ident()))")  # fmt: skip
for _name, _arguments in {
    "resolution": "229, -6, bytes(16)", "the machine's load": "99, bytes(128)", "times of processes": "100, bytes(64)",
    "its use of the machine": "98, 0, bytes(160)", "its core": "309, bytes(8), bytes(8), 0",
}.items():  # fmt: skip
    _add_refused(f"clocks: {_name}", _arguments)

for _name, _advice in {
    "at random": 1, "in order": 2, "will be read": 3, "free": 8, "remove": 9, "not for children": 10, "share equal pages": 12,
    "share no pages": 13, "huge": 14, "not huge": 15, "no dump": 16, "wipe on fork": 18, "cold": 20, "page out": 21,
    "read in": 22, "write in": 23, "drop locked": 24, "make huge now": 25, "poison": 100, "soft offline": 101, "guard": 102,
}.items():  # fmt: skip
    _add_refused(f"memory advice: {_name}", f"28, library(), 4096, {_advice}")
for _name, _arguments in tables.values(PROGRAMS, "channels: memory"):
    _add_refused(f"memory: {_name}", _arguments)
