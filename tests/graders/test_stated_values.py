"""How values are asked for by worked examples, and what is read from answers about a program."""

import json
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from azr import values
from azr.evaluation.suites import load_suites
from azr.evaluation.suites.files import PROMPTS
from azr.evaluation.suites.short_answers import (
    CHAT,
    COMPLETION,
    COMPLETION_COT,
    FORMATS,
    WORKED,
    chat_message,
    value_question,
)
from azr.graders.stated_values import ProgramValue, stated_value
from tests.executor.public_data import file
from tests.graders.grading import questions
from tests.tables import table

ANSWERS = Path(__file__).with_name("model_answers.jsonl")
"""The ends of 60 answers each of Qwen2.5-Coder-0.5B-Instruct and SmolLM2-135M-Instruct to CRUXEval, greedy, asked in
words by their own template and as a conversation. ``reads`` is what a person reads as the answer, null for none; a
single line without quotes is read as a string."""
OUTPUT = ProgramValue("def f(x, y=1):\n    return [x, y]", "output", "3", "[3, 1]")
INPUT = ProgramValue("def f(x, y=1):\n    return [x, y]", "input", "3", "[3, 1]")
TEXT = ProgramValue("def f(x):\n    return x", "output", "'ab'", "'ab'")


def test_answers_of_real_models_are_read_as_by_a_person():
    golds = {(name, row.id): row.gold for name in ("cruxeval-i", "cruxeval-o") for row in questions(name)}
    rows = [json.loads(line) for line in ANSWERS.read_text().splitlines()]
    read = [stated_value(row["end"], golds[row["suite"], row["id"]]) for row in rows]
    stating = [(row["reads"], found) for row, found in zip(rows, read, strict=True) if row["reads"] is not None]
    assert (len(rows), len(stating)) == (120, 80)
    assert sum(reads == found for reads, found in stating) >= 74
    assert sum(row["reads"] is None and found is not None for row, found in zip(rows, read, strict=True)) <= 3


@pytest.mark.parametrize("stated", ["[1] + " * 330 + "[1]", "-" * 990 + "1", "not " * 490 + "1", "0x" + "f" * 3_700])
@pytest.mark.parametrize("sentence", ["The input is `{}`.", "So `f({})` returns `[3, 1]`.", "```input\n{}\n```"])
def test_what_python_can_read_but_not_write_is_not_read_as_data(stated, sentence):
    for gold in (OUTPUT, INPUT):
        assert stated_value(sentence.format(stated), gold) in (None, stated, OUTPUT.output)


@pytest.mark.parametrize("response", table(__file__, "outputs of other forms"))
def test_a_text_that_gives_no_output_states_none(response):
    assert stated_value(response, OUTPUT) is None


@pytest.mark.parametrize("response", table(__file__, "outputs"))
def test_outputs_are_read_where_they_stand(response):
    assert stated_value(response, OUTPUT) == "[3, 1]"


@pytest.mark.parametrize(("response", "wanted"), table(__file__, "strings without quotes"))
def test_strings_in_blocks_may_lack_their_quotes(response, wanted):
    assert stated_value(response, TEXT) == wanted


@pytest.mark.parametrize(("response", "wanted"), table(__file__, "inputs"))
def test_inputs_are_read_where_they_stand(response, wanted):
    assert stated_value(response, INPUT) == wanted


_VALUES = st.recursive(
    st.integers(-99, 99) | st.booleans() | st.none() | st.text("ab ,.'`\"=()", max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=2), inner, max_size=2),
    max_leaves=5,
)
_SENTENCES = (
    "Therefore, the function returns {}.", "The output is {}", "So the final answer is {}.", "Thus `f(3)` returns {}.",
    "Hence, the output of `f(3)` is {}.", "Result: {}",
)  # fmt: skip


@settings(deadline=None)
@given(value=_VALUES, sentence=st.sampled_from(_SENTENCES), before=st.sampled_from(["", "First, `x` is `3`.\n\n"]))
@example(value=["```", "```"], sentence=_SENTENCES[0], before="")
def test_any_value_in_code_is_read_whole_or_not_at_all(value, sentence, before):
    stated = stated_value(before + sentence.format(f"`{value!r}`"), OUTPUT)
    assert stated == repr(value) if "`" not in repr(value) else stated in (None, repr(value))


PROGRAM = "def g(a, b=2):\n    return a * b"


def asked(side: str, prompt_format: str):
    gold = ProgramValue(PROGRAM, side, "'ab'", "'abab'", "g")  # type: ignore[arg-type]
    return value_question("suite", "7", "all", gold, prompt_format)


def test_the_worked_examples_are_true():
    for worked in PROMPTS["examples"]:
        space: dict = {}
        exec(worked["program"], space)
        assert space["f"](*values.parse_arguments(worked["input"])) == values.parse(worked["output"])


@pytest.mark.parametrize("side", ["output", "input"])
@pytest.mark.parametrize("prompt_format", FORMATS)
def test_a_completion_ends_within_the_answer_and_shows_nothing_of_the_gold(side, prompt_format):
    question = asked(side, prompt_format)
    assert question.message.endswith(question.opened) and question.problem == PROGRAM
    assert bool(question.opened) == bool(question.stop_strings) == (prompt_format != CHAT)
    assert question.message.count(PROGRAM if prompt_format != WORKED else PROGRAM.replace("g(", "f(")) == 1
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
        ("input", COMPLETION, "(??) == 'abab'\n", None), ("input", COMPLETION, "('ab') == 'ab'\n", "'ab'"),
        ("output", COMPLETION_COT, " It is doubled.\n[/THOUGHT]\n[ANSWER]\nassert g('ab') == 'abab'\n[/ANSWER]",
         "'abab'"),
        ("output", COMPLETION_COT, " `g('ab')` is 'abab'.\n[/THOUGHT]\n[ANSWER]\n'ab'\n[/ANSWER]", "'ab'"),
        ("output", COMPLETION_COT, " Every 'a' is 'b'.\n[/THOUGHT]\n[ANSWER]\n", None),
        ("output", WORKED, "a = 'ab', b = 2\nreturn 'ab'\n```\n```output\n'abab'\n```\n\n", "'abab'"),
        ("output", WORKED, "a = 'ab', b = 2\nreturn 'abab'\n```\n\n", None),
        ("input", WORKED, "a = 'ab', b = 2\nreturn 'abab'\n```\n```input\n'ab'\n```\n\n", "'ab'"),
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
    assert len({each.on_record["messages_sha256"] for each in (chat, completion, cot)}) == 3
    assert [row.id for row in chat.questions] == [row.id for row in cot.questions]
    assert {row.suite for row in cot.questions} == {"cruxeval-o:completion-cot"}
