"""Claims that are not true: forged reports, lying objects, broken tools, and looking for what others know."""

# ruff: noqa: E501 - an attack on one line is easier to read than a wrapped one

import marshal
import zlib

from azr.executor import protocol
from azr.executor.protocol import Part
from tests import tables
from tests.executor.hostile.attack import ANY, PARTS, PROGRAMS, ROUTES, Family

FORGERY = Family("forged reports")
_OK, _RAISED = protocol.OK, protocol.RAISED


def _own(value: object) -> bool:
    """A program may claim whatever it likes to have returned, and nothing else."""
    return value in ("forged", "honest", 1)


def _claim(text: str = "'forged'", status: bytes = _OK, letter: bytes = Part.CALL) -> bytes:
    return protocol.frame(letter + protocol.call_report(status, text))


def _reasons(*reasons: str) -> bytes:
    return protocol.frame(Part.REASONS + protocol.reasons_report(reasons))


def _loaded(suspected: int, code: bytes) -> bytes:
    return protocol.frame(Part.LOADED + bytes([suspected]) + code)


def _call(content: bytes) -> bytes:
    return protocol.frame(Part.CALL + content)


def _changed(position: int, byte: int) -> bytes:
    data = bytearray(_claim())
    data[position] = byte
    return bytes(data)


_WRITE = """
import posix
def write(frame):
    for number in range(64):
        if number != 2:
            try: posix.write(number, frame)
            except OSError: pass
"""
_PARTS = (protocol.PART.pack(Part.CALL, 0.0, 0.0) + protocol.call_report(_OK, "'forged'")) * 2
_CODE = marshal.dumps(compile("def f(x): return 'forged'", "program", "exec"))
_FRAMES = {
    "a claim": _claim(), "many claims": _claim() * 200, "reasons and a claim": _reasons() + _claim(),
    "a claim and reasons": _claim() + _reasons("line 1: forged"), "reasons again": _reasons("line 1: forged"),
    "reasons without a reason": _reasons(), "reasons without end": _reasons() * 1000,
    "reasons of many reasons": protocol.frame(Part.REASONS + bytes(200_000)),
    "reasons cut in a reason": protocol.frame(Part.REASONS + b"\0\0\xff\xffa"),
    "reasons that is an essay": protocol.frame(Part.REASONS + (10**5).to_bytes(4, "big") + b"a" * 10**5),
    "a whole reply": protocol.frame(bytes(4) + _PARTS),
    "replies to others": b"".join(protocol.frame(n.to_bytes(4, "big") + _PARTS) for n in range(50)),
    "a reply inside a claim": _call(protocol.frame(bytes(4) + _PARTS)),
    "a greeting": protocol.frame(protocol.SEALED), "a time-out of its own": protocol.frame(Part.TIMEOUT),
    "a crash of its own": protocol.frame(Part.CRASHED + b"x"),
    "an unknown letter": protocol.frame(b"?" + protocol.call_report(_OK, "1")),
    "an unknown status": _claim(status=b"?"), "a loss": _claim("x", status=b"L"),
    "a last claim": _claim(letter=Part.LAST), "many last claims": _claim(letter=Part.LAST) * 200,
    "code for itself": _loaded(0, _CODE) + _claim(), "code for itself, and suspicion": _loaded(255, _CODE),
    "loaded again and again": _loaded(0, b"") * 1000, "loaded without a word": protocol.frame(Part.LOADED),
    "a value that is code": _claim("__import__('os')"), "a value that is true": _claim("0) or True or (0"),
    "a value too long": _claim("'" + "a" * 300_000 + "'"),
    "a value longer than allowed": _claim("'" + "a" * 200_000 + "'"),
    "a value too deep": _claim("[" * 5000 + "]" * 5000), "a value that explodes": _claim("9**9**9"),
    "a value of brackets": _claim("(" * 60_000), "a value with a null byte": _claim("'\0'"),
    "a value with a lone surrogate": _call(b"o" + b"'\xed\xa0\x80'"), "a value in other quotes": _claim('"forged"'),
    "no value": _claim(""), "an error that is an essay": _claim("E" * 10**5, status=_RAISED),
    "an error of two lines": _claim("E\nok", status=_RAISED),
    "an error with a lone surrogate": _call(b"r" + b"E\xed\xa0\x80"),
    "an error without a name": _claim("", status=_RAISED), "junk": b"junk" * 1000, "zeros": bytes(4000),
    "a length without end": b"\xff\xff\xff\xff{}",
    "a length just over the cap": (2**20).to_bytes(4, "big") + b"{" * 2**20, "an empty frame": protocol.frame(b""),
    "an empty claim": _call(b""), "a cut claim": _call(b"o\0\0"), "not text": _claim("'x'")[:-2] + b"\xff\xfe",
    "a number too long": _claim("9" * 60_000), **{f"byte {n} changed": _changed(n, 0xFF) for n in range(14)},
    **{f"cut after {n} bytes": _claim()[:n] for n in (1, 3, 4, 5, 9, 12)},
}  # fmt: skip
for _name, _bytes in _FRAMES.items():
    _text = repr(_bytes) if len(_bytes) < 9000 else f"__import__('zlib').decompress({zlib.compress(_bytes)!r})"
    FORGERY.add(
        _name, ANY, f"{_WRITE}\ndef f(x):\n    write({_text})\n    return 'honest'", inputs=("1", "2"), value=_own
    )
_CLAIMED = repr(_claim())
for _name, _outcomes, _body in (
    ("claim, then crash", "ok crashed", f"write({_CLAIMED}); posix._exit(0)"),
    ("claim, then hang", "ok timeout crashed", f"write({_CLAIMED})\n    while True: pass"),
    ("half a frame, then hang", "timeout crashed", f"write({_CLAIMED}[:10])\n    while True: pass"),
    ("half a frame, then exit", "crashed", f"write({_CLAIMED}[:10]); posix._exit(0)"),
    ("a byte now and then", "timeout crashed",
     "write((1000).to_bytes(4, 'big'))\n    while True:\n        write(b'{'); sum(range(10**7))"),
    ("an empty frame now and then", "timeout crashed",
     "while True:\n        write((2).to_bytes(4, 'big') + b'{}'); sum(range(10**7))"),
    ("a long frame, byte by byte", "timeout crashed",
     "write((260000).to_bytes(4, 'big'))\n    for _ in range(10**6): write(b'c')"),
    ("frames without end", "timeout crashed", "while True: write((60000).to_bytes(4, 'big') + bytes(60000))"),
    ("claims without end", "timeout crashed ok", f"while True: write({_CLAIMED})"),
    ("close the report", "crashed ok", "posix.closerange(0, 64); return 1"),
    ("close the report and stay", "crashed timeout", "posix.closerange(0, 64)\n    while True: pass"),
    ("claim and close", "ok crashed", f"write({_CLAIMED}); posix.closerange(0, 64)\n    while True: pass"),
    ("never come back", "crashed", "posix._exit(0)"),
):  # fmt: skip
    FORGERY.add(_name, _outcomes, f"{_WRITE}\ndef f():\n    {_body}", value=_own)
FORGERY.add("claim while loading", "ok crashed timeout rejected",
    f"{_WRITE}\nwrite({_reasons()!r} + {_CLAIMED})\nwhile True: pass", value=_own)  # fmt: skip
FORGERY.add("a report for every input, the first time", "ok crashed",
    f"{_WRITE}\ndef f(x):\n    write({_CLAIMED} * 4)\n    posix._exit(0)", inputs=("1", "2", "3", "4"), value=_own)  # fmt: skip

_FOUND = PARTS["reports"].replace("{claim!r}", _CLAIMED)
for _name, _body in tables.values(PROGRAMS, "forgery: ways to the report"):
    FORGERY.add(f"through {_name}", ANY, f"{_FOUND}\ndef f():\n    {_body}\n    return 'honest'", value=lambda v: True)

PEEKING = Family("what others know")
_SEARCH = PARTS["strings"]
_NOTHING = {"value": lambda found: found == []}
for _name, _program in {
    "in all frames": (
        _SEARCH + "import sys\ndef f():\n    frame, all = sys._getframe(), []\n    while frame:\n"
        "        all += [dict(frame.f_locals), dict(frame.f_globals)]\n        frame = frame.f_back\n    return strings(all)"
    ),
    "in all modules": _SEARCH + "import sys\ndef f(): return strings(list(sys.modules.values()))",
    "in all objects": _SEARCH + "import gc\ndef f():\n    gc.unfreeze()\n    return strings(gc.get_objects())",
    "in all classes": ROUTES + _SEARCH + "def f(): return strings(classes())",
    "in the environment": (
        _SEARCH + "import posix\ndef f(): return strings([posix.environ]) + [n for n in posix.environ if b'AZR' in n]"
    ),
    "code of ours among the modules": "import sys\ndef f(): return [m for m in sys.modules if 'azr' in m]",
    "in memory never written": _SEARCH + "def f(): return strings([bytes(bytearray(10**6))])",
}.items():
    PEEKING.add(_name, "ok", _program, **_NOTHING)
_PROGRAM = ROUTES + _SEARCH + PARTS["the zygote's memory"]
PEEKING.add("in the memory that was the zygote's", "ok LookupError", _PROGRAM, **_NOTHING)
