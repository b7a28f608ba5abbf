import subprocess
import sys

import pytest

from azr.tasks.normalize import fingerprint, normalize, parse_program

PLAIN = "def f(a):\n    b = a + 1\n    return b"


def test_fingerprints_tell_what_is_computed_and_not_how_it_is_written():
    annotated = 'def f(a: int) -> int:\n    "adds one"\n    b: int = a+1 # one more\n\n    return (b)'
    same = {fingerprint(each) for each in (PLAIN, "def f(x):\n    total = x + 1\n    return total", annotated)}
    handlers = (
        "def f(a):\n    try:\n        return 1 / a\n    except ZeroDivisionError as {0}:\n        return str({0})"
    )
    assert len(same) == len({fingerprint(handlers.format(name)) for name in ("handler", "e", "x")}) == 1
    for other in (PLAIN.replace("1", "2"), PLAIN.replace("return b", "return a"), "def f(a):\n    return a + 1"):
        assert fingerprint(other) not in same, other
    assert fingerprint(PLAIN, "1", "2") != fingerprint(PLAIN, "12", ""), "extra parts do not run into each other"
    assert "sorted" in normalize("def f(a):\n    return sorted(a)"), "builtins keep their names"


TWINS = [
    "def f(x):\n match x:\n  case [{0}, *{1}]: return {0}, {1}\n  case 1 as {0}: return {0}\n"
    "  case {{1: 1, **{1}}}: return {1}",
    "import math as {0}\nfrom bisect import bisect as {1}\ndef f(x): return {0}.floor({1}(x, 1))",
    "{0} = 0\ndef f(x):\n global {0}\n {0} += x\n def g():\n  nonlocal x\n  x = {0}\n return g()",
    "def g({0}=1, *, {1}=2): return {0} + {1}\ndef f(x): return g({0}=x, {1}=3)",
    "class C:\n {0} = 1\n def __init__(self, {1}): self.{1} = {1}\n def go(self, {0}): return self.{1} + C.{0}\n"
    "def f(x):\n match C({1}=x):\n  case C({1}=y): return y, C(x).go({0}=2)",
    "class C:\n def {0}(self): return 1\n async def {1}(self): return 2\ndef f(x): return C().{0}(), C().{1}",
]  # fmt: skip
"""The same with any names."""
STRANGERS = [
    ("import {} as v1\ndef f(x): return v1.pi", "math", "cmath"), ("def f(x):\n '{}'\n return f.__doc__", "a", "b"),
    ("def {0}(): 1\ndef f(x): return {0}.__name__", "g", "h"),
    ("class C:\n def {}(self): return 2\ndef f(x): return bool(C())", "__len__", "__iter__"),
    ("class C(list):\n def {}(self, x): 1\ndef f(x): return C(x).append(1)", "append", "extend"),
    ("class C:\n def {0}(self): 1\ndef f(x): return x.{0}()", "sort", "copy"),
    ("class C:\n def __init__(self, x): self.{} = x\ndef f(x): return vars(C(x))", "a", "b"),
    ("from enum import Enum\nclass K(Enum):\n {} = 1\ndef f(x): return K(1).name", "A", "B"),
    ("def f(x, {0}): return sorted(x, {0}={0})", "key", "reverse"), ("def f(x, {0}): return f'{{{0}=}}'", "a", "b"),
    ("def f({0}): return dict({0}={0})", "a", "b"),
    ("class C:\n {0}\n def g(self):\n  {0}\n  return self.x\ndef f(a): return C().g()", "x = 1; y = 2", "y = 1; x = 2"),
]  # fmt: skip


def test_twins_may_choose_every_name_that_only_they_see_and_strangers_are_never_one():
    for program in TWINS:
        assert len({fingerprint(program.format(*names)) for names in (("left", "right"), ("p", "q"))}) == 1, program
    assert fingerprint("import math\ndef f(x): return math.pi") == fingerprint(
        "import math as m\ndef f(x): return m.pi"
    )
    assert fingerprint("import math as v1\ndef f(x): return v1") != fingerprint("def f(v1): return v1")
    for program, *names in STRANGERS:
        assert len({fingerprint(program.format(name)) for name in names}) == 2, program


@pytest.mark.parametrize(
    "text",
    [
        "", "x = 1", "def f(", "def f():\n    pass", "\0", "(" * 5000, "def g(a): return a",
        "def f(a):\n    return a" + " + 1" * 330, "def f(a):\n    return a" + "[0]" * 400,
        "def f(a):\n    return a #" + "a" * 10_000_000,
    ],
)  # fmt: skip
def test_other_texts_are_no_task_programs(text):
    assert parse_program(text) is None


ODD = r"""
from azr.graders.programs import defines
from azr.tasks.normalize import fingerprint, parse_program
from azr.values import parse
program = "def f(a):\n    return 1if a else '\\d'"
assert parse_program(program) and fingerprint(program) and defines(program, "f")
assert parse("['\\d', ('\\d',)]")
"""


def test_what_the_parser_finds_odd_about_a_models_text_is_not_printed():
    """In a process of its own: pytest sets the filters of warnings itself."""
    done = subprocess.run([sys.executable, "-W", "default", "-c", ODD], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "invalid" not in done.stderr
