import ast
import importlib
import sys
import types
from pathlib import Path
from textwrap import indent

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from azr.executor import static_check
from azr.executor.static_check import ALLOWED_MODULES, load
from tests import tables
from tests.executor.public_data import public_programs, seed_programs
from tests.tables import table

# Public programs and fragments hold odd escapes and numbers.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning")

PROGRAMS = Path(__file__).with_name("static_check.txt")
REFUSED = tables.values(PROGRAMS, "refused")
NO_PROGRAMS = [
    *tables.values(PROGRAMS, "no programs"),
    ("1: cannot be parsed", "x = " + "-" * 20_000 + "1", "x = open" + ".a" * 50_000),
]
HONEST = [
    *tables.values(PROGRAMS, "honest"),
    "def f(x): return " + " + ".join(["x"] * 800) + " + len(x.items) + vars if (vars := 1) else 0",
]

ORIGINALS = (
    "logging", "random", "multiprocessing", "pebble", "subprocess", "threading", "datetime", "time", "hashlib", "hmac",
    "bcrypt", "os.sys", "os.path", "sys.exit", "os.environ", "calendar",
)  # fmt: skip
"""The words of the original's list, one of which stood there twice."""


def check(source: str) -> tuple[str, ...]:
    return load(source)[1]


@pytest.mark.parametrize("case", REFUSED + NO_PROGRAMS, ids=lambda case: case[0])
def test_refuses_and_says_where(case):
    reason, *sources = case
    for source in sources:
        code, reasons = load(source)
        assert code is None, source
        assert any(found.startswith(f"line {reason}") for found in reasons), (source, reasons)


def test_lets_honest_programs_pass():
    for source in HONEST:
        code, reasons = load(source)
        assert reasons == () and isinstance(code, types.CodeType), source
        assert static_check._reasons(ast.parse(source), code) == (), source


@pytest.mark.parametrize("word", ORIGINALS)
def test_every_word_of_the_original_list_is_refused_in_every_form(word):
    module, _, member = word.partition(".")
    forms = [
        f"import {word}", f"import {word} as honest", f"import math, {word}", f"import {word}.deeper",
        f"from {word} import x", f"from {word} import x as y", f"from {word} import *", f"__import__({word!r})",
    ]  # fmt: skip
    if member:
        forms += [
            f"from {module} import {member}", f"from {module} import {member} as honest",
            f"from {module} import *\n{member}", f"import {module}\n{word}", f"import {module} as m\nm.{member}",
            f"import {module}\n{word}.deeper()", f"import {module}\nx = {module}\nx.{member}",
            f"import {module}\ngetattr({module}, {member!r})", f"import {module} as m\n[m][0].{member}",
        ]  # fmt: skip
    elif module in sys.stdlib_module_names:  # nothing that is allowed leads to what is not installed
        forms += [
            f"import statistics as s\ns.{module}.x", f"from statistics import {module}",
            f"from ast import *\n{module}.x()",
        ]  # fmt: skip
    for form in forms:
        assert check(form), form
        assert check("if 1:\n" + indent(form, "    ")), form
        if "*" not in form:
            assert check("def g():\n" + indent(form, "    ")), form


def reachable(module: types.ModuleType, path: str, seen: frozenset[types.ModuleType]) -> list[tuple[str, str]]:
    """Paths from a module through modules only, with the name of the module at their ends."""
    paths = []
    for name, value in vars(module).items():
        if isinstance(value, types.ModuleType) and value not in seen:
            paths.append((f"{path}.{name}", value.__name__))
            if value.__name__ in ALLOWED_MODULES and len(seen) < 3:
                paths += reachable(value, f"{path}.{name}", seen | {value})
    return paths


def test_no_allowed_module_leads_to_another():
    count = 0
    for name in ALLOWED_MODULES:
        module = importlib.import_module(name)
        for path, end in reachable(module, name, frozenset({module})):
            if end.split(".")[0] not in ALLOWED_MODULES:
                count += 1
                assert check(f"import {name}\ndef f(): return {path}.x"), path
                parent, _, last = path.rpartition(".")
                assert check(f"from {parent} import {last} as x"), path
    assert count > 20


def test_what_is_banned_is_refused_on_every_path():
    """Whatever module holds it, however it is imported, and under another name."""
    banned, count = {**static_check._banned(), **static_check._judged()}, 0
    for name in ALLOWED_MODULES:
        module = importlib.import_module(name)
        inner = [(f"{name}.{last}", each) for last, each in vars(module).items() if isinstance(each, types.ModuleType)]
        for path, holder in [(name, module), *inner]:
            for last in sorted(member for member, value in vars(holder).items() if id(value) in banned):
                annotated = "\ndef g(x: 'len'): pass"  # what dispatches on types evaluates it
                assert check(f"import {name} as m\nx = {path.replace(name, 'm', 1)}.{last}{annotated}"), (path, last)
                assert check(f"from {path} import {last} as y\nx = [y]{annotated}"), (path, last)
                if path == name and last in getattr(module, "__all__", ()):
                    assert check(f"from {name} import *\nx = {last}{annotated}"), (path, last)
                count += 1
    assert count > 50


def test_every_module_that_is_not_allowed_is_refused():
    names = sys.stdlib_module_names - {name.split(".")[0] for name in ALLOWED_MODULES}
    assert {name for name in names if check(f"import {name}") != (f"line 1: imports {name}",)} == set()
    assert {"datetime", "os", "random", "secrets", "sys", "time", "uuid"} < names
    assert {name for name in ALLOWED_MODULES if check(f"import {name}")} == set()


def test_offences_come_in_order_and_unchecked_only_what_does_not_compile_is_refused():
    reasons = check("import os\nimport math\nimport time\neval('1')")
    assert reasons == ("line 1: imports os", "line 3: imports time", "line 4: uses eval")
    assert check("# -*- coding: rot13 -*-\nvzcbeg bf") == ("line 2: invalid syntax",), "a cookie changes nothing"
    assert check("# coding: utf-7\nx = '+AF8AXw-globals__'") == ()
    code, reasons = load("import os\neval('1')", checked=False)
    assert code is not None and reasons == ()
    assert load("def f(:", checked=False) == (None, ("line 1: invalid syntax",))


def test_public_programs_pass_but_for_the_one_that_asks_the_interpreter():
    sources = public_programs()
    refused = {source: reasons for source in sources if (reasons := check(source))}
    assert list(refused.values()) == [("line 2: imports sys",)], refused
    assert "sys.getsizeof" in next(iter(refused))
    for source in sources:
        assert_exact(source)
    short = [source for source in sources if not static_check.is_suspect(source, compile(source, "", "exec"))]
    assert len(short) > 0.8 * len(sources), "most take the short way"


def test_of_all_seed_tasks_33_programs_are_refused():
    refused = list(filter(None, map(check, seed_programs())))
    assert len(refused) == 33
    reasons = {reason.partition(": ")[2] for each in refused for reason in each}
    imported = {"cv2", "numpy", "os", "queue", "secrets", "sympy", "sys", "timeit"}
    assert reasons == {"uses eval", "uses open", *(f"imports {name}" for name in imported)}


def assert_exact(source: str) -> None:
    """When the short way lets a program pass, so do all the rules."""
    try:
        code = compile(source, static_check.FILE_NAME, "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return
    if not static_check.is_suspect(source, code):
        assert static_check._reasons(ast.parse(source), code) == ()


FRAGMENTS = st.sampled_from(table(__file__, "fragments"))
SOURCES = [source for _, *sources in REFUSED for source in sources] + HONEST[:-1]
STATEMENTS = st.sampled_from([source.replace("\n", "\n    ") for source in SOURCES])
WRAPPERS = st.sampled_from(
    ["{}", "def f(open, x):\n    {}", "class A:\n    {}", "if 0:\n    {}", "x = 1\n{}", "{}\nopen = 1"]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(FRAGMENTS, max_size=12).map(" ".join) | st.lists(FRAGMENTS, max_size=12).map("".join))
@example("x = '__glo' 'bals__'")
def test_the_short_way_is_exact_on_fragments(source):
    assert_exact(source)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(WRAPPERS, STATEMENTS | FRAGMENTS), min_size=1, max_size=4))
def test_the_short_way_is_exact_on_assembled_programs(pieces):
    assert_exact("\n".join(wrapper.format(piece) if "{" in wrapper else piece for wrapper, piece in pieces))
