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


@pytest.mark.parametrize(
    "response",
    [
        "", "I think so.", "Yes", "```python\ndef f(x):\n    return 3\n```", "assert f(4) == [4, 1]",
        "`f(4) == [4, 1]` holds.", "```python\nassert f(4) == [4, 1]\n```", "```output\nf(3)\n```",
        "So the call is `f(3)`.", "The output could be `[3, 1]`.\nI am not sure.", "Therefore, the input is `3`.",
        "Input:\n```\n3\n```", "The length of the list is `2`.", "The function returns 2 elements.",
        "The output is:\n```\nI am not sure.\n```", "The output is:\n```\n<output>\n```",
        "The output is:\n```\n[x, y]\n```", "Steps:\n[3, 1]\n[3, 2]\nI stop here.", "So `3` is the input.",
        "f(4) = [4, 1]", "`f(4) -> [4, 1]`", "Therefore, the computed output is `[3, ", "```output\n[3, ",
    ],
)  # fmt: skip
def test_a_text_that_gives_no_output_states_none(response):
    assert stated_value(response, OUTPUT) is None


@pytest.mark.parametrize(
    "response",
    [
        "[3, 1]", "`[3, 1]`", "assert f(3) == [3, 1]", "f(3) returns [3, 1].", "f(x=3) -> [3, 1]",
        "The output is **[3, 1]**.", "The answer is [3, 1]", "Answer: `[3, 1]`",
        "The function returns the list `[3, 1]`, as `y` is 1.",
        "First `f(2)` would give `[2, 1]`.\n\nThe returned value is `[3, 1]`.", "Thus we have: ```output\n[3, 1]\n```",
        "The result of the call is:\n```python\n[3, 1]\n```\nLet me know if you have questions.",
        "The output is `[3, 1]`, i.e. `output = f(3) == [3, 1]`", "The output is `[3, 1]`, i.e. `output = f(3)`",
        "i.e. ```output = [3, 1]```", "```output\noutput\n[3, 1]\n```", "```output\nassert f(3) == [3, 1]\n```",
        "[THOUGHT]\n`f(3)` is `[1]`.\n[/THOUGHT]\n[ANSWER]\nassert f(3) == [3, 1]\n[/ANSWER]",
        "**Output:** `[3, 1]`", "**Output:**\n\n`[3, 1]`", "Steps.\n### Output\n[3, 1]", "Result: [3, 1]",
        "The output is $[3, 1]$.", "Therefore `[3, 1]` is returned.", "So `[3, 1]` is the output of the function.",
        "```\nf(3) = [3, 1]\n```", "```\nf(3) -> [3, 1]\n```", "f(3) \u2192 [3, 1]",
        "It returns `f(3)`, so the result is `[3, 1]`",
        "[ANSWER]\nassert f(3) == [3, 1]\n", "[ANSWER]\n[3, 1]\n[/ANSWER]",
        "[ANSWER]\n```python\nassert f(3) == [3, 1]\n```\n[/ANSWER]",
        "```\n[3, 1]\n```\n\nThe output is:\n```\n[3, 1]\n```\n\nThe output is:\n```\n[3,",
        "The working says `[9]`.\n```output\n[3, 1]\n```\nThe function returns `[9]`.",
        "<think>```output\n[9]\n```</think>\nThe call returns `[3, 1]`.",
    ],
)  # fmt: skip
def test_outputs_are_read_where_they_stand(response):
    assert stated_value(response, OUTPUT) == "[3, 1]"


@pytest.mark.parametrize(
    ("response", "wanted"),
    [
        ("It returns `'a'`, so the output is `'b'`.", "'b'"), ("The output is 'a, b or c'.", "'a, b or c'"),
        ("The output is:\n```\nab\n```", "'ab'"), ("```output\nthe cow\n```", "'the cow'"), ("ab", None),
        ("The output is `'ab'`, i.e. ```output\ncd\n```", "'cd'"), ("The output is ab.", None),
        ("So <answer>ab</answer>", "'ab'"),
    ],
)  # fmt: skip
def test_strings_in_blocks_may_lack_their_quotes(response, wanted):
    assert stated_value(response, TEXT) == wanted


@pytest.mark.parametrize(
    ("response", "wanted"),
    [
        ("The input is `3`.", "3"), ("An input that works is 3.", "3"), ("```python\nprint(f(3))\n```", "3"),
        ("Take `f(3, 1)`, so the arguments are `3, 1`.", "3, 1"), ("assert f(3) == [3, 1]", "3"),
        ("The arguments are:\n```python\nx = 3\ny = 1\n```", "x=3, y=1"), ("Thus the answer is `f(3)`.", "3"),
        ("The function returns `[3, 1]` when called with the argument `3`.", "3"),
        ("```input\ninput(3, 1)\n```", "3, 1"),
        ("Therefore, the arguments for which `f` returns `[3, 1]` are `3`.", "3"), ("So `3` is the input.", "3"),
        ("**Input:** `3`", "3"), ("**Output:** `[3, 1]`", None), ("So `[3, 1]` is returned.", None),
        ("assert f(4) == [4, 1]", None), ("The function returns `[3, 1]`.", None), ("The output is `[3, 1]`.", None),
        ("The value is:\n```\n[3, 1]\n```", None), ("The output is:\n```\n[3, 1]\n```", None),
        ("The loop begins with `index = 1`.", None), ("```python\nprint(g(3))\n```", None),
        ("`f(4)` returns `[4, 1]`, which is not it.", None), ("The arguments are:\n```python\ninput()\n```", None),
        ("[ANSWER]\nassert f(3) == [3, 1]\n", "3"), ("[ANSWER]\nassert f(3) == [4, 1]\n", "3"),
        ("[ANSWER]\nassert g(3) == [3, 1]\n", None), ("[ANSWER]\nassert f(3) == [4,", "3"),
        ("[ANSWER]\nassert f('==') == [4, 1]\n", "'=='"),
    ],
)  # fmt: skip
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
    assert len({each.messages_sha256 for each in (chat, completion, cot)}) == 3
    assert [row.id for row in chat.questions] == [row.id for row in cot.questions]
    assert {row.suite for row in cot.questions} == {"cruxeval-o:completion-cot"}
