"""Published data sets of mathematics: LUFFY's, Open-Reasoner-Zero's and GSM8K."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from azr.datasets.prepare.example import Example, Options, Source, math_answer, math_prompt, source_name, text
from azr.evaluation.suites.golds import is_tests

_ROLES = ("system", "user", "assistant")
_PROGRAMS = ("code", "coding", "programming")
"""Abilities that rows of the same form have in other authors' files."""


def _read_luffy(row: Mapping[str, Any], options: Options) -> Iterator[Example]:
    if not isinstance(row["prompt"], list):
        raise TypeError("its prompt is no list of turns")
    said = (turn for turn in row["prompt"] if turn["role"] != "system" or str(turn["content"] or "").strip())
    turns = [_turn(turn) for turn in said]
    if not turns or turns[-1]["role"] != "user":
        raise ValueError("its prompt does not end with a user's turn")
    if options.system == "drop":
        turns = [turn for turn in turns if turn["role"] != "system"]
    answer = row["reward_model"]["ground_truth"]
    is_program = str(row.get("ability")).lower() in _PROGRAMS or is_tests(answer)
    yield Example(
        prompt=math_prompt(turns),
        question="\n\n".join(turn["content"] for turn in turns if turn["role"] == "user"),
        answer=None if is_program else math_answer(answer),
        is_other=is_program,
        source=source_name(row["data_source"], "luffy"),
        traces=_traces(row),
    )


def _turn(turn: Mapping[str, Any]) -> Mapping[str, str]:
    role = turn["role"]
    if role not in _ROLES:
        raise ValueError(f"the role {role!r} of a turn is none of {', '.join(_ROLES)}")
    return {"role": role, "content": text(turn["content"], "a turn of its prompt")}


def _traces(row: Mapping[str, Any]) -> tuple[str, ...]:
    """The responses as they stand, with a leading ``<think>``: whether a prompt opens it, a run's template says.

    As LUFFY's own code has it, a target is the first of its turns.
    """
    targets = row.get("target") or []
    if any(turn["role"] != "assistant" for turn in targets):
        raise ValueError("its target is no response of an assistant")
    found = [turn["content"] for turn in targets[:1]] + list(row.get("target_lst") or [])
    if not all(isinstance(trace, str) for trace in found):
        raise TypeError("its target holds a response that is no text")
    return tuple(dict.fromkeys(trace for trace in found if trace.strip()))


LUFFY = Source(
    name="luffy",
    about="LUFFY's parquet files, such as data/openr1.parquet: prompts, answers and DeepSeek-R1's responses",
    fields=("data_source", "prompt", "reward_model"),
    form="data_source, prompt [{role, content}], reward_model {ground_truth} and perhaps target [{role, content}]",
    grader="math",
    columns=("answer",),
    read=_read_luffy,
    options=("system",),
)


def _read_orz(row: Mapping[str, Any], options: Options) -> Iterator[Example]:
    question = text(row["0"]["value"], "the human's turn")
    yield Example(
        prompt=math_prompt([{"role": "user", "content": question}]),
        question=question,
        answer=math_answer(row["1"]["ground_truth"]["value"]),
        source="orz",
    )


ORZ = Source(
    name="orz",
    about="Open-Reasoner-Zero's data/orz_math_*.json: questions and answers",
    # What a pair is read as, and what it is called where the file was turned into a table.
    fields=("0", "1"),
    form="[{from, value}, {from, ground_truth: {value}}]",
    grader="math",
    columns=("answer",),
    read=_read_orz,
)


def _read_gsm8k(row: Mapping[str, Any], options: Options) -> Iterator[Example]:
    question = text(row["question"], "its question")
    _, marked, number = text(row["answer"], "its answer").rpartition("####")
    yield Example(
        prompt=math_prompt([{"role": "user", "content": question}]),
        question=question,
        answer=math_answer(number.replace(",", "")) if marked else None,
        source="gsm8k",
    )


GSM8K = Source(
    name="gsm8k",
    about="GSM8K's train and test files: questions, and answers that end with #### number",
    fields=("question", "answer"),
    form="question, answer",
    grader="math",
    columns=("answer",),
    read=_read_gsm8k,
)
