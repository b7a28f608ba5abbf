"""Mathematics with final answers: AIME, AMC, MATH-500, Minerva, OlympiadBench, GSM8K, and LUFFY's collection."""

from __future__ import annotations

from pathlib import Path

from azr.evaluation.graders.extraction import last_box
from azr.evaluation.graders.maths import MathGold
from azr.evaluation.question import Question, Suite
from azr.evaluation.suites.files import ReadRow, Row, find, questions, reader, text

_ASK = "{problem}\n\nReason step by step, and put the final answer within \\boxed{{}}."


def ask(problem: str) -> str:
    """Return the user turn of a mathematical problem."""
    return _ASK.format(problem=problem.strip())


def _question(suite: str, id: str, group: str, problem: str, gold: MathGold) -> Question:
    if not all(answer.strip() for answer in gold.answers):
        raise ValueError("the answer is empty")
    return Question(id=id, suite=suite, group=group, message=ask(problem), problem=problem, gold=gold)


def _number(value: object) -> str:
    """Return a gold answer as text; a float in the file must be a whole number."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError("the answer is neither text nor a number")
    return str(value)


def _aime24(row: Row, number: int) -> Question:
    gold = MathGold((_number(row["final_answer"]),))
    return _question("aime24", str(number), "all", row["prompt"][0]["value"], gold)


def _aime25(row: Row, number: int) -> Question:
    gold = MathGold((_number(row["answer"]),))
    return _question("aime25", str(row["id"]), "all", text(row, "problem"), gold)


def _amc23(row: Row, number: int) -> Question:
    return _question("amc23", str(row["id"]), "all", text(row, "problem"), MathGold((_number(row["answer"]),)))


def _math500(row: Row, number: int) -> Question:
    gold = MathGold((text(row, "answer"),))
    return _question("math500", text(row, "unique_id"), f"level {row['level']}", text(row, "problem"), gold)


def _minerva(row: Row, number: int) -> Question:
    answer = last_box(text(row, "solution"))
    if answer is None:
        raise ValueError("its solution has no box")
    return _question(
        "minerva", str(row["idx"]), text(row, "type"), text(row, "problem"), MathGold((answer,), relative=True)
    )


def _olympiadbench(row: Row, number: int) -> Question:
    (answer,) = row["final_answer"]
    stated = (row.get("error") or "").strip().strip("$")
    tolerance = float(stated) if stated else None
    problem = "\n\n".join(filter(None, [row.get("context"), text(row, "question")]))
    gold = MathGold((answer.strip().rstrip("."),), tolerance=tolerance)
    return _question("olympiadbench", str(row["id"]), text(row, "subfield"), problem, gold)


def _gsm8k(row: Row, number: int) -> Question:
    _, marked, answer = text(row, "answer").rpartition("####")
    if not marked:
        raise ValueError("its answer has no ####")
    gold = MathGold((answer.strip().replace(",", ""),))
    return _question("gsm8k", str(row.get("idx", number)), "all", text(row, "question"), gold)


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
        return _question("luffy", id, source, problem, gold)

    return questions(find(folder, _LUFFY), read)


def _suite(name: str, file: str, rows: int, licence: str, source: str, sha256: str, read: ReadRow) -> Suite:
    return Suite(
        name=name,
        files=(file,),
        rows=rows,
        licence=licence,
        source=source,
        grader="math",
        read=reader((file,), read),
        sha256={file: sha256},
    )


_LUFFY = ("luffy_valid_all.parquet",)
_MAA = "MAA: do not pass on"
_AZR = "the evaluation data of github.com/LeapLabTHU/Absolute-Zero-Reasoner"
_ORZ = "the evaluation data of github.com/Open-Reasoner-Zero/Open-Reasoner-Zero"

SUITES = (
    _suite(
        "aime24", "aime2024.json", 30, _MAA, f"data/eval_data/aime2024.json of {_ORZ}",
        "ef02255e61539115f6274a0765ff10076df416db5f90d41500d472cb5184e560", _aime24,
    ),
    _suite(
        "aime25", "aime2025.jsonl", 30, _MAA, f"aime25 of {_AZR}",
        "20c1ca392758d96bd1e28af15d9f30df5660257927cacc9eac7301c29f677d1a", _aime25,
    ),
    _suite(
        "amc23", "amc23.jsonl", 40, _MAA, f"amc23 of {_AZR}",
        "43707e1ca784602d8479de24ee8ce36609dbebc46dd152b0b12a46611aa898a4", _amc23,
    ),
    _suite(
        "math500", "math500.jsonl", 500, "MIT", "test.jsonl of the data set HuggingFaceH4/MATH-500",
        "35dc41080a3680858b27fa7e0533d2d547825316fc5dafe5d316f4ccc5a06132", _math500,
    ),
    _suite(
        "minerva", "minerva_math.jsonl", 272, "CC-BY-NC-SA (MIT OpenCourseWare)", f"minerva_math of {_AZR}",
        "0e656b430d3a0a1dab6aa853f453ba3805e28e2cabe4fc72486a897cc09d8ba2", _minerva,
    ),
    _suite(
        "olympiadbench", "olympiadbench.jsonl", 675, "Apache-2.0", f"olympiadbench of {_AZR}",
        "bb8c1e38a16ea9eacb77530315a674d883f267fbff79183effc53681b4fcc416", _olympiadbench,
    ),
    _suite(
        "gsm8k", "gsm8k.jsonl", 1319, "MIT", f"gsm8k of {_AZR}",
        "9f098df7ff4522078d6ccec27a5c38a454790fdb51131bedfaa0e490070d5394", _gsm8k,
    ),
    Suite(
        name="luffy",
        files=_LUFFY,
        rows=1590,
        licence="as AIME, AMC, MATH, Minerva and OlympiadBench",
        source="data/valid.all.parquet of github.com/ElliottYan/LUFFY",
        grader="math",
        read=_read_luffy,
        metric="avg@32",
        sha256={_LUFFY[0]: "92503399b914212d2e3d85839882bc1376a0111652fec0dcb722e86307e97617"},
    ),
)  # fmt: skip
