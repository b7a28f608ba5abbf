"""The part of a response that counts: by the tags of which its prompt speaks and by `reward.format`."""

from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from azr.tasks.prompts import ChatFormat, ResponseFormat, answer_part

TAGS = "Think between <think> and </think>, answer between <answer> and </answer>.\nUser: 3 + 4?\nAssistant: <think>"
OPENED = "<|user|>3 + 4?<|assistant|><think>\n"
STATED = "<|system|>Thoughts as <think> … </think>, then the solution.<|user|>3 + 4?<|assistant|>"
PLAIN = "<|user|>3 + 4?<|assistant|>"
CLOSED = "<|user|>3 + 4?<|assistant|><think>\n\n</think>\n\n"
ONLY_ANSWER = "<|system|>Give the answer between <answer> and </answer>.<|user|>3 + 4?<|assistant|>"
FORMS = get_args(ResponseFormat)
UNCLOSED_THINKING, NO_ANSWER = ("", "unclosed_thinking"), ("", "no_answer")
TWO_ANSWERS, MISPLACED_ANSWER = ("", "two_answers"), ("", "misplaced_answer")


@pytest.mark.parametrize(
    "prompt, response, strict, answer, thought",
    [
        (TAGS, "3, 4: </think> <answer>7</answer>", "7", "7", " <answer>7</answer>"),
        (TAGS, "<think>again</think>\n<answer>7</answer>", "7", "7", "\n<answer>7</answer>"),
        (TAGS, "3 + 4 = 7", UNCLOSED_THINKING, NO_ANSWER, UNCLOSED_THINKING),
        (TAGS, "3 + 4 <answer>7</answer>", UNCLOSED_THINKING, "7", UNCLOSED_THINKING),
        (TAGS, "3 + 4 </think> 7", NO_ANSWER, NO_ANSWER, " 7"),
        (TAGS, "a</think><answer>7", NO_ANSWER, "7", "<answer>7"),
        (TAGS, "a</think>so: <answer>7</answer>", MISPLACED_ANSWER, "7", "so: <answer>7</answer>"),
        (TAGS, "a</think><answer>5</answer> or <answer>7</answer>", TWO_ANSWERS, "7",
         "<answer>5</answer> or <answer>7</answer>"),
        (TAGS, "a</think><answer>5 <answer>7</answer>", TWO_ANSWERS, "7", "<answer>5 <answer>7</answer>"),
        (TAGS, "a</think>b</think><answer>7</answer>", UNCLOSED_THINKING, "7", "b</think><answer>7</answer>"),
        (OPENED, "a</think>It is 7.", "It is 7.", "It is 7.", "It is 7."),
        (OPENED, "It is 7.", UNCLOSED_THINKING, "It is 7.", UNCLOSED_THINKING),
        (STATED, "<think>a</think>7", "7", "7", "7"),
        (STATED, "It is 7.", UNCLOSED_THINKING, "It is 7.", UNCLOSED_THINKING),
        (PLAIN, "It is 7.", "It is 7.", "It is 7.", UNCLOSED_THINKING),
        (PLAIN, "<think>It is 7.", UNCLOSED_THINKING, "<think>It is 7.", UNCLOSED_THINKING),
        (PLAIN, "<think>a</think>7", "7", "7", "7"), (CLOSED, "It is 7.", "It is 7.", "It is 7.", UNCLOSED_THINKING),
        (ONLY_ANSWER, "3 + 4 is <answer>7</answer>.", "7", "7", UNCLOSED_THINKING),
        (ONLY_ANSWER, "7", NO_ANSWER, NO_ANSWER, UNCLOSED_THINKING),
    ],
)  # fmt: skip
def test_what_counts(prompt: str, response: str, strict: Any, answer: Any, thought: Any) -> None:
    found = [answer_part(response, prompt, form) for form in FORMS]
    assert found == [each if isinstance(each, tuple) else (each, "") for each in (strict, answer, thought)]


PIECES = st.lists(st.sampled_from(["<think>", "</think>", "<answer>", "</answer>", " ", "7", "no"]), max_size=12)


@given(PIECES, st.sampled_from([TAGS, OPENED, STATED, PLAIN, CLOSED, ONLY_ANSWER]))
def test_strict_pays_nothing_that_the_other_rules_would_not_read(pieces: list[str], prompt: str) -> None:
    response = "".join(pieces)
    strict, reason = answer_part(response, prompt, "strict")
    if reason:
        return
    assert "<think>" not in strict and "</think>" not in strict and strict in response
    for form in ("answer", "thought"):
        other, _ = answer_part(response, prompt, form)
        assert strict in other or (form == "thought" and "</think>" not in response)


@given(PIECES, st.sampled_from(["answer", "thought"]))
def test_what_self_play_reads_is_an_answer_part_of_rows_too(pieces: list[str], form: ResponseFormat) -> None:
    # Its parser looks for blocks in the answer, so every answer tag gets one.
    response = "".join(pieces).replace("<answer>", "<answer>\n```output\n7\n```\n")
    if ChatFormat(str, response_format=form).parse(response) is not None:
        assert not answer_part(response, TAGS, form)[1]
