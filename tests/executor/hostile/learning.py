"""What a program could learn about its place: the calls before and after it, who asks for it, and what for."""

from tests import tables
from tests.executor.hostile.attack import DENIED, PARTS, PROGRAMS, ROUTES, Family

LEARNING = Family("what a program can learn")
MEMORY = ROUTES + PARTS["memory"]
"""Program text: all memory of the process around what it knows, whose end it finds without a file."""

_WORD = "CANA" + "RY"
_WORDS = tuple(f"{n}, '{_WORD}-{letter * 12}'" for n, letter in enumerate("abcdef"))
_SEEK = f"""
import re
NEEDLE = re.compile(b'{_WORD[:4]}' + b'{_WORD[4:]}-([a-f])' + b'{{1}}'[:0] + b'{chr(92)}{chr(92)}1' * 11)
def letters(*pieces):
    return sorted({{word.decode() for piece in pieces for word in NEEDLE.findall(piece)}})
"""


def _nothing_to_come(outcome: object) -> bool:
    """Of ``[own letter, letters found]``: its own is found, so the search works, and none of a later call."""
    own, found = outcome  # type: ignore[misc]
    return own in found and max(found) == own


def _nothing_later(outcome: object) -> bool:
    """Like `_nothing_to_come`, but its own need not be found: every call begins with an empty collector."""
    own, found = outcome  # type: ignore[misc]
    return all(letter <= own for letter in found)


_FROM_FRAMES = PARTS["frames"]
for _name, _body in tables.values(PROGRAMS, "learning: inputs to come"):
    LEARNING.add(f"inputs to come, through {_name}", "ok",
        f"{_SEEK}{_FROM_FRAMES}\ndef f(number, word):\n    {_body}\n    return [word[-1], letters(*pieces)]",
        inputs=_WORDS, value=_nothing_later if _name.startswith("the collector") else _nothing_to_come)  # fmt: skip
LEARNING.add("inputs to come, in all memory", "ok",
    f"{MEMORY}{_SEEK}\ndef f(number, word):\n    return [word[-1], letters(*[text for _, text in contents()])]",
    inputs=_WORDS, value=_nothing_to_come)  # fmt: skip
LEARNING.add("inputs to come, in the pipe that feeds it", "ok timeout crashed OSError PermissionError",
    f"{_SEEK}\nimport posix\ndef f(number, word):\n    found = [word.encode()]\n    for one in range(16):\n"
    "        if one > 2:\n            try: found.append(posix.read(one, 10**5))\n            except OSError: pass\n"
    "    return [word[-1], letters(*found)]", inputs=_WORDS, value=_nothing_to_come)  # fmt: skip
for _name, _needle in {
    "the honest program's word": b"HEIRLOOM-", "the hash seed": b"HASHSEED=", "the environment": b"PATH=/",
    "the home": b"HOME=/", "the data sets": b"AZR_OUTSIDE_SECRET=",
}.items():  # fmt: skip
    LEARNING.add(
        f"in all memory: {_name}",
        "ok",
        # Backwards, and turned round only after the memory was read: its own words are in it too.
        f"{MEMORY}\ndef f():\n    pieces = contents()\n    needle = bytes(reversed({_needle[::-1]}))\n"
        "    return [hex(low) for low, text in pieces if needle in text]",
        value=lambda found: found == [],
    )
for _name, _expression in {
    "arguments": "sys.argv", "original arguments": "sys.orig_argv", "warn options": "sys.warnoptions",
    "the environment": "list(posix.environ)", "the environment of os": "list(sys.modules['os'].environ)",
}.items():  # fmt: skip
    LEARNING.add(
        _name, "ok", f"import posix, sys\ndef f(): return [{_expression}]", value=lambda found: found in ([], [[]])
    )
LEARNING.add("the environment of C", "ok",
    f"{ROUTES}\ndef f():\n    c = namespace('ctypes')\n    libc = c['CDLL'](None)\n"
    "    libc.getenv.restype = c['c_char_p']\n"
    "    names = ['PATH', 'HOME', 'PYTHONHASHSEED', 'AZR_OUTSIDE_SECRET', 'HOSTNAME', 'LANG', 'PWD', 'USER']\n"
    "    first = c['c_void_p'].in_dll(libc, 'environ').value\n"
    "    return [n for n in names if libc.getenv(n.encode())] + ([c['string_at'](first, 8).hex()] if first else [])",
    value=lambda found: found in ([], [bytes(8).hex()]))  # fmt: skip
for _path in (
    "/proc/self/environ", "/proc/self/cmdline", "/proc/self/maps", "/proc/self/stat", "/proc/self/status",
    "/proc/self/fd/3", "/proc/self/mem", "/proc/self/auxv", "/proc/thread-self/comm", "/proc/1/environ",
    "/proc/1/cmdline", "/proc/stat", "/proc/uptime", "/proc/loadavg", "/sys/kernel/uevent_seqnum",
):  # fmt: skip
    LEARNING.add(f"file {_path}", DENIED, f"import posix\ndef f(): return posix.read(posix.open('{_path}', 0), 4000)")
for _name, _body in {
    "its process": "posix.getpid()", "its parent": "posix.getppid()", "its group": "posix.getpgid(0)",
    "its session": "posix.getsid(0)", "its thread": "_thread.get_native_id()",
    "a new thread": "_thread.start_new_thread(len, ('',)) and 0", "its children": "posix.waitpid(-1, 1)[0]",
}.items():  # fmt: skip
    # Refused, or a number that no process can have: what the C library returns for a refused call.
    LEARNING.add(f"number of {_name}", f"ok RuntimeError ChildProcessError {DENIED}",
        f"import posix, _thread\ndef f(): return {_body}",
        value=lambda number: number <= 0 or number == 2**32 - 1 or number == 2**64 - 1)  # fmt: skip
