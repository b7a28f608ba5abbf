"""The project's own kinds and the example keep the contract, and other kinds fail it."""

from itertools import count
from unittest.mock import AsyncMock

import pytest

from azr.config import ExecutorConfig
from azr.plugins.contract import KindContract
from azr.tasks.base import Verdict
from azr.tasks.prompts import Section
from azr.tasks.registry import KINDS
from examples.expressions import Expressions
from examples.repair import BROKEN, PAIRS, WHOLE, Repair

ADD = "def f(a):\n    return a + 1"
SMALL = {"source_bytes": 500, "induction_inputs": 2, "repeats": 2}


def program(text: str, given: str = "1") -> tuple[Section, ...]:
    return Section("program", text), Section("input", given)


def outputs(*texts: str) -> tuple[tuple[Section, ...], ...]:
    return tuple((Section("output", text),) for text in texts)


class OfPrograms(KindContract):
    bounds = SMALL
    executor = ExecutorConfig(workers=2, backend="namespace")
    proposals = (program(ADD), program("def f(a, b):\n    return [a, b]", "'x', 2"))
    refused = (program("x = 1"), program("def f(a): return 1 / 0"), program(ADD, "a +"), program("import os\n" + ADD))


class TestDeduction(OfPrograms):
    kind = KINDS["deduction"]
    right = outputs("2", "2.0", " 2 ")
    wrong = outputs("3", "'2'", "[2]")
    malformed = (*outputs("a + 1"), program(ADD))


class TestAbduction(OfPrograms):
    kind = KINDS["abduction"]
    right = ((Section("input", "True"),), (Section("input", "1.0"),))
    wrong = ((Section("input", "2"),), (Section("input", "'a'"),))
    malformed = ((Section("input", "a"),), *outputs("1"))


class TestError(OfPrograms):
    kind = KINDS["error"]
    proposals = (program("def f(a):\n    return a // 0"), program(ADD))
    refused = (program("x = 1"), program("import os\n" + ADD))
    right = outputs("ZeroDivisionError")
    wrong = outputs("NoError", "ValueError")
    malformed = ((Section("input", "ZeroDivisionError"),),)


class TestInduction(OfPrograms):
    kind = KINDS["induction"]
    bounds = SMALL | {"induction_inputs": 6}
    references = (KINDS["deduction"].seed(),)
    proposals = ((*(Section("input", str(n)) for n in range(6)), Section("message", "It changes nothing.")),)
    refused = ((Section("input", "1"), Section("message", "It changes nothing.")),)
    right = ((Section("program", "def f(b):\n    return b"),),)
    wrong = ((Section("program", "def f(a):\n    return 0"),),)
    malformed = ((Section("program", "x = 1"),), *outputs("1"))


class TestExpressions(KindContract):
    kind = Expressions()
    proposals = outputs("3 * (17 - 2) + 8", "5 - 7")
    refused = outputs("3 ** 9", "f(3) + 1", "7", "1 + 100", "1 + 2" * 50, "(1 + ", "__import__('os')")
    right = outputs("8 + 3 * (17 - 2)")
    wrong = outputs("17 * 3 + 2", "51 + 2")
    malformed = (*outputs("53"), (Section("program", "1 + 2"),))


class TestRepair(OfPrograms):
    kind = Repair()
    references = (KINDS["induction"].make_task("whole", WHOLE, tuple(PAIRS), tuple(PAIRS.values())),)
    proposals = ((Section("program", f"{WHOLE} - 1"),), (Section("program", "def f(a):\n    return 0"),))
    # One that is not broken, one that raises, and one that is none.
    refused = ((Section("program", WHOLE),), (Section("program", "def f(a):\n    return a[9]"),), program(BROKEN))
    right = ((Section("program", "def f(a):\n    return sum(sorted(a)[1:])"),),)
    wrong = ((Section("program", BROKEN),), (Section("program", "def f(a):\n    return {2: 2}.get(len(a), 0)"),))
    malformed = ((Section("program", "x = 1"),), *outputs("2"))


RIGHT = AsyncMock(return_value=Verdict.RIGHT)
LOSSY = lambda task: (Section("output", f"{task.message}\n```\n"),)  # noqa: E731
NUMBERS = count(2)
HOSTILE = "test_hostile_texts_are_refused_or_judged"


@pytest.mark.parametrize("method, does, test, error", [
    ("grade", AsyncMock(side_effect=lambda task, answer, run: int(answer[0].text)), HOSTILE, ValueError),
    ("grade", RIGHT, HOSTILE, AssertionError), ("grade", RIGHT, "test_wrong_answers_are_wrong", AssertionError),
    ("grade", RIGHT, "test_malformed_answers_are_malformed", AssertionError),
    ("validate", AsyncMock(return_value=Expressions().seed()), "test_proposals_become_tasks", Exception),
    ("proposal", LOSSY, "test_responses_are_read_back", AssertionError),
    ("proposal", LOSSY, "test_a_task_that_is_proposed_again_is_the_same", AssertionError),
    ("solver_view", lambda task: (Section("input", "word " * 9000),), "test_prompts_are_within_limits", AssertionError),
    ("seed", lambda: Expressions().task("seed-expressions", f"1 + {next(NUMBERS)}"),
     "test_the_first_task_can_be_played", AssertionError),
])  # fmt: skip
def test_a_kind_that_breaks_it_fails(method, does, test: str, error: type[Exception], monkeypatch) -> None:
    kind = Expressions()
    monkeypatch.setattr(kind, method, does)
    monkeypatch.setattr(TestExpressions, "kind", kind)
    TestExpressions.setup_class()
    with pytest.raises(error):
        getattr(TestExpressions(), test)()
    TestExpressions.teardown_class()
