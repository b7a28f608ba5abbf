"""GSM8K: word problems whose worked answers end with ``#### number``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from azr.datasets.prepare.example import Example, Options, Source, math_answer, math_prompt, text


def _read(row: Mapping[str, Any], options: Options) -> Iterator[Example]:
    question = text(row["question"], "its question")
    _, marked, number = text(row["answer"], "its answer").rpartition("####")
    yield Example(
        prompt=math_prompt([{"role": "user", "content": question}]),
        question=question,
        answer=math_answer(number.replace(",", "")) if marked else None,
        source="gsm8k",
    )


SOURCE = Source(
    name="gsm8k",
    about="GSM8K's train and test files: questions, and answers that end with #### number",
    fields=("question", "answer"),
    form="question, answer",
    grader="math",
    columns=("answer",),
    read=_read,
)
