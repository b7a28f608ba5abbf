"""Programs that attack the parser, the compiler and the interpreter itself."""

from tests import tables
from tests.executor.hostile.attack import PROGRAMS, ROUTES, Family

PARSING = Family("parser and compiler")
_REFUSED = "rejected crashed memory timeout"
for _name, _program in {
    "brackets": "f = " + "(" * 8000, "balanced brackets": "f = " + "(" * 4000 + ")" * 4000,
    "lists": "f = " + "[" * 190 + "]" * 190 + "\nx = " + "[" * 4000, "negations": "f = lambda: " + "not " * 4000 + "1",
    "signs": "f = lambda: " + "-" * 16000 + "1", "powers": "f = lambda: " + "2 ** " * 3000 + "1",
    "lambdas": "f = " + "lambda: " * 2000 + "1",
    "indentation": "def f():\n" + "".join(f"{' ' * i}if 1:\n" for i in range(1, 120)) + " " * 120 + "0",
    "loops in loops": "def f():\n" + "".join(f"{' ' * i}for x in y:\n" for i in range(1, 60)) + " " * 60 + "0",
    "a null byte": "def f(): return 1\0", "a lone surrogate": "def f(): return '\ud800'",
    "an unknown coding": "# coding: no-such\ndef f(): return (",
    "a wide letter that is not ASCII's": "def f(): return 1 \N{GREEK QUESTION MARK} import os",
    "an unprintable name": "def f\u200b(): return 1", "an await outside": "def f(): await 1",
    "a return outside": "return 1\ndef f(): return 1", "a nonlocal that is not": "def f():\n    nonlocal x",
    "an endless string": "def f(): return '''" + "a" * 1000,
    "formatted strings in each other": "def f(): return " + "f'{" * 200 + "1" + "}'" * 200,
    "too many digits": "def f(): return " + "9" * 5000, "nothing": "", "only a comment": "# nothing",
    "no f": "def g(): return 1", "f is data": "f = 3",
}.items():  # fmt: skip
    PARSING.add(_name, _REFUSED, _program)
for _name, _program in {
    "attributes": "def f():\n    x = 1\n    return x" + ".real" * 3000, "calls": "def f(): return f" + "()" * 6000,
    "comparisons": "def f(): return " + "1 < " * 4000 + "2", "sums": "def f(): return " + "1 + " * 3900 + "1",
    "else after else": "def f(x=0):\n    if x == 1: pass\n" + "    elif x == 2: pass\n" * 700,
    "matches": "def f():\n    match 1:\n        case " + "[" * 150 + "]" * 150 + ": pass",
    "a folded constant": "def f(): return len((((('a' * 4000) * 4000) * 4000) * 4000) * 4000)",
    "a folded power": "def f(): return 1 if 9 ** 9 ** 9 else 2",
    "a constant while loading": "x = 9 ** 9 ** 9\ndef f(): return 1",
    "a coding of its own": "# -*- coding: utf-7 -*-\ndef f(): return 1",
    "other line ends": "def f():\r\n    return 1\r\n", "a form feed": "\f\ndef f(): return 1",
    "a homoglyph": "def \N{FULLWIDTH LATIN SMALL LETTER F}(): return 1",
}.items():  # fmt: skip
    PARSING.add(_name, "ok raised rejected crashed memory timeout", _program)
for _name, _body in tables.values(PROGRAMS, "parsing: bodies"):
    PARSING.add(_name, "ok raised crashed memory timeout", f"def f():\n    {_body}")

CRASHES = Family("crashes of the interpreter")
_CODE = "def g(): pass\ng.__code__ = g.__code__.replace({})\ndef f(): return g()"
_FATAL = "crashed raised memory timeout rejected output_too_large ok"
for _name, _change in tables.values(PROGRAMS, "crashes: code"):
    CRASHES.add(_name, _FATAL, _CODE.format(_change))
for _name, _body in tables.values(PROGRAMS, "crashes: bodies"):
    CRASHES.add(_name, _FATAL, f"def f():\n    {_body}")
for _name, _body in tables.values(PROGRAMS, "crashes: expressions"):
    CRASHES.add(_name, _FATAL, f"{ROUTES}\ndef f():\n    return bool({_body})")
