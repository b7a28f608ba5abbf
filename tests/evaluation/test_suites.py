import base64
import gzip
import hashlib
import json
import os
import pickle
import zlib
from pathlib import Path

import pytest

from azr.errors import UserError
from azr.evaluation.suites import SUITES, files, hash_of, listing, load_suites, subset, suites_of
from azr.evaluation.suites.code_generation import private_tests, restored
from azr.evaluation.suites.exam import OWN
from azr.graders import make_grader
from azr.graders.plain_json import decode
from azr.tasks.base import Verdict
from tests.executor.public_data import file
from tests.graders.grading import fenced, needs, questions
from tests.mistakes import mistake
from tests.tables import table

pytestmark = pytest.mark.asyncio(loop_scope="session")
PUBLIC = [name for name, suite in SUITES.items() if suite.sha256]


@pytest.mark.parametrize("name", PUBLIC)
def test_public_files_are_complete_and_known(name):
    suite = SUITES[name]
    if suite.files[0].endswith(".parquet"):
        needs("pyarrow")
    (path,) = (file(each) for each in suite.files[:1])
    assert hashlib.sha256(path.read_bytes()).hexdigest() == suite.sha256[path.name]
    rows = questions(name)
    assert len(rows) == suite.rows == len({row.id for row in rows})
    assert all(row.suite == name and row.message.strip() and row.group for row in rows)


HUMANEVAL_PLUS = {
    "task_id": "HumanEval/32", "entry_point": "find_zero", "atol": 0,
    "prompt": "import math\n\ndef poly(xs, x):\n    return sum(c * math.pow(x, i) for i, c in enumerate(xs))\n\n"
              "def find_zero(xs):\n    \"\"\"A zero of poly.\"\"\"\n",
    "canonical_solution": "    return -xs[0] / xs[1]\n", "base_input": [[[1, 2]]],
    "plus_input": [[[-6, 2]], [[3.5, 7]]],
}  # fmt: skip
EXECUTION = {
    "question_id": 1, "id": "sample_0", "function_name": "double", "difficulty": "easy",
    "code": "def double(x, y=1):\n    return [x, x] * y", "input": "double(x = 3)", "output": "[3, 3]",
}  # fmt: skip
FUNCTION_TESTS = [{"input": "[1, 2]\n3", "output": "[4, 5]", "testtype": "functional"}]
HIDDEN = [{"input": "[]\n3", "output": "[]", "testtype": "functional"}]
LIVECODEBENCH = {
    "question_title": "Add", "question_content": "Add k to each.", "platform": "leetcode", "question_id": "1",
    "contest_id": "a", "contest_date": "2024-01-01T00:00:00", "difficulty": "easy",
    "starter_code": "class Solution:\n    def add(self, nums: List[int], k: int) -> List[int]:\n        ",
    "public_test_cases": json.dumps(FUNCTION_TESTS), "private_test_cases": json.dumps(HIDDEN),
    "metadata": json.dumps({"func_name": "add"}),
}  # fmt: skip
SUM_TESTS = [{"input": "2\n1 2\n", "output": "3\n", "testtype": "stdin"}]
PACKED = base64.b64encode(zlib.compress(pickle.dumps(json.dumps([{"input": "1\n0.5", "output": "0.50"}])))).decode()
LIVECODEBENCH_STDIN = LIVECODEBENCH | {
    "question_id": "2", "starter_code": "", "metadata": "{}", "public_test_cases": json.dumps(SUM_TESTS),
    "private_test_cases": PACKED,
}  # fmt: skip
MMLU_PRO = {
    "question_id": 5, "question": "Which?", "options": list("abcdefghij"), "answer": "J", "answer_index": 9,
    "cot_content": "", "category": "law", "src": "x",
}  # fmt: skip


def write_lines(path: Path, *rows: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


ADD = "class Solution:\n    def add(self, nums: List[int], k: int):\n        return tuple(x + k for x in nums)"
READ_ALL = "import sys\ndata = sys.stdin.buffer.read().split()\nprint(sum(map(float, data[1:])))"
UNPUBLISHED = [
    ("humaneval+", "HumanEvalPlus.jsonl.gz", HUMANEVAL_PLUS,
     fenced("def find_zero(xs):\n    assert poly(xs, 0) == xs[0]\n    return -xs[0] / xs[1] + 1e-6"),
     fenced("def find_zero(xs):\n    return xs[0]")),
    ("humaneval+", "HumanEvalPlus.jsonl", HUMANEVAL_PLUS, fenced("    return -xs[0] / xs[1]"), fenced("    return 2")),
    ("livecodebench-execution", "execution-v2.jsonl", EXECUTION, "```output\n[3, 3]\n```", "```output\n[3]\n```"),
    ("livecodebench-execution", "livecodebench_execution.jsonl", EXECUTION,
     "[ANSWER]assert double(x = 3) == [3, 3][/ANSWER]", "[ANSWER]double(x = 3) == 3[/ANSWER]"),
    ("livecodebench", "livecodebench/test.jsonl", LIVECODEBENCH, fenced(ADD), fenced(ADD.replace("x + k", "x"))),
    ("livecodebench", "livecodebench/test3.jsonl", LIVECODEBENCH_STDIN, fenced(READ_ALL),
     fenced(READ_ALL.replace("float", "int"))),
    ("mmlu-pro", "mmlu_pro_test.jsonl", MMLU_PRO, "ANSWER: J", "ANSWER: C"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "path", "row", "right", "wrong"), UNPUBLISHED)
async def test_suites_without_data_read_and_judge_a_row(answers, tmp_path, name, path, row, right, wrong):
    suite = SUITES[name]
    assert path in suite.files
    write_lines(tmp_path / path, row)
    (question,) = suite.read(tmp_path)
    async with make_grader(suite.grader, answers) as grader:
        verdicts = [(await grader.grade(question, response)).verdict for response in (right, wrong, "")]
    assert verdicts == [Verdict.RIGHT, Verdict.WRONG, Verdict.MALFORMED]


LINES = {name: next(each for each in suite.files if ".json" in each) for name, suite in SUITES.items()
         if name != "exam" and any(".json" in each for each in suite.files)}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_a_bad_row_is_named_by_file_and_number(tmp_path, name):
    path, of = tmp_path / LINES[name], Path(LINES[name]).name
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".json":
        path.write_text(json.dumps([{"prompt": [{"value": "1+1?"}], "final_answer": "2"}, {"final_answer": "3"}]))
        with mistake(says=f"{of}, row 2: this is not a row of the suite (it has no field 'prompt'"):
            SUITES[name].read(tmp_path)
        return
    packed = path.suffix == ".gz"
    of_line = ("row 1: .*no field", "row 1: it is not a JSON object", "row 1: it is not JSON")
    for line, says in zip((b'{"x": 1}\n', b"[1]\n", b'{"x": \xff\n'), of_line, strict=True):
        path.write_bytes(gzip.compress(line) if packed else line)
        with pytest.raises(UserError, match=f"{of}, {says}"):
            SUITES[name].read(tmp_path)
    path.write_bytes(gzip.compress(b"")[:9] if packed else b"")
    with mistake(says="row 1" if packed else "holds no questions"):
        SUITES[name].read(tmp_path)
    path.unlink()
    with mistake("--list", says=of):
        SUITES[name].read(tmp_path)


def test_a_repeated_id_and_a_parquet_that_is_none_are_refused(tmp_path):
    needs("pyarrow")
    write_lines(tmp_path / "mmlu_pro_test.jsonl", MMLU_PRO, MMLU_PRO)
    with pytest.raises(UserError, match="row 2: the id '5' is that of row 1"):
        SUITES["mmlu-pro"].read(tmp_path)
    (tmp_path / "luffy_valid_gpqa.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(UserError, match=r"luffy_valid_gpqa.parquet, row 1"):
        SUITES["gpqa"].read(tmp_path)


class _Runs:
    def __reduce__(self):
        return os.system, ("echo no",)


def packed(data: bytes) -> str:
    return base64.b64encode(zlib.compress(data)).decode()


PICKLED = [packed(pickle.dumps(each)) for each in (_Runs(), [1], {"a": os.path.join}, b"[]")]


@pytest.mark.parametrize("text", [*PICKLED, "", "no base64!", "aGVsbG8=", packed(b"\x80")])
def test_private_tests_run_nothing_and_are_refused_where_they_are_none(text):
    with pytest.raises(ValueError, match="private tests"):
        private_tests(text)


def test_arguments_of_mbpp_get_back_what_json_lost():
    for number, given, wanted in (
        (2, [[3, 4], [5]], [(3, 4), (5,)]), (63, [[[1, 2], [3, 4]]], [[(1, 2), (3, 4)]]), (9, [[1]], [[1]]),
        (75, [[[1, 2]], 6], [[(1, 2)], 6]), (115, [[[1, 2], []]], [[{1, 2}, {}]]), (124, ["1", "2j"], [1.0, 2j]),
        (259, [[[1], [2]], [[3]]], [((1,), (2,)), ((3,),)]), (278, [[1, [2, 3]]], [(1, (2, 3))]),
        (307, [["a", []], 1, 2], [("a", []), 1, 2]), (580, [[1, [2, [3]]]], [(1, (2, (3,)))]),
        (722, [{"a": [1, 2]}, 3], [{"a": (1, 2)}, 3]),
    ):  # fmt: skip
        assert restored(number, given) == wanted
    first = next(question for question in questions("mbpp+") if question.id == "Mbpp/2")
    assert decode(json.loads(first.gold.cases["base"][0])) == [(3, 4, 5, 6), (5, 7, 4, 10)]


OWN_SUITES = [
    ("math", "", {"q": "1+1?", "answer": 2}, "\\boxed{2}", "\\boxed{3}"),
    ("choice", "", {"q": "Which?", "answer": "B", "options": ["x", "y"]}, "ANSWER: B", "ANSWER: A"),
    ("calls", "", {"q": "inc", "entry": "inc", "inputs": [[1], [2]], "outputs": [2, 3]},
     fenced("def inc(x): return x + 1"), fenced("def inc(x): return 2")),
    ("stdin", "", {"q": "inc", "inputs": ["1"], "outputs": ["2"]},
     fenced("print(int(input()) + 1)"), fenced("print(1)")),
    ("value", 'asked = "input"', {"q": "?", "program": "def f(x): return x * 2", "input": "1", "output": "2"},
     "```input\n1.0\n```", "```input\n2\n```"),
]  # fmt: skip


@pytest.mark.parametrize(("grader", "more", "row", "right", "wrong"), OWN_SUITES)
async def test_a_suite_of_ones_own_is_a_toml_beside_its_data(answers, tmp_path, grader, more, row, right, wrong):
    if grader == "math":
        needs("math_verify")
    write_lines(tmp_path / "rows.jsonl", row)
    (tmp_path / "mine.toml").write_text(
        f'name = "mine"\nfile = "rows.jsonl"\ngrader = "{grader}"\nprompt = "{{q}} Think."\nlicence = "MIT"\n{more}\n'
    )
    suite = suites_of(tmp_path)["mine"]
    (question,) = suite.read(tmp_path)
    assert (question.message, question.suite, suite.licence) == (f"{row['q']} Think.", "mine", "MIT")
    async with make_grader(suite.grader, answers) as judge:
        verdicts = [(await judge.grade(question, response)).verdict for response in (right, wrong)]
    assert verdicts == [Verdict.RIGHT, Verdict.WRONG]


STATED = {"name": '"mine"', "file": '"rows.jsonl"', "grader": '"math"', "prompt": '"{q}"'}
GOOD = STATED | {"name": '"good"'}


@pytest.mark.parametrize("key, value, says", [
    *table(__file__, "bad suites"), ("rows", 5000 * "[", "it is nested too deep"),
])  # fmt: skip
def test_a_bad_declaration_is_one_sentence_for_who_asks_for_it(tmp_path, key, value, says):
    write_lines(tmp_path / "rows.jsonl", {"q": "1", "answer": "1"})
    (tmp_path / "good.toml").write_text("".join(f"{name} = {each}\n" for name, each in GOOD.items()))
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "mine.toml").write_text("".join(f"{name} = {each}\n" for name, each in (STATED | {key: value}).items()))
    assert len(load_suites(["good"], tmp_path)[0].questions) == 1
    asked = "mbpp+" if says == "already" else "mine"
    assert {row[0]: row[1] for row in listing(tmp_path)}[asked] != "found"
    with mistake(says=says):
        load_suites([asked], tmp_path)


def test_null_is_absent_from_a_row_and_other_tomls_declare_nothing(tmp_path):
    (tmp_path / "mine.toml").write_text("".join(f"{key} = {value}\n" for key, value in STATED.items()))
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "x"\n')
    row = {"q": "1", "answer": "1", "id": None, "group": None}
    write_lines(tmp_path / "rows.jsonl", row, row)
    suite = suites_of(tmp_path)["mine"]
    assert [(each.id, each.group) for each in suite.read(tmp_path)] == [("1", "all"), ("2", "all")]
    for changed, says in (({"q": None}, "no field 'q'"), ({"q": "\ud800"}, "half a character")):
        write_lines(tmp_path / "rows.jsonl", row | changed)
        with mistake(says=says):
            suite.read(tmp_path)
    with mistake(says="There is no folder"):
        suites_of(tmp_path / "none")


ROW = {"code": "def f(a):\n    return a", "input": "1", "output": "1"}


def crux(folder: Path, rows: int = 10, damaged: int | None = None) -> Path:
    lines = [json.dumps(ROW | {"id": f"sample_{i}"}) for i in range(rows)]
    if damaged is not None:
        lines[damaged - 1] = lines[damaged - 1][:20]
    (folder / "cruxeval.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_another_file_is_refused_unless_it_is_wanted(tmp_path: Path):
    folder = crux(tmp_path)
    with pytest.raises(UserError, match=r"is not the tested file of the suite cruxeval-o \(SHA-256 \w{12}, not"):
        load_suites(["cruxeval-o"], folder)
    (loaded,) = load_suites(["cruxeval-o"], folder, altered=True)
    assert len(loaded.questions) == 10 and loaded.sha256["cruxeval.jsonl"] == hash_of(folder / "cruxeval.jsonl")
    with mistake(says="cruxeval.jsonl, row 7"):  # rather than the hash
        load_suites(["cruxeval-i"], crux(tmp_path, damaged=7))


def test_the_exam_needs_no_folder_and_a_subset_is_spread_evenly(tmp_path: Path):
    (loaded,) = load_suites(["exam"], None, 30)
    assert len(loaded.questions) == 30 and len(loaded.all_questions) == 800
    assert loaded.sha256 == {path.name: hash_of(path) for path in sorted(OWN.glob("*.jsonl"))}
    assert load_suites(["exam"], tmp_path)[0].questions == loaded.all_questions
    with mistake("--data", says="gsm8k is read from files"):
        load_suites(["exam", "gsm8k"], None)
    (tmp_path / "exam").mkdir()
    lines = (OWN / "deduction.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "exam" / "deduction.jsonl").write_text("".join(lines[:5]))
    assert len(load_suites(["exam"], tmp_path)[0].questions) == 5
    questions = load_suites(["exam"], None)[0].all_questions
    half = subset(questions, 400)
    assert half == tuple(questions[::2])
    few = subset(questions[:20] + questions[790:], 30, groups_alike=True)
    assert [sum(question.group.startswith(kind) for question in few) for kind in ("deduction", "induction")] == [15, 10]
    assert subset(questions, 10_000, groups_alike=True) == questions


def test_the_list_says_what_is_there(tmp_path: Path):
    found = {row[0]: row for row in listing(crux(tmp_path, damaged=3))}
    assert set(found) == set(SUITES)
    assert found["cruxeval-o"][1].startswith("damaged: ") and "row 3" in found["cruxeval-o"][1]
    assert found["exam"][1::3] == ("found", "800") and found["gsm8k"][1:3] == ("not found", "-")
    assert "gsm8k.jsonl: gsm8k of" in found["gsm8k"][5]
    assert {row[0]: row for row in listing(crux(tmp_path))}["cruxeval-o"][1] == "another file"
    assert {row[0]: row for row in listing(None)}["exam"][1] == "found"
    public = {row[0]: row for row in listing(file("cruxeval.jsonl").parent)}
    assert public["cruxeval-o"][1::3] == ("found", "800") == public["cruxeval-i"][1::3]


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.json.gz"])
@pytest.mark.parametrize("content", [b"0" * 10**6, b"{}\n" * 10**6], ids=["one line", "many lines"])
def test_a_bomb_of_gzip_is_refused(tmp_path, monkeypatch, name, content):
    (tmp_path / name).write_bytes(gzip.compress(content))
    monkeypatch.setattr(files, "_MOST_UNPACKED", 10**5)
    with pytest.raises(UserError, match=r"unpacks to over 100 times its size|row 1: it is not JSON"):
        list(files.read_rows(tmp_path / name))
