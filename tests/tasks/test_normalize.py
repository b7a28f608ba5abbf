import subprocess
import sys

import pytest

from azr.tasks.normalize import fingerprint, normalize, parse_program
from tests.tables import table

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


TWINS = table(__file__, "twins")
"""The same with any names."""
STRANGERS = table(__file__, "strangers")


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
