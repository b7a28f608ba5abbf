import asyncio
import time
import weakref
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from azr.errors import UserError
from azr.evaluation.suites import SUITES
from azr.graders import make_grader, math_worker
from azr.graders import mathematics as math_grader
from azr.graders.choice import Choice, ChoiceGrader
from azr.graders.extraction import final_answer, placed_boxes
from azr.graders.mathematics import MathGold, MathGrader
from azr.graders.question import Question
from azr.tasks.base import Verdict
from tests.graders.grading import grade_all, needs, questions, reference
from tests.tables import table

pytestmark = pytest.mark.asyncio(loop_scope="session")
PAIRS = [line for line in Path(__file__).with_name("math_pairs.txt").read_text().splitlines() if line[:1] in ("=", "!")]
MATHEMATICS = ("aime24", "aime25", "amc23", "math500", "minerva", "olympiadbench", "gsm8k", "luffy")


def question(gold: object) -> Question:
    return Question(id="q", suite="s", group="all", message="?", gold=gold)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def grader():
    needs("math_verify")
    async with MathGrader() as grader:
        yield grader


@pytest.mark.parametrize("every", [60, pytest.param(1, marks=pytest.mark.long)])
async def test_references_are_right_and_empty_answers_are_not(grader, every):
    needs("pyarrow")
    rows = [row for name in MATHEMATICS for row in questions(name, every)]
    right = await grade_all(grader, ((row, reference(row)) for row in rows))
    wrong = await grade_all(grader, ((row, "\\boxed{123457.5}") for row in rows))
    empty = await grade_all(grader, ((row, "") for row in rows))
    assert [row.id for row, said in zip(rows, right, strict=True) if said.verdict is not Verdict.RIGHT] == []
    assert {said.verdict for said in wrong} == {Verdict.WRONG}
    assert {said.verdict for said in empty} == {Verdict.MALFORMED}


@pytest.mark.parametrize("name", ["arc-c", "gpqa"])
async def test_choices_are_judged(name):
    needs("pyarrow")
    rows = questions(name)
    async with make_grader(SUITES[name].grader) as grader:
        right = await grade_all(grader, ((row, reference(row)) for row in rows))
        empty = await grade_all(grader, ((row, "") for row in rows))
        always = await grade_all(grader, ((row, f"ANSWER: {row.gold.labels[0]}") for row in rows))
    assert {said.verdict for said in right} == {Verdict.RIGHT}
    assert {said.verdict for said in empty} == {Verdict.MALFORMED}
    share = sum(said.verdict is Verdict.RIGHT for said in always) / len(rows)
    assert 0.15 < share < 0.35


async def test_answers_are_compared_as_by_hand(grader):
    pairs = [pair[2:].split(" | ") for pair in PAIRS]
    found = await asyncio.gather(*(grader.compare([gold], answer) for gold, answer in pairs))
    rights = [None if said is None else said["right"] for said in found]
    assert [pair for pair, right in zip(PAIRS, rights, strict=True) if right is not (pair[0] == "=")] == []
    assert len(PAIRS) > 300


async def test_tolerances_are_those_of_the_suite():
    needs("math_verify")
    async with MathGrader(workers=1) as grader:
        for gold, answer, verdict, parts in (
            (MathGold(("4.5",), tolerance=0.1), "4.58", Verdict.RIGHT, {"exact": False}),
            (MathGold(("1000000000000000001",), tolerance=0.1), "10^{18}", Verdict.WRONG, {"exact": False}),
            (MathGold(("4.5",), relative=True), "4.5001", Verdict.WRONG, {"exact": False, "close": True}),
            (MathGold(("4.5e33",), relative=True), "4.6e33", Verdict.WRONG, {"exact": False, "close": False}),
        ):
            said = await grader.grade(question(gold), f"\\boxed{{{answer}}}")
            assert (said.verdict, said.parts) == (verdict, parts)


BOMBS = {
    "tower": "9^{9^{9^{9^{9}}}}", "factorials": "((((9!)!)!)!)!", "nesting": "\\frac{1}{" * 150 + "2" + "}" * 150,
    "roots": "\\sqrt{" * 200 + "2" + "}" * 200, "product": "(x+1)^{99999}", "digits": "9" * 1_900,
    "sum": "\\sum_{n=1}^{10^{12}} \\frac{1}{n^2}", "braces": "{" * 900 + "}" * 900, "nothing": "\\\\\\\\",
    "control": "\\begin{pmatrix}" * 60, "zero": "\\frac{1}{0}",
}  # fmt: skip


@pytest.mark.parametrize("gold", [
    "Answer: 72", "answer is 72.", "<answer>72</answer>", "**72**", "\u200b72", "So \\boxed{72}.", "6 * 12\n#### 72",
])  # fmt: skip
async def test_gold_answers_are_read_as_answers_are(grader, gold):
    said = await grade_all(grader, [(question(MathGold((gold,))), f"\\boxed{{{each}}}") for each in ("72", "24")])
    assert [each.verdict for each in said] == [Verdict.RIGHT, Verdict.WRONG]


async def test_one_right_answer_of_several_is_enough_whatever_the_others_are(grader):
    for golds, answer in ((["(2,5)", "[2,5]"], "(2,5)"), (["11_2", "11_3"], "11_3"), (["7:00", "8"], "8")):
        assert (await grader.compare(golds, answer))["right"]
        assert (await grader.compare(golds[::-1], answer))["right"]
    assert not (await grader.compare(["(2,5)", "[2,5]"], "[2,5)"))["right"]


async def test_the_memory_that_an_answer_took_is_free_for_its_gold_answer(monkeypatch):
    """Else a gold answer that finds no memory either would leave the answer ungraded, which costs it nothing."""
    taken = list[weakref.ref[set[str]]]()

    def read(text: str) -> list[object]:
        large = {text}
        taken.append(weakref.ref(large))
        raise MemoryError

    asked = {"gold": ["7"], "answer": "8", "tolerance": None}
    monkeypatch.setattr(math_worker, "_read", read)
    monkeypatch.setattr(math_worker, "_read_gold", lambda text: [7])
    monkeypatch.setattr(math_worker, "_equal", lambda gold, answer: taken[0]() is None)
    said = math_worker._compare(asked)
    assert taken and not said["right"]


async def test_what_cannot_be_read_is_wrong_and_not_ungraded(grader):
    asked = question(MathGold(("5",)))
    texts = ["x+", "\\frac{1}{0}", "9^{9^{9^{9}}}", "1000000!", "((((", "2^{100000000}", "\\binom{900000}{400000}"]
    said = await grade_all(grader, [(asked, f"\\boxed{{{text}}}") for text in texts])
    assert {each.verdict for each in said} == {Verdict.WRONG}


@given(number=st.integers(1_000, 10**12), blank=st.sampled_from(["\\,", "\\;", "~", "{,}", ",\\!", "\\ ", "\u202f"]))
async def test_numbers_in_groups_are_read_as_one(number, blank):
    grouped = f"{number:,}".replace(",", blank)
    assert math_grader.normal(grouped) == str(number)
    assert math_grader.normal(grouped[:-1]) != str(number)


async def test_what_the_library_prints_is_no_verdict(monkeypatch, tmp_path):
    (tmp_path / "math_verify").mkdir()
    for name, text in {
        "__init__": "def parse(text, *how, **more):\n    print('parsing')\n    return [text]\n"
        "def verify(gold, answer, **more):\n    print('comparing')\n    return gold == answer\n"
        "LatexExtractionConfig = dict",
        "grader": "print('loading')\nsympy_numeric_eq = None",
    }.items():
        (tmp_path / "math_verify" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    async with MathGrader(workers=1) as grader:
        said = await grade_all(grader, [(question(MathGold(("7",))), f"\\boxed{{{answer}}}") for answer in (7, 8)])
    assert [each.verdict for each in said] == [Verdict.RIGHT, Verdict.WRONG]


@pytest.mark.parametrize(
    "names", [("tower", "nesting", "digits"), pytest.param(tuple(BOMBS), marks=pytest.mark.long)], ids=["few", "all"]
)
async def test_bombs_block_nobody(monkeypatch, names):
    needs("math_verify")
    monkeypatch.setattr(math_grader, "TIME_LIMIT_S", 3.0)
    asked = question(MathGold(("7",)))
    million = "x" * 500_000 + "\\boxed{7}" + "{" * 500_000
    async with MathGrader() as grader:
        # Started before anything is timed.
        assert [said.verdict for said in await grade_all(grader, [(asked, "7")] * 2)] == [Verdict.RIGHT] * 2
        started = time.monotonic()
        pairs = [(asked, f"\\boxed{{{bomb}}}") for bomb in map(BOMBS.get, names)]
        said = await grade_all(grader, [pair for bomb in pairs for pair in (bomb, (asked, "So \\boxed{7}."))])
        assert {each.verdict for each in said[1::2]} == {Verdict.RIGHT}
        assert Verdict.RIGHT not in {each.verdict for each in said[::2]}
        texts = "\\boxed{" * 140_000, million, "\\boxed{" + "7" * 10**6 + "}", "1," * 500_000
        long = [(asked, text) for text in texts]
        verdicts = [each.verdict for each in await grade_all(grader, long)]
        assert Verdict.RIGHT not in (verdicts[0], verdicts[2], verdicts[3])
    assert time.monotonic() - started < 180


async def test_a_worker_that_dies_is_replaced_and_its_question_asked_again():
    needs("math_verify")
    async with MathGrader(workers=1) as grader:
        asked = question(MathGold(("7",)))
        assert (await grader.grade(asked, "14/2")).verdict is Verdict.RIGHT
        worker = grader._workers._processes[0]
        assert worker._process is not None
        worker._process.kill()
        await worker._process.wait()
        assert (await grader.grade(asked, "14/2")).verdict is Verdict.RIGHT


@pytest.mark.parametrize(
    ("response", "answer"), [*table(__file__, "final answers"), ("\\boxed{" + "1" * 3_000 + "}", None)]
)
async def test_final_answers_are_found(response, answer):
    assert final_answer(response) == answer


@pytest.mark.parametrize(("response", "label"), table(__file__, "labels"))
async def test_labels_are_found(response, label):
    said = await ChoiceGrader().grade(question(Choice("A", ("A", "B", "C", "D"))), response)
    assert said.answer == (None if label is None else (("answer", label),))
    assert said.verdict is (Verdict.MALFORMED if label is None else Verdict.RIGHT if label == "A" else Verdict.WRONG)


async def test_boxes_have_balanced_braces_and_a_missing_library_is_one_sentence(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install -e '\.\[eval\]'"):
        MathGrader()
    assert [content for *_, content in placed_boxes("\\boxed{a}\\boxed{b{c}}")] == ["a", "b{c}"]
    assert len(placed_boxes("\\boxed{" * 999 + "}" * 999)) == 999
