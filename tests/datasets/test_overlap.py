"""Which questions of evaluation suites are found among others."""

import pytest

from azr.datasets.preparing import STOCK, Overlap, load_overlap
from azr.errors import UserError
from azr.evaluation.question import Question

TRAIN = (
    "A train leaves the old station at noon and goes 60 miles an hour towards the distant harbour. When is it there?"
)
SHORT = "What is 2 + 2?"
STOCK_PHRASE = "where m and n are relatively prime positive integers and p is prime find m plus n plus p"


def overlap(**suites):
    return Overlap(
        {
            name: [
                Question(id=str(at), suite=name, group="all", message=f"{text} Say it.", problem=text, gold=None)
                for at, text in enumerate(texts)
            ]
            for name, texts in suites.items()
        }
    )


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
