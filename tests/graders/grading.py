"""What the tests of graders share: public suites, a pool for answers, and answers as a model would write them."""

import asyncio
import importlib.util
import os
from collections.abc import Iterable, Sequence

import pytest

from azr.config import ExecutorConfig
from azr.evaluation.suites import SUITES
from azr.graders.question import Grader, Question
from azr.graders.value import ProgramValue
from azr.records import Judgement
from tests.executor.public_data import file

CONFIG = ExecutorConfig(workers=3, wall_s=30.0)
"""Patient: only what is meant to run out of time gets little of it."""


def questions(name: str, every: int = 1) -> Sequence[Question]:
    """Questions of a public suite. Skips the test where its file is missing."""
    suite = SUITES[name]
    folder = file(suite.files[0]).parent if suite.sha256 else None
    assert folder is not None
    return suite.read(folder)[::every]


def needs(module: str, extra: str = "eval") -> None:
    """Skip what needs a package of an extra; in continuous integration its absence is a failure."""
    if importlib.util.find_spec(module) is None:
        assert os.environ.get("CI") != "true", f"{module} is missing: pip install -e '.[{extra}]'"
        pytest.skip(f"needs {module}: pip install -e '.[{extra}]'")


def reference(question: Question) -> str:
    """A response that states the reference answer."""
    gold = question.gold
    if isinstance(gold, ProgramValue):
        return f"<think>hm</think>\n```{gold.asked}\n{gold.output if gold.asked == 'output' else gold.input}\n```"
    if hasattr(gold, "reference"):
        return fenced(gold.reference)
    answer = gold.label if hasattr(gold, "label") else gold.answers[0]
    return f"So the answer is \\boxed{{{answer}}}."


def fenced(program: str) -> str:
    return f"Here it is:\n```python\n{program}\n```\n"


async def grade_all(grader: Grader, pairs: Iterable[tuple[Question, str]]) -> list[Judgement]:
    """Judgements in the order of the pairs, a few at a time."""
    turn = asyncio.Semaphore(8)

    async def one(question: Question, response: str) -> Judgement:
        async with turn:
            return await grader.grade(question, response)

    return list(await asyncio.gather(*(one(*pair) for pair in pairs)))
