"""Which questions of evaluation suites are found among rows, and what becomes of the others."""

import errno
import gzip
import json
import pathlib

import pytest

from azr.datasets.hub import write_rows
from azr.datasets.overlap import STOCK, Overlap, leave_out, load_overlap
from azr.datasets.rows import read_rows
from azr.errors import UserError
from azr.evaluation.suites.short_answers import ProgramValue, chat_message, math_message
from azr.graders.question import Question
from tests.executor import public_data
from tests.mistakes import mistake

TRAIN = (
    "A train leaves the old station at noon and goes 60 miles an hour towards the distant harbour. When is it there?"
)
SHORT = "What is 2 + 2?"
STOCK_PHRASE = "where m and n are relatively prime positive integers and p is prime find m plus n plus p"


def overlap(**suites):
    def asked(name, at, text):
        return Question(id=str(at), suite=name, group="all", message=f"{text} Say it.", problem=text, gold=None)

    return Overlap({name: [asked(name, *each) for each in enumerate(texts)] for name, texts in suites.items()})


def test_questions_are_found_whatever_their_case_and_white_space_and_thirteen_words_in_a_row():
    found = overlap(one=[TRAIN, SHORT], two=[SHORT])
    assert found.find("  what is\n2 +  2? ") == {"one": "exactly", "two": "exactly"}
    assert found.find(TRAIN.upper()) == {"one": "exactly"}
    assert found.counts == {"one": 2, "two": 1}
    words = TRAIN.split()
    found = overlap(one=[TRAIN])
    assert found.find("Once, " + " (".join(words[2:15]) + " and then more") == {"one": "13 words"}
    assert found.find("Once, " + " ".join(words[2:14]) + " and then more") == {}


def test_a_short_question_is_found_where_it_is_a_line_and_one_that_a_trace_tells():
    found = overlap(one=[SHORT])
    assert found.find(f"{SHORT} And what is 3 + 3?") == {}
    assert found.find(math_message(SHORT)) == found.find("Be short.", SHORT) == {"one": "exactly"}
    found = overlap(one=[TRAIN, SHORT])
    told = ["I know this one.", f"<think>\nSo: {TRAIN.lower()} Let me see.</think>"]
    assert found.find("When does the train come?", traces=told) == {"one": "13 words of a trace"}
    assert found.find("When does the train come?", traces=["I know this one.", SHORT]) == {}
    assert found.find(TRAIN, traces=told) == {"one": "exactly"}


def test_what_many_questions_say_is_no_match_and_words_on_how_to_answer_are_not_compared(tmp_path):
    different = [f"Number {at}: the ratio of {at} is in lowest terms, {STOCK_PHRASE}" for at in range(STOCK)]
    asked = f"Something else altogether is there, {STOCK_PHRASE}"
    assert overlap(one=different).find(asked) == {}
    assert overlap(one=different[:-1]).find(asked) == {"one": "13 words"}
    copies = {f"suite{at}": [TRAIN + "!" * at] for at in range(STOCK)}
    assert overlap(**copies).find(f"Say: {TRAIN}").keys() == copies.keys()
    declared = 'name = "mine"\nfile = "mine.jsonl"\ngrader = "math"\nprompt = "{problem} ' + STOCK_PHRASE + '"\n'
    (tmp_path / "mine.toml").write_text(declared)
    (tmp_path / "mine.jsonl").write_text('{"problem": "How many legs has a spider?", "answer": 8}\n')
    found = load_overlap(tmp_path)
    assert found.counts.keys() == {"mine", "exam"} and found.counts["mine"] == 1
    assert found.find(STOCK_PHRASE) == {}
    assert found.find("How many legs has a SPIDER?") == {"mine": "exactly"}


def test_a_folder_of_no_suite_is_a_users_mistake(tmp_path):
    with pytest.raises(UserError, match="holds no file of a suite"):
        load_overlap(tmp_path)
    with pytest.raises(UserError, match="There is no folder"):
        load_overlap(tmp_path / "gone")


def row(question, **more):
    return {"prompt": math_message(question), "grader": "math", "answer": "3"} | more


def filtered(tmp_path, rows, found, out="out.jsonl"):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    counts = leave_out(path, tmp_path / out, found)
    return counts, read_rows(tmp_path / out)


@pytest.mark.parametrize("out", ["out.jsonl", "out.jsonl.gz"])
def test_rows_of_suites_are_left_out_and_counted_by_suite_and_kind(tmp_path, out):
    told = row("When does it come?", traces=[f"<think>So: {TRAIN}</think>\\boxed{{3}}"])
    last = row("6 - 6?", id="last", colour="red")
    rows = [row(TRAIN), row(f"Tell me: {TRAIN}"), row("1 + 1?"), told, last]
    counts, left = filtered(tmp_path, rows, overlap(one=[TRAIN, "1 + 1?"], two=[TRAIN]), out)
    assert (counts.read, counts.written) == (5, 1) and [each.question.id for each in left] == ["last"]
    assert counts.matches == {
        ("one", "exactly"): [1, 3], ("two", "exactly"): [1], ("one", "13 words"): [2], ("two", "13 words"): [2],
        ("one", "13 words of a trace"): [4], ("two", "13 words of a trace"): [4],
    }  # fmt: skip
    written = (tmp_path / out).read_bytes()
    assert json.loads(gzip.decompress(written) if out.endswith(".gz") else written) == last, "a row stays as it is"


def test_a_program_that_is_asked_about_is_found_whatever_its_input(tmp_path):
    program = "def f(a):\n    return a + 1"
    asked = {"program": program, "input": "2", "output": "3", "asked": "output"}
    rows = [{"prompt": chat_message(ProgramValue(**asked)), "grader": "value", **asked}, row("6 - 6?")]
    counts, _ = filtered(tmp_path, rows, overlap(one=[program]))
    assert counts.matches == {("one", "exactly"): [1]}


@pytest.mark.parametrize("rows, says", [
    ([row("1 + 1?")], "None of the 1 rows of "), ([], "None of the 0 rows of "),
    ([row("2 + 2?"), {"prompt": "3?"}], "row 2: it has no field 'grader': name one for all rows by --data.grader math"),
    ([row("2 + 2?"), 7], "row 2: it is not a JSON object"),
])  # fmt: skip
@pytest.mark.parametrize("out", ["out.jsonl", "out.jsonl.gz"])
def test_a_file_of_which_nothing_is_left_or_that_is_none_of_rows_leaves_nothing_behind(tmp_path, rows, says, out):
    with mistake(says=says):
        filtered(tmp_path, rows, overlap(one=["1 + 1?"]), out)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(pathlib.Path, "open", refuse)
    monkeypatch.setattr(pathlib.Path, "unlink", refuse)
    with pytest.raises(UserError, match=r"cannot be written \(Read-only file system\)"):
        write_rows(tmp_path / "o.jsonl", [])


def test_two_processes_may_write_one_file_at_once(tmp_path, monkeypatch):
    def rows():
        yield {"id": 1}
        monkeypatch.setattr("os.getpid", lambda: 0)
        write_rows(tmp_path / "o.jsonl", [{"id": 1}])
        yield {"id": 2}

    write_rows(tmp_path / "o.jsonl", rows())
    assert [path.name for path in tmp_path.iterdir()] == ["o.jsonl"]
    assert (tmp_path / "o.jsonl").read_text() == '{"id": 1}\n{"id": 2}\n'


def test_the_same_rows_are_the_same_bytes(tmp_path):
    for out in ("a.jsonl.gz", "b.jsonl.gz"):
        write_rows(tmp_path / out, [row("1 + 1?"), row("ü?")])
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_gsm8ks_own_questions_are_all_found(tmp_path):
    """As rows of another project may ask them, with words of their own behind the question."""
    source = public_data.file("gsm8k.jsonl")
    asked = [json.loads(line)["question"] for line in source.read_text().splitlines()]
    with pytest.raises(UserError, match=r"None of the 1,319 rows"):
        filtered(tmp_path, map(row, asked), load_overlap(source.parent))
