"""Multiple choice: ARC-challenge and GPQA as LUFFY ships them, and MMLU-Pro."""

from __future__ import annotations

import re
import string

from azr.evaluation.graders.choice import Choice
from azr.evaluation.question import Question, Suite
from azr.evaluation.suites.files import ReadRow, Row, reader, text

_ASK = (
    "{question}\n\nThink step by step. The last line of your response is 'ANSWER: X', where X is the label of the "
    "right option: one of {labels}."
)
_OPTION = re.compile(r"^[ \t]*([A-Z1-9])\)", re.MULTILINE)
_GPQA_HEAD = re.compile(r"\AAnswer the following multiple choice question\..*?\n\n", re.DOTALL)


def _question(suite: str, id: str, group: str, question: str, gold: Choice) -> Question:
    if gold.label not in gold.labels:
        raise ValueError(f"the answer {gold.label!r} is none of the labels {', '.join(gold.labels)}")
    message = _ASK.format(question=question.strip(), labels=", ".join(gold.labels))
    return Question(id=id, suite=suite, group=group, message=message, problem=question.strip(), gold=gold)


def _luffy_row(suite: str) -> ReadRow:
    def read(row: Row, number: int) -> Question:
        turns = {turn["role"]: turn["content"] for turn in row["prompt"]}
        question = _GPQA_HEAD.sub("", turns["user"])
        labels = tuple(dict.fromkeys(_OPTION.findall(question)))
        gold = str(row["reward_model"]["ground_truth"]).strip()
        if gold.isdigit() and gold not in labels:
            # A few rows of ARC number in the answer what they letter in the question.
            gold = labels[int(gold) - 1]
        return _question(suite, str(row["extra_info"]["index"]), "all", question, Choice(gold, labels))

    return read


def _mmlu_row(row: Row, number: int) -> Question:
    options = [str(option) for option in row["options"]]
    labels = tuple(string.ascii_uppercase[: len(options)])
    index, answer = row["answer_index"], text(row, "answer")
    if not 0 <= index < len(labels) or labels[index] != answer:
        raise ValueError(f"answer {answer!r} is not option {index}")
    listed = "\n".join(f"{label}) {option}" for label, option in zip(labels, options, strict=True))
    question = f"{text(row, 'question').strip()}\n\n{listed}"
    return _question("mmlu-pro", str(row["question_id"]), text(row, "category"), question, Choice(answer, labels))


_ARC = ("luffy_valid_arc_c.parquet",)
_GPQA = ("luffy_valid_gpqa.parquet",)
_MMLU_PRO = ("mmlu_pro_test.parquet", "mmlu_pro_test.jsonl")

SUITES = (
    Suite(
        name="arc-c",
        files=_ARC,
        rows=1172,
        licence="CC-BY-SA-4.0",
        source="data/valid.arc_c.parquet of github.com/ElliottYan/LUFFY",
        grader="choice",
        read=reader(_ARC, _luffy_row("arc-c")),
        sha256={_ARC[0]: "7c3d1df8f11ade8be258ee0b0c7bbd6ac9a8e535dee3dbb3b5410f974f0d8fe5"},
    ),
    Suite(
        name="gpqa",
        files=_GPQA,
        rows=198,
        licence="CC-BY-4.0; its authors ask that no row be published",
        source="data/valid.gpqa.parquet of github.com/ElliottYan/LUFFY",
        grader="choice",
        read=reader(_GPQA, _luffy_row("gpqa")),
        sha256={_GPQA[0]: "55bde3943eeb6906d6d569d0ab882638c2f395a716ab5fa1fa20a186e722e58b"},
    ),
    Suite(
        name="mmlu-pro",
        files=_MMLU_PRO,
        rows=12032,
        licence="MIT",
        source="the test split of the data set TIGER-Lab/MMLU-Pro, saved under one of these names",
        grader="choice",
        read=reader(_MMLU_PRO, _mmlu_row),
    ),
)
