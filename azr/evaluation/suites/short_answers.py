"""Suites of short answers: mathematics, multiple choice, and the values that programs take and return."""

from __future__ import annotations

import ast
import re
import string
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Literal

from azr.evaluation.graders.choice import Choice
from azr.evaluation.graders.extraction import last_box
from azr.evaluation.graders.maths import MathGold
from azr.evaluation.graders.value import ProgramValue
from azr.evaluation.question import Question, Suite
from azr.evaluation.suites.files import ReadRow, Row, find, questions, reader, text
from azr.evaluation.suites.value_prompts import CHAT, FORMATS, value_question

_MATH = "{problem}\n\nReason step by step, and put the final answer within \\boxed{{}}."
_CHOICE = (
    "{question}\n\nThink step by step. The last line of your response is 'ANSWER: X', where X is the label of the "
    "right option: one of {labels}."
)
_OPTION = re.compile(r"^[ \t]*([A-Z1-9])\)", re.MULTILINE)
_GPQA_HEAD = re.compile(r"\AAnswer the following multiple choice question\..*?\n\n", re.DOTALL)


def math_message(problem: str) -> str:
    """Return the user turn of a mathematical problem."""
    return _MATH.format(problem=problem.strip())


def _math(suite: str, id: str, group: str, problem: str, gold: MathGold) -> Question:
    if not all(answer.strip() for answer in gold.answers):
        raise ValueError("the answer is empty")
    return Question(id=id, suite=suite, group=group, message=math_message(problem), problem=problem, gold=gold)


def _number(value: object) -> str:
    """Return a gold answer as text; a float in the file must be a whole number."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError("the answer is neither text nor a number")
    return str(value)


def _aime24(row: Row, number: int) -> Question:
    gold = MathGold((_number(row["final_answer"]),))
    return _math("aime24", str(number), "all", row["prompt"][0]["value"], gold)


def _contest(suite: str, row: Row, number: int) -> Question:
    return _math(suite, str(row["id"]), "all", text(row, "problem"), MathGold((_number(row["answer"]),)))


def _math500(row: Row, number: int) -> Question:
    gold = MathGold((text(row, "answer"),))
    return _math("math500", text(row, "unique_id"), f"level {row['level']}", text(row, "problem"), gold)


def _minerva(row: Row, number: int) -> Question:
    answer = last_box(text(row, "solution"))
    if answer is None:
        raise ValueError("its solution has no box")
    gold = MathGold((answer,), relative=True)
    return _math("minerva", str(row["idx"]), text(row, "type"), text(row, "problem"), gold)


def _olympiadbench(row: Row, number: int) -> Question:
    (answer,) = row["final_answer"]
    stated = (row.get("error") or "").strip().strip("$")
    problem = "\n\n".join(filter(None, [row.get("context"), text(row, "question")]))
    gold = MathGold((answer.strip().rstrip("."),), tolerance=float(stated) if stated else None)
    return _math("olympiadbench", str(row["id"]), text(row, "subfield"), problem, gold)


def _gsm8k(row: Row, number: int) -> Question:
    _, marked, answer = text(row, "answer").rpartition("####")
    if not marked:
        raise ValueError("its answer has no ####")
    gold = MathGold((answer.strip().replace(",", ""),))
    return _math("gsm8k", str(row.get("idx", number)), "all", text(row, "question"), gold)


def _read_luffy(folder: Path) -> list[Question]:
    """Drop repeated questions: the file has AIME and AMC 32 times, but an evaluation draws its samples itself."""
    seen: set[str] = set()

    def read(row: Row, number: int) -> Question | None:
        (problem,) = (turn["content"] for turn in row["prompt"] if turn["role"] == "user")
        source, truth = text(row, "data_source"), str(row["reward_model"]["ground_truth"])
        id = f"{source}-{row['extra_info']['index']}"
        if id in seen:
            return None
        seen.add(id)
        gold = MathGold((_number(float(truth)) if truth.endswith(".0") else truth,))
        return _math("luffy", id, source, problem, gold)

    return questions(find(folder, _LUFFY), read)


def _choice(suite: str, id: str, group: str, question: str, gold: Choice) -> Question:
    if gold.label not in gold.labels:
        raise ValueError(f"the answer {gold.label!r} is none of the labels {', '.join(gold.labels)}")
    message = _CHOICE.format(question=question.strip(), labels=", ".join(gold.labels))
    return Question(id=id, suite=suite, group=group, message=message, problem=question.strip(), gold=gold)


def _luffy_choice(suite: str, row: Row, number: int) -> Question:
    turns = {turn["role"]: turn["content"] for turn in row["prompt"]}
    question = _GPQA_HEAD.sub("", turns["user"])
    labels = tuple(dict.fromkeys(_OPTION.findall(question)))
    gold = str(row["reward_model"]["ground_truth"]).strip()
    if gold.isdigit() and gold not in labels:
        # A few rows of ARC number in the answer what they letter in the question.
        gold = labels[int(gold) - 1]
    return _choice(suite, str(row["extra_info"]["index"]), "all", question, Choice(gold, labels))


def _mmlu_pro(row: Row, number: int) -> Question:
    options = [str(option) for option in row["options"]]
    labels = tuple(string.ascii_uppercase[: len(options)])
    index, answer = row["answer_index"], text(row, "answer")
    if not 0 <= index < len(labels) or labels[index] != answer:
        raise ValueError(f"answer {answer!r} is not option {index}")
    listed = "\n".join(f"{label}) {option}" for label, option in zip(labels, options, strict=True))
    question = f"{text(row, 'question').strip()}\n\n{listed}"
    return _choice("mmlu-pro", str(row["question_id"]), text(row, "category"), question, Choice(answer, labels))


def _cruxeval(asked: Literal["input", "output"], suite: str, prompt_format: str, row: Row, number: int) -> Question:
    program = text(row, "code")
    ast.parse(program)
    gold = ProgramValue(program, asked, text(row, "input"), text(row, "output"))
    return value_question(suite, text(row, "id"), "all", gold, prompt_format)


def _execution(suite: str, prompt_format: str, row: Row, number: int) -> Question:
    program, entry = text(row, "code"), text(row, "function_name")
    call = ast.parse(text(row, "input"), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != entry:
        raise ValueError(f"input is no call of {entry}")
    arguments = ast.get_source_segment(row["input"], call) or ""
    arguments = arguments[arguments.index("(") + 1 : arguments.rindex(")")]
    gold = ProgramValue(program, "output", arguments, text(row, "output"), entry)
    return value_question(suite, str(row["id"]), str(row.get("difficulty", "all")), gold, prompt_format)


def _suite(
    grader: str, name: str, files: str | tuple[str, ...], rows: int, licence: str, source: str, read: ReadRow,
    sha256: str = "", metric: str = "accuracy",
) -> Suite:  # fmt: skip
    """Return a suite that is read row by row. ``sha256``: of the first file, if it is known."""
    files = (files,) if isinstance(files, str) else files
    return Suite(
        name=name, files=files, rows=rows, licence=licence, source=source, grader=grader, read=reader(files, read),
        metric=metric, sha256={files[0]: sha256} if sha256 else {},
    )  # fmt: skip


_LUFFY = ("luffy_valid_all.parquet",)
_LUFFY_DATA = "of github.com/ElliottYan/LUFFY"
_MAA = "MAA: do not pass on"
_AZR = "the evaluation data of github.com/LeapLabTHU/Absolute-Zero-Reasoner"
_ORZ = "the evaluation data of github.com/Open-Reasoner-Zero/Open-Reasoner-Zero"
_CRUXEVAL_DATA = "data/cruxeval.jsonl of github.com/facebookresearch/cruxeval"
_CRUXEVAL_SHA256 = "8368b81047dc5014e4caf5a2f97604eff7644e0ecd7415e3ceeb184bbc2e0c96"


def _in_every_format(
    name: str, files: str | tuple[str, ...], rows: int, licence: str, source: str,
    read: Callable[[str, str, Row, int], Question], sha256: str = "",
) -> Iterator[Suite]:  # fmt: skip
    """Yield the suite that asks in chat, and those that ask the same in the other `FORMATS`: ``NAME:completion``."""
    for each in FORMATS:
        named = name if each == CHAT else f"{name}:{each}"
        yield _suite("value", named, files, rows, licence, source, partial(read, named, each), sha256, "pass@1")


VALUES = (
    *_in_every_format(
        "cruxeval-i", "cruxeval.jsonl", 800, "MIT", _CRUXEVAL_DATA, partial(_cruxeval, "input"), _CRUXEVAL_SHA256,
    ),
    *_in_every_format(
        "cruxeval-o", "cruxeval.jsonl", 800, "MIT", _CRUXEVAL_DATA, partial(_cruxeval, "output"), _CRUXEVAL_SHA256,
    ),
    *_in_every_format(
        "livecodebench-execution", ("livecodebench_execution.jsonl", "execution-v2.jsonl"), 479, "CC (data card)",
        "test.jsonl of the data set livecodebench/execution-v2, saved under one of these names", _execution,
    ),
)  # fmt: skip
TEXTS = (
    _suite(
        "math", "aime24", "aime2024.json", 30, _MAA, f"data/eval_data/aime2024.json of {_ORZ}", _aime24,
        "ef02255e61539115f6274a0765ff10076df416db5f90d41500d472cb5184e560",
    ),
    _suite(
        "math", "aime25", "aime2025.jsonl", 30, _MAA, f"aime25 of {_AZR}", partial(_contest, "aime25"),
        "20c1ca392758d96bd1e28af15d9f30df5660257927cacc9eac7301c29f677d1a",
    ),
    _suite(
        "math", "amc23", "amc23.jsonl", 40, _MAA, f"amc23 of {_AZR}", partial(_contest, "amc23"),
        "43707e1ca784602d8479de24ee8ce36609dbebc46dd152b0b12a46611aa898a4",
    ),
    _suite(
        "math", "math500", "math500.jsonl", 500, "MIT", "test.jsonl of the data set HuggingFaceH4/MATH-500", _math500,
        "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132",
    ),
    _suite(
        "math", "minerva", "minerva_math.jsonl", 272, "CC-BY-NC-SA (MIT OpenCourseWare)", f"minerva_math of {_AZR}",
        _minerva, "0e656b430d3a0a1dab6aa853f453ba3805e28e2cabe4fc72486a897cc09d8ba2",
    ),
    _suite(
        "math", "olympiadbench", "olympiadbench.jsonl", 675, "Apache-2.0", f"olympiadbench of {_AZR}", _olympiadbench,
        "bb8c1e38a16ea9eacb77530315a674d883f267fbff79183effc53681b4fcc416",
    ),
    _suite(
        "math", "gsm8k", "gsm8k.jsonl", 1319, "MIT", f"gsm8k of {_AZR}", _gsm8k,
        "9f098df7ff4522078d6ccec27a5c38a454790fdb51131bedfaa0e490070d5394",
    ),
    Suite(
        name="luffy", files=_LUFFY, rows=1590, licence="as AIME, AMC, MATH, Minerva and OlympiadBench",
        source=f"data/valid.all.parquet {_LUFFY_DATA}", grader="math", read=_read_luffy, metric="avg@32",
        sha256={_LUFFY[0]: "92503399b914212d2e3d85839882bc1376a0111652fec0dcb722e86307e97617"},
    ),
    _suite(
        "choice", "arc-c", "luffy_valid_arc_c.parquet", 1172, "CC-BY-SA-4.0", f"data/valid.arc_c.parquet {_LUFFY_DATA}",
        partial(_luffy_choice, "arc-c"), "7c3d1df8f11ade8be258ee0b0c7bbd6ac9a8e535dee3dbb3b5410f974f0d8fe5",
    ),
    _suite(
        "choice", "gpqa", "luffy_valid_gpqa.parquet", 198, "CC-BY-4.0; its authors ask that no row be published",
        f"data/valid.gpqa.parquet {_LUFFY_DATA}", partial(_luffy_choice, "gpqa"),
        "55bde3943eeb6906d6d569d0ab882638c2f395a716ab5fa1fa20a186e722e58b",
    ),
    _suite(
        "choice", "mmlu-pro", ("mmlu_pro_test.parquet", "mmlu_pro_test.jsonl"), 12032, "MIT",
        "the test split of the data set TIGER-Lab/MMLU-Pro, saved under one of these names", _mmlu_pro,
    ),
)  # fmt: skip
