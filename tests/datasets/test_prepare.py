"""What the rows of each source become, and which questions of evaluation suites are found among others."""

import errno
import gzip
import json
import pathlib

import pyarrow
import pyarrow.parquet
import pytest

from azr.datasets.preparing import (
    IN_SUITE,
    NO_ANSWER,
    OTHER,
    REPEATED,
    STOCK,
    Overlap,
    count_parsed,
    load_overlap,
    prepare,
    write_rows,
)
from azr.datasets.rows import read_rows
from azr.datasets.sources import SOURCES, Options
from azr.errors import UserError
from azr.evaluation.question import Question
from azr.evaluation.suites.short_answers import math_message
from tests.executor import public_data

SYSTEM = {"role": "system", "content": "Think first. If applicable, include the answer in \\boxed{}."}
TRACE = "<think>\nOne and one.\n</think>\n\n\\boxed{2}"


def luffy_row(question, answer, **more):
    turns = [SYSTEM, {"role": "user", "content": question}]
    row = {"data_source": "", "prompt": turns, "ability": "math", "extra_info": {"split": "default", "index": 0}}
    return row | {"reward_model": {"style": "rule", "ground_truth": answer}} | more


def target(*texts):
    return [{"role": "assistant", "content": text} for text in texts]


def prepared(tmp_path, source, rows, out="out.jsonl", options=None, found=None):
    """The counts, and the rows that were written."""
    path = tmp_path / f"source.{'parquet' if source == 'luffy' else 'json'}"
    if source == "luffy":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows))
    done = prepare(SOURCES[source], path, tmp_path / out, options or Options(), found)
    return done, read_rows(tmp_path / out)


LUFFY = [
    luffy_row("1 + 1?", "2", target=target(TRACE), target_lst=[TRACE, "Two: \\boxed{2}", ""]),
    luffy_row("2 + 2?", "4", data_source="some set/one", target=None),
    luffy_row("3 + 3?", None, target=None),
    luffy_row("4 + 4?", " ", target=None),
    luffy_row(" 1 +  1?", "2", target=target(TRACE)),
]


@pytest.mark.parametrize("out", ["out.jsonl", "out.jsonl.gz", "out.parquet"])
def test_luffys_rows_keep_their_system_turn_and_whole_traces(tmp_path, out):
    done, rows = prepared(tmp_path, "luffy", LUFFY, out)
    assert [row.turns for row in rows] == [
        (SYSTEM, {"role": "user", "content": "1 + 1?"}),
        (SYSTEM, {"role": "user", "content": "2 + 2?"}),
    ]
    assert [row.traces for row in rows] == [(TRACE, "Two: \\boxed{2}"), ()]
    assert [(row.question.suite, row.question.id, row.question.gold.answers) for row in rows] == [
        ("luffy", "1", ("2",)), ("some_set_one", "2", ("4",)),
    ]  # fmt: skip
    assert (done.read, done.written, done.with_traces, done.traces) == (5, 2, 1, 2)
    assert done.dropped == {NO_ANSWER: 2, REPEATED: 1}


def test_without_luffys_system_turn_the_question_states_the_form_of_the_answer(tmp_path):
    _, rows = prepared(tmp_path, "luffy", LUFFY[:1], options=Options(system="drop"))
    assert rows[0].turns == ({"role": "user", "content": math_message("1 + 1?")},)


def pair(question, answer):
    return [{"from": "human", "value": question}, {"from": "assistant", "ground_truth": {"value": answer}}]


def test_orz_pairs_as_arrays_and_as_a_table(tmp_path):
    pairs = [pair("1 + 1?", "2"), pair("Give \\boxed{x} for x = 1/2.", "\\frac{1}{2}"), pair("Why?", "")]
    done, rows = prepared(tmp_path, "orz", pairs)
    assert [row.turns[0]["content"] for row in rows] == [math_message("1 + 1?"), "Give \\boxed{x} for x = 1/2."]
    assert [row.question.gold.answers for row in rows] == [("2",), ("\\frac{1}{2}",)]
    assert done.dropped == {NO_ANSWER: 1} and {row.question.suite for row in rows} == {"orz"}
    _, same = prepared(tmp_path, "orz", [dict(zip("01", each, strict=True)) for each in pairs], "table.jsonl")
    assert same == rows


def test_gsm8k_answers_are_the_numbers_at_their_ends(tmp_path):
    given = [{"question": "How many?", "answer": "A lot.\n#### 1,234"}, {"question": "How few?", "answer": "A few: 3"}]
    done, (row,) = prepared(tmp_path, "gsm8k", given)
    assert (row.turns[0]["content"], row.question.gold.answers) == (math_message("How many?"), ("1234",))
    assert done.dropped == {NO_ANSWER: 1}


def test_cruxeval_asks_for_both_or_one_and_case_tells_programs_apart(tmp_path):
    given = [
        {"code": "def f(a):\n    return a + 'x'", "input": "'b'", "output": "'bx'", "id": "sample_0"},
        {"code": "def f(a):\n    return a + 'X'", "input": "'b'", "output": "'bX'", "id": "sample_1"},
    ]
    done, rows = prepared(tmp_path, "cruxeval", given, "out.parquet")
    golds = [(row.question.id, row.question.suite, row.question.gold.asked, row.question.gold.output) for row in rows]
    assert golds == [
        ("1-output", "cruxeval-o", "output", "'bx'"), ("1-input", "cruxeval-i", "input", "'bx'"),
        ("2-output", "cruxeval-o", "output", "'bX'"), ("2-input", "cruxeval-i", "input", "'bX'"),
    ]  # fmt: skip
    assert (done.read, done.examples, done.written) == (2, 4, 4)
    assert "f('b')" in rows[0].turns[0]["content"] and "'bx'" not in rows[0].turns[0]["content"]
    _, rows = prepared(tmp_path, "cruxeval", given, options=Options(asked=("input",)))
    assert {row.question.gold.asked for row in rows} == {"input"}


def test_questions_of_suites_are_left_out_and_counted_by_suite_and_kind(tmp_path):
    pairs = [pair(TRAIN, "3"), pair(f"Tell me: {TRAIN}", "3"), pair("1 + 1?", "2"), pair("6 - 6?", "0")]
    done, rows = prepared(tmp_path, "orz", pairs, found=overlap(one=[TRAIN, "1 + 1?"], two=[TRAIN]))
    assert [row.question.id for row in rows] == ["4"]
    assert done.dropped == {IN_SUITE: 3}
    assert done.matches == {
        ("one", "exactly"): [1, 3], ("two", "exactly"): [1], ("one", "13 words"): [2], ("two", "13 words"): [2],
    }  # fmt: skip


@pytest.mark.parametrize(
    "source, rows, said",
    [
        ("luffy", [{"prompt": [], "data_source": ""}], "row 1: it lacks 'reward_model'; a row of luffy is "),
        ("luffy", [luffy_row("", "2")], "row 1: this is no row of luffy (a turn of its prompt is empty)"),
        ("luffy", [luffy_row("1?", "2") | {"prompt": [SYSTEM]}], "its prompt does not end with a user's turn"),
        ("orz", [pair("1?", "1"), pair("2?", "2")[:1]], "row 2: it lacks '1'; a row of orz is [{from, value}"),
        ("orz", [pair("1?", "1"), pair("2?", ["2"])], "row 2: this is no row of orz (its answer is neither text nor"),
        ("orz", [pair("1?", "1"), pair("\ud800", "2")], "row 2: its text holds half a character"),
        ("orz", [pair("1?", "1"), 7], "row 2: it is no JSON object or array"),
        ("orz", [], "holds no rows"),
        ("orz", [pair("1?", "")], "No row of"),
        ("gsm8k", [{"question": "1?", "anwser": "#### 1"}], "it lacks 'answer'; a row of gsm8k is question, "),
        ("cruxeval", [{"code": "g = 1", "input": "1", "output": "2"}], "row 1: its program does not define f"),
        ("orz", [pair("1?", float("nan"))], "row 1: this is no row of orz (its answer is nan, which is no number)"),
        ("cruxeval", [{"code": "def f(:", "input": "1", "output": "2"}], "row 1: this is no row of cruxeval"),
    ],
)
@pytest.mark.parametrize("out", ["out.jsonl", "out.jsonl.gz", "out.parquet"])
def test_a_file_that_is_no_file_of_the_source_leaves_nothing_behind(tmp_path, source, rows, said, out):
    with pytest.raises(UserError) as raised:
        prepared(tmp_path, source, rows, out)
    assert said in str(raised.value) and "\n" not in str(raised.value)
    assert len(list(tmp_path.iterdir())) == 1


def test_programs_in_rows_of_luffys_form_are_left_out_and_empty_system_turns_dropped(tmp_path):
    tests = json.dumps({"inputs": ["3\n"], "outputs": ["9\n"]})
    empty = [{"role": "system", "content": " "}, {"role": "user", "content": "4 + 4?"}]
    given = [
        luffy_row("2 + 2?", "4"), luffy_row("Square it.", tests), luffy_row("Write f.", "f", ability="code"),
        luffy_row("Write g.", '["assert g(1) == 1"]'), luffy_row("4 + 4?", "8", prompt=empty),
        luffy_row("Half?", '["\\\\frac{1}{2}"]'), luffy_row("Which set?", "\\{1, 2\\}"),
    ]  # fmt: skip
    done, rows = prepared(tmp_path, "luffy", given)
    assert done.dropped == {OTHER: 3} and [row.question.id for row in rows] == ["1", "5", "6", "7"]
    assert [turn["role"] for turn in rows[1].turns] == ["user"]


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
        prepared(tmp_path, "luffy", LUFFY, out)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    assert "<think>\\nOne" in gzip.decompress((tmp_path / "a.jsonl.gz").read_bytes()).decode()


def test_a_row_whose_trace_tells_a_question_of_a_suite_is_left_out(tmp_path):
    told = luffy_row("When does it come?", "3", target=target(f"<think>So: {TRAIN}</think>\\boxed{{3}}"))
    done, rows = prepared(tmp_path, "luffy", [told, LUFFY[0]], found=overlap(one=[TRAIN]))
    assert [row.question.id for row in rows] == ["2"] and done.dropped == {IN_SUITE: 1}
    assert done.matches == {("one", "13 words of a trace"): [1]}


async def test_answers_that_the_grader_cannot_read_are_counted_out():
    assert await count_parsed(["2", "\\frac{1}{2}", "\\text{Evelyn}", "\\frac{1}{", "?", "}{"]) == 3


def test_luffys_published_file_repeats_aime_and_amc(tmp_path):
    source, out = public_data.file("luffy_valid_all.parquet"), tmp_path / "out.jsonl"
    done = prepare(SOURCES["luffy"], source, out, Options(), None)
    assert (done.read, done.written, done.dropped) == (6023, 1590, {REPEATED: 4433})
    rows = read_rows(out)
    assert {row.question.suite for row in rows} == {"aime", "aime25", "amc", "math", "minerva", "olympiad_bench"}
    assert all("boxed" in row.turns[0]["content"] for row in rows)


TRAIN = (
    "A train leaves the old station at noon and goes 60 miles an hour towards the distant harbour. When is it there?"
)
SHORT = "What is 2 + 2?"
STOCK_PHRASE = "where m and n are relatively prime positive integers and p is prime find m plus n plus p"


def overlap(**suites):
    def asked(name, at, text):
        return Question(id=str(at), suite=name, group="all", message=f"{text} Say it.", problem=text, gold=None)

    return Overlap({name: [asked(name, *each) for each in enumerate(texts)] for name, texts in suites.items()})


def test_case_and_white_space_make_no_other_question():
    found = overlap(one=[TRAIN, SHORT], two=[SHORT])
    assert found.find("  what is\n2 +  2? ") == {"one": "exactly", "two": "exactly"}
    assert found.find(TRAIN.upper()) == {"one": "exactly"}
    assert found.counts == {"one": 2, "two": 1}


def test_thirteen_words_in_a_row_are_found_whatever_their_punctuation_and_twelve_are_not():
    words = TRAIN.split()
    found = overlap(one=[TRAIN])
    assert found.find("Once, " + " (".join(words[2:15]) + " and then more") == {"one": "13 words"}
    assert found.find("Once, " + " ".join(words[2:14]) + " and then more") == {}


def test_a_short_question_is_found_exactly_only():
    assert overlap(one=[SHORT]).find(f"{SHORT} And what is 3 + 3?") == {}


def test_a_trace_that_tells_a_question_of_a_suite_is_found_where_its_own_question_is_not():
    found = overlap(one=[TRAIN, SHORT])
    told = ["I know this one.", f"<think>\nSo: {TRAIN.lower()} Let me see.</think>"]
    assert found.find("When does the train come?", told) == {"one": "13 words of a trace"}
    assert found.find("When does the train come?", ["I know this one.", SHORT]) == {}
    assert found.find(TRAIN, told) == {"one": "exactly"}


def test_what_many_questions_say_is_no_match_but_copies_of_one_are():
    different = [f"Number {at}: the ratio of {at} is in lowest terms, {STOCK_PHRASE}" for at in range(STOCK)]
    asked = f"Something else altogether is there, {STOCK_PHRASE}"
    assert overlap(one=different).find(asked) == {}
    assert overlap(one=different[:-1]).find(asked) == {"one": "13 words"}
    copies = {f"suite{at}": [TRAIN + "!" * at] for at in range(STOCK)}
    assert overlap(**copies).find(f"Say: {TRAIN}").keys() == copies.keys()


def test_the_words_that_say_how_to_answer_are_not_compared(tmp_path):
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
