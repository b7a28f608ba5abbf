"""Published data sets and how their rows become examples: LUFFY, Open-Reasoner-Zero, GSM8K and CRUXEval."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from azr.evaluation.graders.value import ProgramValue
from azr.evaluation.question import GraderName
from azr.evaluation.suites.own import is_tests
from azr.evaluation.suites.short_answers import chat_message, math_message

_ROLES = ("system", "user", "assistant")
_PROGRAMS = ("code", "coding", "programming")
"""Abilities that rows of LUFFY's form have in other authors' files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options of `azr data prepare`; each belongs to one source."""

    system: str = "keep"
    """``keep`` or ``drop`` LUFFY's system turn."""
    asked: tuple[str, ...] = ("output", "input")
    """Questions about CRUXEval's programs, one row each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One question as it will be written."""

    prompt: tuple[Mapping[str, str], ...]
    """Turns of ``role`` and ``content``; the last is the user's."""
    question: str
    """The problem without instructions: compared with the questions of evaluation suites."""
    answer: Mapping[str, str] | None
    """The fields of its grader; None where the source states no answer, or one for another grader."""
    is_other: bool = False
    """The row is of another field than its source's grader judges."""
    source: str
    traces: tuple[str, ...] = ()
    """Whole responses of another model."""
    part: str = ""
    """Tells apart the examples of one row of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A published data set: the form of its files and what their rows become."""

    name: str
    about: str
    fields: tuple[str, ...]
    """Those that every row has."""
    form: str
    """How a row looks, for somebody whose file has others."""
    read: Callable[[Mapping[str, Any], Options], Iterable[Example]]
    """The examples of a row. Raises one of `azr.evaluation.suites.files.ROW_ERRORS` where it is none of this source."""
    grader: GraderName = "math"
    columns: tuple[str, ...] = ("answer",)
    """The grader's fields that its rows are written with, all of them text."""
    options: tuple[str, ...] = ()
    """Names of the `Options` that this source takes."""


def _math_example(turns: Sequence[Mapping[str, str]], answer: object, source: str, **more: Any) -> Example:
    """Return an example; its last turn says in which form the answer is graded, where no turn speaks of a box."""
    prompt = tuple(turns)
    if not any("\\boxed" in turn["content"] for turn in turns):
        prompt = (*turns[:-1], {"role": "user", "content": math_message(turns[-1]["content"])})
    question = "\n\n".join(turn["content"] for turn in turns if turn["role"] == "user")
    return Example(prompt=prompt, question=question, answer=_math_answer(answer), source=source, **more)


def _math_answer(value: object) -> Mapping[str, str] | None:
    """Return the grader's field of an answer that is text or a number; None for no answer. Raises TypeError for all
    else, and ValueError for what is no finite number."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"its answer is neither text nor a number, but {type(value).__name__}")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"its answer is {value}, which is no number")
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value).strip()
    return {"answer": text} if text else None


def _text(value: object, what: str) -> str:
    """Return a value that must be text that says something. Raises TypeError or ValueError."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is no text, but {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"{what} is empty")
    return value


def _read_luffy(row: Mapping[str, Any], options: Options) -> Iterator[Example]:
    """Responses stay as they are, with a leading ``<think>``: whether a prompt opens it, a run's template says."""
    if not isinstance(row["prompt"], list):
        raise TypeError("its prompt is no list of turns")
    said = (turn for turn in row["prompt"] if turn["role"] != "system" or str(turn["content"] or "").strip())
    turns = []
    for turn in said:
        if (role := turn["role"]) not in _ROLES:
            raise ValueError(f"the role {role!r} of a turn is none of {', '.join(_ROLES)}")
        turns.append({"role": role, "content": _text(turn["content"], "a turn of its prompt")})
    if not turns or turns[-1]["role"] != "user":
        raise ValueError("its prompt does not end with a user's turn")
    if options.system == "drop":
        turns = [turn for turn in turns if turn["role"] != "system"]
    answer = row["reward_model"]["ground_truth"]
    is_program = str(row.get("ability")).lower() in _PROGRAMS or is_tests(answer)
    # A tag may hold other characters than the name of a source, or be none.
    source = re.sub(r"[^\w.-]+", "_", str(row["data_source"] or "")).strip("_") or "luffy"
    given = row.get("target") or []
    if any(turn["role"] != "assistant" for turn in given):
        raise ValueError("its target is no response of an assistant")
    # As LUFFY's own code has it, a target is the first of its turns.
    traces = [turn["content"] for turn in given[:1]] + list(row.get("target_lst") or [])
    if not all(isinstance(trace, str) for trace in traces):
        raise TypeError("its target holds a response that is no text")
    kept = tuple(dict.fromkeys(trace for trace in traces if trace.strip()))
    yield _math_example(turns, None if is_program else answer, source, is_other=is_program, traces=kept)


def _read_orz(row: Mapping[str, Any], options: Options) -> Iterator[Example]:
    question = _text(row["0"]["value"], "the human's turn")
    yield _math_example([{"role": "user", "content": question}], row["1"]["ground_truth"]["value"], "orz")


def _read_gsm8k(row: Mapping[str, Any], options: Options) -> Iterator[Example]:
    question = _text(row["question"], "its question")
    _, marked, number = _text(row["answer"], "its answer").rpartition("####")
    answer = number.replace(",", "") if marked else None
    yield _math_example([{"role": "user", "content": question}], answer, "gsm8k")


def _read_cruxeval(row: Mapping[str, Any], options: Options) -> Iterator[Example]:
    program = _text(row["code"], "its code")
    ast.parse(program)
    given, returned = row["input"], row["output"]
    if not isinstance(given, str) or not (returned is None or isinstance(returned, str)):
        raise TypeError("its input or output is no text")
    for asked in options.asked:
        gold = ProgramValue(program, cast(Literal["output", "input"], asked), given, returned or "")
        yield Example(
            prompt=({"role": "user", "content": chat_message(gold)},),
            question=program,
            answer={"program": program, "input": given, "output": returned, "asked": asked} if returned else None,
            source=f"cruxeval-{asked[0]}",
            part=asked,
        )


_ALL = (
    Source(
        name="luffy",
        about="LUFFY's parquet files, such as data/openr1.parquet: prompts, answers and DeepSeek-R1's responses",
        fields=("data_source", "prompt", "reward_model"),
        form="data_source, prompt [{role, content}], reward_model {ground_truth} and perhaps target [{role, content}]",
        read=_read_luffy, options=("system",),
    ),
    Source(
        name="orz",
        about="Open-Reasoner-Zero's data/orz_math_*.json: questions and answers",
        # What a pair is read as, and what it is called where the file was turned into a table.
        fields=("0", "1"),
        form="[{from, value}, {from, ground_truth: {value}}]", read=_read_orz,
    ),
    Source(
        name="gsm8k",
        about="GSM8K's train and test files: questions, and answers that end with #### number",
        fields=("question", "answer"), form="question, answer", read=_read_gsm8k,
    ),
    Source(
        name="cruxeval",
        about="CRUXEval's data/cruxeval.jsonl: programs with an input and the output",
        fields=("code", "input", "output"), form="code, input, output", read=_read_cruxeval,
        grader="value", columns=("program", "input", "output", "asked"), options=("asked",),
    ),
)  # fmt: skip
SOURCES: dict[str, Source] = {source.name: source for source in _ALL}
