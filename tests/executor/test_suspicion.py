import ast
import contextlib
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from azr.execution import CallStatus, ExecutionRequest
from azr.executor.suspicion import ORDER, STATE, has_sets, suspicion
from tests import tables
from tests.executor.conftest import execute_many
from tests.executor.public_data import public_programs, rows, seed_programs

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning")


def judge(source: str) -> int:
    """Suspicion of a program, or of the body of its ``f``."""
    if "def f(" not in source:
        before, star, body = source.rpartition("import *\n")
        source = f"{before}{star}def f(x, *more):\n    " + body.replace("\n", "\n    ")
    return suspicion(compile(source, "program", "exec", dont_inherit=True), source)


PROGRAMS = Path(__file__).with_name("suspicion.txt")
ORDERED, STATEFUL, HARMLESS = (tables.values(PROGRAMS, name) for name in ("ordered", "stateful", "harmless"))


@pytest.mark.parametrize(
    ("sources", "flag"), [(ORDERED, ORDER), (STATEFUL, STATE)], ids=["order or addresses", "the next call"]
)
def test_what_may_hang_on_something_is_suspect(sources, flag):
    assert [source for source in sources if not judge(source) & flag] == []


def test_what_cannot_is_not():
    assert [source for source in HARMLESS if judge(source)] == []


def test_sets_are_found_at_any_depth():
    for arguments in (({"a"},), (1, [(frozenset(), 2)]), ({"a": {1: set()}},), ({frozenset({1}): 1},), ([[[{1}]]],)):
        assert has_sets(arguments), arguments
    for arguments in ((), (1, "{2}", None), ({"a": [1, (2,)]},), ([[[{}]]],)):
        assert not has_sets(arguments), arguments


def test_few_real_programs_are_suspect():
    for programs, most_of_order in ((seed_programs(), 0.20), (public_programs(), 0.06)):
        found = []
        for program in programs:
            with contextlib.suppress(SyntaxError):
                found.append(suspicion(compile(program, "program", "exec", dont_inherit=True), program))
        order, state = (sum(bool(each & flag) for each in found) / len(found) for flag in (ORDER, STATE))
        assert order < most_of_order and state < 0.02


def test_it_is_cheap():
    sources = [row["code"] for row in rows("cruxeval.jsonl")]
    codes = [(compile(source, "program", "exec", dont_inherit=True), source) for source in sources]
    laps = []
    for _ in range(5):
        start = time.process_time()
        for code, source in codes:
            suspicion(code, source)
        laps.append(time.process_time() - start)
    assert min(laps) / len(codes) < 1e-4


def is_value(node: ast.AST) -> bool:
    return isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)


def expressions(sources: list[str]) -> list[ast.AST]:
    """Return the values in programs or bodies of ``f``; in none that do not parse."""
    found = list[ast.AST]()
    for source in sources:
        with contextlib.suppress(SyntaxError):
            whole = source if "def f(" in source else "def f(x):\n    " + source.replace("\n", "\n    ")
            found += filter(is_value, ast.walk(ast.parse(whole)))
    return found


class Mutator(ast.NodeTransformer):
    """Puts nodes of other programs in the place of a program's own."""

    def __init__(self, others: list[ast.AST], chance: random.Random) -> None:
        self.others, self.chance = others, chance

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if is_value(node) and self.chance.random() < 0.05:
            return self.chance.choice(self.others)
        return super().generic_visit(node)

    def mutants(self, sources: list[str]) -> Iterator[tuple[int, str, int]]:
        """Give each mutant that compiles, its suspicion, and the index of its source."""
        for index, source in enumerate(sources):
            try:
                tree = ast.fix_missing_locations(self.visit(ast.parse(source)))
                code, text = compile(tree, "program", "exec", dont_inherit=True), ast.unparse(tree)
            except (SyntaxError, ValueError, TypeError, RecursionError):
                continue
            yield suspicion(code, text), text, index


def test_it_raises_for_no_code():
    chance = random.Random(15)
    programs = chance.sample(seed_programs(), 300) + [source for source in ORDERED + STATEFUL if "def f(" in source]
    others = expressions([*programs, *ORDERED])
    judged = [suspected for suspected, _, _ in Mutator(others, chance).mutants(programs * 4)]
    assert len(judged) > 600 and set(judged) <= set(range(4))


@pytest.mark.asyncio(loop_scope="session")
async def test_programs_that_are_no_suspects_agree_in_all_interpreters(hasty):
    """CRUXEval's programs with parts of suspects in them: what the rules let pass is run and compared."""
    tested = rows("cruxeval.jsonl")[::2]
    mutator = Mutator(expressions(ORDERED) + expressions(HARMLESS), random.Random(7))
    mutants = list(mutator.mutants([row["code"] for row in tested]))
    requests = [
        ExecutionRequest(program=text, inputs=(tested[index]["input"],), repeats=2)
        for suspected, text, index in mutants
        if not suspected & ORDER
    ]
    results = await execute_many(hasty, requests)
    differing = [
        request.program
        for request, result in zip(requests, results, strict=True)
        if result.deterministic is False and not has_sets(tuple(ast.literal_eval(f"[{request.inputs[0]}]")))
    ]
    assert differing == []
    values = [result for result in results if result.outputs[0].status is CallStatus.OK]
    assert len(mutants) - len(requests) > 30 and len(values) > 100
