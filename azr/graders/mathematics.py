"""Grade final answers of mathematics with math-verify, in processes that can be killed."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass

from azr.errors import UserError
from azr.graders import math_spelling
from azr.graders.extraction import final_answer, gold_answer
from azr.graders.question import Question
from azr.isolated import WorkerError, Workers, WorkerTimeout
from azr.records import Judgement
from azr.tasks.base import Verdict

TIME_LIMIT_S = 10.0
"""Time limit for one answer, after which its process is killed; an answer that takes longer twice is wrong."""
_WRONG = {"right": False, "exact": False, "close": False}
_SCIENTIFIC = re.compile(r"(?<![\w.])([-+]?\d+(?:\.\d+)?|[-+]?\.\d+)[eE]([-+]?\d+)(?!\w)")
_BARE_POINT = re.compile(r"(?<!\d)(\d+)\.(?!\d)")
_DEGREES = re.compile(r" ?\^ ?(?:\{ ?)?\\circ(?: ?\})?| ?°| ?\\degree")
_MONEY = re.compile(r"^(-?)\s*(?:\\\$|[€£¥₹¢])\s*|\s*[€£¥₹¢]$")
_BASE = re.compile(r"^\s*(-?\w+?)_\{?(\d+)\}?\s*$")
_PAIR = re.compile(r"^\s*(?:\\left\s*)?([(\[]).*,.*?(?:\\right\s*)?([)\]])\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class MathGold:
    """Gold of `MathGrader`."""

    answers: tuple[str, ...]
    """Each of them is right."""
    tolerance: float | None = None
    """Absolute tolerance of the suite."""
    relative: bool = False
    """Add the part ``close``: whether the answer is within one part in 10,000."""


class MathGrader(AbstractAsyncContextManager["MathGrader"]):
    """Compares answers in at most ``workers`` processes: ``async with MathGrader() as grader``."""

    def __init__(self, workers: int = 2) -> None:
        """Raises UserError when math-verify is not installed."""
        check_math()
        self._workers = Workers("azr.graders.math_worker", size=workers)

    async def __aenter__(self) -> MathGrader:
        """Start the first process. Raises RuntimeError or TimeoutError when it does not start."""
        await self._workers.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._workers.end()

    async def grade(self, question: Question, response: str) -> Judgement:
        gold: MathGold = question.gold
        answer = final_answer(response)
        if answer is None:
            return Judgement(verdict=Verdict.MALFORMED, reason="no_answer")
        said = await self.compare([*map(gold_answer, gold.answers)], answer, gold.tolerance)
        if said is None:
            return Judgement(verdict=Verdict.UNGRADED, answer=(("answer", answer),), reason="grader_failed")
        verdict, parts = Verdict.RIGHT if said["right"] else Verdict.WRONG, dict[str, bool]()
        parts |= {"exact": said["exact"]} if gold.tolerance is not None else {}
        parts |= {"exact": said["exact"], "close": said["close"]} if gold.relative else {}
        return Judgement(verdict=verdict, answer=(("answer", answer),), parts=parts)

    async def compare(
        self, golds: Sequence[str], answer: str, tolerance: float | None = None
    ) -> dict[str, bool] | None:
        """Return whether an answer is ``right``, ``exact`` (without the tolerance) and ``close``; None if the worker
        failed, or took too long over the gold answer too."""
        golds, answer = math_spelling.by_name(golds, answer)
        decided = [math_spelling.clock_verdict(gold, answer) for gold in golds]
        # The answer may be the gold answer in words: a word, or the letter of an option with its text.
        said = (math_spelling.same_word(gold, answer) or math_spelling.names_option(gold, answer) for gold in golds)
        if any(decided) or any(said):
            return {"right": True, "exact": True, "close": True}
        left = [gold for gold, verdict in zip(golds, decided, strict=True) if verdict is None]
        left = [gold for gold in left if not differ_in_kind(gold, answer)]
        given = normal(answer if any(map(math_spelling.letter, left)) else math_spelling.WORDED_OPTION.sub("", answer))
        wanted = []
        for gold in map(normal, left):
            # A percentage is compared without its sign too.
            wanted += [gold, gold[:-1].removesuffix("\\").strip()] if gold.endswith("%") else [gold]
        if len(wanted) == len(left):
            # A percentage is a fraction of a hundred, which the library reads as a number of its own too.
            given = math_spelling.PERCENT.sub(r"\\frac{\1}{100}", given)
        if not left or not given:
            return dict(_WRONG)
        question = {"gold": wanted, "answer": given, "tolerance": tolerance}
        try:
            with suppress(WorkerTimeout):
                return dict(await self._workers.ask(question, TIME_LIMIT_S))
            await self._workers.ask(question | {"answer": wanted[0]}, TIME_LIMIT_S)
        except WorkerError:
            return None
        with suppress(WorkerError):
            return dict(await self._workers.ask(question, TIME_LIMIT_S))
        return dict(_WRONG)  # twice late, or late and failed, where its gold answer is compared in time


def check_math() -> None:
    """Raise UserError when math-verify is missing."""
    if importlib.util.find_spec("math_verify") is None:
        raise UserError("Mathematics takes math-verify, which is missing: run pip install -e '.[eval]' in the clone")


def normal(text: str) -> str:
    """Normalize an answer: remove dollars, units and degrees, and write numbers in LaTeX's notation."""
    # One space is as good as many, on which patterns spend time of the order of their number cubed.
    text = " ".join(text.translate(math_spelling.THIN).split()).strip("$").strip()
    for opened, closed in (("\\(", "\\)"), ("\\[", "\\]"), ("**", "**")):
        if text.startswith(opened) and text.endswith(closed) and len(text) > 4:
            text = text[2:-2].strip()
    text = text.removesuffix(".").strip() if not text.endswith("..") else text
    text = _DEGREES.sub("", math_spelling.respelled(text))
    text = math_spelling.without_words(math_spelling.without_modulus(text)).strip()
    text = _MONEY.sub(r"\1", text).replace("\\!", "").replace("\\%", "%").replace("%", "\\%")
    text = _BARE_POINT.sub(r"\1", text.replace("np.", "").replace("arcsin(", "\\arcsin("))
    text = _SCIENTIFIC.sub(lambda found: f"{found[1]} \\times 10^{{{int(found[2])}}}", text)
    dotted = math_spelling.list_with_dots(text)
    return dotted[0] if dotted else text.strip()


def differ_in_kind(gold: str, answer: str) -> bool:
    """Whether two answers differ in what the library does not see: the base of a number, an end of an interval, words,
    units, a modulus, the place of dots in a list, or an inequality."""
    written = [math_spelling.respelled(" ".join(text.split())) for text in (gold, answer)]
    if math_spelling.contradict(*written) or math_spelling.is_ambiguous(*written):
        return True
    dots = [listed and listed[1] for listed in map(math_spelling.list_with_dots, written)]
    if dots[0] != dots[1]:
        return True
    gold, answer = normal(gold), normal(answer)
    one, other = _BASE.match(gold), _BASE.match(answer)
    if one and other and one[2] != other[2]:
        return True
    if "\\cup" in gold or "\\cup" in answer:
        return False
    first, second = _PAIR.match(gold), _PAIR.match(answer)
    return bool(first and second and first.groups() != second.groups())
