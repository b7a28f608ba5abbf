"""Open-Reasoner-Zero's JSON: pairs of a human's turn and the answer that the assistant's should come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from azr.datasets.prepare.example import Example, Options, Source, math_answer, math_prompt, text


def _read(row: Mapping[str, Any], options: Options) -> Iterator[Example]:
    question = text(row["0"]["value"], "the human's turn")
    yield Example(
        prompt=math_prompt([{"role": "user", "content": question}]),
        question=question,
        answer=math_answer(row["1"]["ground_truth"]["value"]),
        source="orz",
    )


SOURCE = Source(
    name="orz",
    about="Open-Reasoner-Zero's data/orz_math_*.json: questions and answers",
    # What a pair is read as, and what it is called where the file was turned into a table.
    fields=("0", "1"),
    form="[{from, value}, {from, ground_truth: {value}}]",
    grader="math",
    columns=("answer",),
    read=_read,
)
