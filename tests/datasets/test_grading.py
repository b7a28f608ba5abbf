"""Answers to rows: what is paid by each `reward.format`, by several graders, and why the rest is not."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from azr.config import RewardConfig
from azr.datasets.play import grade
from azr.datasets.rows import DataRow, read_row
from azr.graders.choice import ChoiceGrader
from azr.graders.mathematics import MathGrader
from azr.graders.question import Grader, Question
from azr.records import REASONS, Judgement
from azr.selfplay.rewards import solver_reward
from azr.tasks.base import Verdict
from azr.tasks.prompts import ResponseFormat
from tests.prompts.test_answer_part import OPENED, PLAIN, TAGS

ROW = {"prompt": "3 + 4?", "grader": "math", "answer": "7"}
RIGHT, WRONG = Verdict.RIGHT, Verdict.WRONG


class Scripted:
    """Says what it was made with, and remembers what it was given."""

    def __init__(self, judgement: Judgement) -> None:
        self.judgement, self.given = judgement, list[str]()

    async def grade(self, question: Question, response: str) -> Judgement:
        self.given.append(response)
        return self.judgement


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def graders() -> AsyncIterator[dict[str, Grader]]:
    async with MathGrader() as maths:
        yield {"math": maths, "choice": ChoiceGrader()}


def row(**fields: Any) -> DataRow:
    return read_row({**ROW, **fields}, 1)


async def verdict(graders: Mapping[str, Grader], prompt: str, response: str, form: ResponseFormat) -> str:
    """Return the verdict, or the reason of a malformed answer."""
    said = await grade(row(), prompt, response, graders, form)
    assert (said.verdict == Verdict.MALFORMED) == bool(said.reason) == (said.answer is None)
    assert said.detail or said.verdict in (RIGHT, WRONG)
    return said.reason or said.verdict


GUESSES = (
    "I have no idea, page 7", "1 2 3 4 5 6 7", "so far x = 3, then 4, 5, 6, 7", "the answer is 7", "still thinking 7",
    "of 12 cases we drop 5: 12-5=7", "7", "**7**", "",
)  # fmt: skip


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("prompt", [TAGS, OPENED, PLAIN])
async def test_a_number_without_a_box_is_paid_by_no_rule_that_asks_for_one(graders: Any, prompt: str) -> None:
    for text in GUESSES:
        for shown in (text, f"a</think>{text}", f"a</think><answer>{text}</answer>", f"<answer>{text}</answer>"):
            for form in ("strict", "answer"):
                assert await verdict(graders, prompt, shown, form) in {*REASONS}, (shown, form)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("prompt, response, strict, answer, thought", [
    (TAGS, r"3, 4</think><answer>\boxed{7}</answer>", RIGHT, RIGHT, RIGHT),
    (TAGS, r"3, 4</think> <answer>It is \boxed{8}.</answer>", WRONG, WRONG, WRONG),
    (TAGS, r"\boxed{7}", "unclosed_thinking", "no_answer", "unclosed_thinking"),
    (TAGS, r"a</think>\boxed{7}", "no_answer", "no_answer", RIGHT),
    (TAGS, r"\boxed{7}</think><answer>7</answer>", "no_box", "no_box", RIGHT),
    (TAGS, r"a <answer>\boxed{7}</answer>", "unclosed_thinking", RIGHT, "unclosed_thinking"),
    (TAGS, r"a</think><answer>\boxed{7</answer>", "no_box", "no_box", RIGHT),
    (TAGS, r"a</think><answer>\boxed{5}</answer> or <answer>\boxed{7}</answer>", "two_answers", RIGHT, RIGHT),
    (OPENED, r"3, 4</think>\boxed{7}", RIGHT, RIGHT, RIGHT),
    (OPENED, r"\boxed{7}", "unclosed_thinking", RIGHT, "unclosed_thinking"),
    (OPENED, "still thinking 7", "unclosed_thinking", "no_box", "unclosed_thinking"),
    (OPENED, "a</think> page 7", "no_box", "no_box", RIGHT),
    (PLAIN, r"\boxed{12} no wait, \boxed{7}", RIGHT, RIGHT, "unclosed_thinking"),
    (PLAIN, r"\boxed{7} or \boxed{12}", WRONG, WRONG, "unclosed_thinking"),
    (PLAIN, r"\boxed{}", "no_answer", "no_answer", "unclosed_thinking"),
])  # fmt: skip
async def test_each_rule_pays_its_own_form(graders, prompt, response, strict, answer, thought):
    said = [await verdict(graders, prompt, response, form) for form in ("strict", "answer", "thought")]
    assert said == [strict, answer, thought]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("asks, said", [
    ('Write the answer after "####".', ("#### 7", "The answer is 9.\n#### 7", "#### $7$\n", r"\boxed{7}")),
    ("Solve it. Its last line is of the form Answer: $Answer.", ("Answer: 7", "Answer:\n7", "So.\nAnswer: $7$")),
])  # fmt: skip
async def test_a_form_that_the_prompt_asks_for_is_read_and_no_other_one(graders, asks, said) -> None:
    for form in ("strict", "answer"):
        for text in said:
            assert await verdict(graders, asks, text, form) == RIGHT, (text, form)
            assert await verdict(graders, asks, text.replace("7", "8"), form) == WRONG
        for text in GUESSES:
            assert await verdict(graders, asks, text, form) in {*REASONS}, text


async def test_other_graders_read_the_answer_part_alone_and_own_ones_everything() -> None:
    choice = row(grader="choice", answer="B", options=["x", "y"])
    said = await grade(choice, TAGS, "The answer is B.</think><answer>A</answer>", {"choice": ChoiceGrader()}, "strict")
    assert said.verdict == WRONG
    own = Scripted(Judgement(verdict=RIGHT))
    said = await grade(
        row(grader="examples.near_enough:grade"), TAGS, "anything", {"examples.near_enough:grade": own}, "strict"
    )
    assert said.verdict == RIGHT and own.given == ["anything"]


def scripted(**judgements: Judgement) -> dict[str, Scripted]:
    return {name.replace("own", "examples.near_enough:grade"): Scripted(each) for name, each in judgements.items()}


async def several(weights: dict[str, float], **judgements: Judgement) -> Judgement:
    weights = {name.replace("own", "examples.near_enough:grade"): weight for name, weight in weights.items()}
    return await grade(row(grader=weights), PLAIN, r"\boxed{7}", scripted(**judgements), "strict")


async def test_what_one_of_several_cannot_read_or_grade_is_not_paid() -> None:
    right, none = Judgement(verdict=RIGHT), Judgement(verdict=Verdict.MALFORMED, reason="no_answer")
    failed = Judgement(verdict=Verdict.UNGRADED, reason="grader_failed")
    assert (await several({"math": 1, "own": 9}, math=none, own=right)).verdict == Verdict.MALFORMED
    said = await several({"math": 1, "own": 1}, math=none, own=failed)
    assert (said.verdict, said.reason) == (Verdict.UNGRADED, "grader_failed") and said.detail
    both = row(grader={"math": 1, "choice": 1}, answer="B", options=["x", "y"])
    said = await grade(both, PLAIN, "B", {"choice": ChoiceGrader()}, "strict")
    assert said.reason == "no_box"


def test_weights_that_are_none_are_named() -> None:
    for grader, said in (
        ({}, "its grader names none"), ({"math": None}, "its grader names none"),
        ({"math": 0}, "the weight 0 of its grader math is not a number from 0.000001 to 1,000,000"),
        ({"math": True}, "the weight True of its grader math"), ({"math": "1"}, "the weight '1' of its grader math"),
        ({"math": float("nan")}, "the weight nan of its grader math"), (["math"], r"the grader \['math'\] is none of"),
        ({"maths": 1}, "the grader 'maths' is none of value, calls"),
        ({"math": 1, "choice": 1}, "it has no field 'options', which the grader choice needs"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            row(grader=grader)
    (only,) = row(grader={"math": 2.0, "choice": None}).graders  # as parquet fills it in
    assert (only.name, only.weight) == ("math", 2.0)


async def test_several_graders_weigh_and_a_score_is_paid_between_wrong_and_right() -> None:
    right = Judgement(verdict=RIGHT, answer=(("answer", "7"),), parts={"exact": True})
    half = Judgement(verdict=WRONG, score=0.5, parts={"style": 0.25})
    said = await several({"math": 3, "own": 1}, math=right, own=half)
    assert (said.verdict, said.score, said.answer) == (WRONG, 0.875, (("answer", "7"),))
    assert said.parts == {
        "math": 1.0, "math.exact": True, "examples.near_enough.grade": 0.5, "examples.near_enough.grade.style": 0.25,
    }  # fmt: skip
    said = await several({"math": 0.1, "own": 0.7}, math=right, own=Judgement(verdict=RIGHT))
    assert (said.verdict, said.score) == (RIGHT, 1.0), "whatever the weights' sum rounds to"
    config = RewardConfig(wrong=-0.5, malformed=-1.0)
    assert [solver_reward(WRONG, config, score) for score in (None, 0.0, 0.5, 0.9)] == pytest.approx(
        [-0.5, -0.5, 0.25, 0.85]
    )
    assert solver_reward(RIGHT, config, 1.0) == 1.0 and solver_reward(Verdict.MALFORMED, config) == -1.0
