"""How values are asked for by worked examples that a model continues."""

from __future__ import annotations

import pytest

from azr import values
from azr.evaluation.graders.stated_values import ProgramValue, stated_value
from azr.evaluation.suites import load_suites
from azr.evaluation.suites.files import PROMPTS
from azr.evaluation.suites.short_answers import CHAT, COMPLETION, COMPLETION_COT, FORMATS, chat_message, value_question
from tests.executor.public_data import file

PROGRAM = "def g(a, b=2):\n    return a * b"


def asked(side: str, prompt_format: str):
    gold = ProgramValue(PROGRAM, side, "'ab'", "'abab'", "g")  # type: ignore[arg-type]
    return value_question("suite", "7", "all", gold, prompt_format)


def test_the_worked_examples_are_true():
    for example in PROMPTS["examples"]:
        space: dict = {}
        exec(example["program"], space)
        assert space["f"](*values.parse_arguments(example["input"])) == values.parse(example["output"])


@pytest.mark.parametrize("side", ["output", "input"])
@pytest.mark.parametrize("prompt_format", FORMATS)
def test_a_completion_ends_within_the_answer_and_shows_nothing_of_the_gold(side, prompt_format):
    question = asked(side, prompt_format)
    assert question.message.endswith(question.opened) and question.problem == PROGRAM
    assert bool(question.opened) == bool(question.stop_strings) == (prompt_format != CHAT)
    assert question.message.count(PROGRAM) == 1
    assert ("'abab'" in question.message) == (side == "input")
    assert ("The words of more than" in question.message) == (side == "output" and prompt_format == COMPLETION_COT)
    if prompt_format == CHAT:
        assert question.message == chat_message(question.gold)


@pytest.mark.parametrize(
    ("side", "prompt_format", "response", "read"),
    [
        ("output", COMPLETION, " 'abab'\n", "'abab'"), ("output", COMPLETION, " 'ab' * 2\n", None),
        ("output", COMPLETION, "\n", None), ("output", COMPLETION, " 'ab", None), ("output", COMPLETION, " 4 # x", "4"),
        ("input", COMPLETION, "('ab') == 'abab'\n", "'ab'"),
        ("input", COMPLETION, "('a', b=4) == 'abab'\n", "'a', b=4"),
        ("input", COMPLETION, "(??) == 'abab'\n", None), ("input", COMPLETION, "('ab') == 'ab'\n", None),
        ("output", COMPLETION_COT, " It is doubled.\n[/THOUGHT]\n[ANSWER]\nassert g('ab') == 'abab'\n[/ANSWER]",
         "'abab'"),
        ("output", COMPLETION_COT, " `g('ab')` is 'abab'.\n[/THOUGHT]\n[ANSWER]\n'ab'\n[/ANSWER]", "'ab'"),
        ("output", COMPLETION_COT, " Every 'a' is 'b'.\n[/THOUGHT]\n[ANSWER]\n", None),
        ("input", COMPLETION_COT, " Half of it.\n[/THOUGHT]\n[ANSWER]\nassert g('ab') == 'abab'\n[/ANSWER]", "'ab'"),
    ],
)  # fmt: skip
def test_a_continued_answer_is_read_with_its_beginning(side, prompt_format, response, read):
    question = asked(side, prompt_format)
    assert stated_value(question.opened + response, question.gold) == read


def test_the_protocol_names_format_and_stops():
    names = ["cruxeval-o", "cruxeval-o:completion", "cruxeval-o:completion-cot"]
    chat, completion, cot = load_suites(names, file("cruxeval.jsonl").parent, limit=5)
    assert [each.on_record.get("stop_strings") for each in (chat, completion, cot)] == [None, ["\n"], ["[/ANSWER]"]]
    assert len({each.messages_sha256 for each in (chat, completion, cot)}) == 3
    assert [row.id for row in chat.questions] == [row.id for row in cot.questions]
    assert {row.suite for row in cot.questions} == {"cruxeval-o:completion-cot"}
