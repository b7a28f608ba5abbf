"""Functions of the trusted side that take a model's text are fast, whatever it is: they run where a run is driven."""

import contextlib
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from azr import values
from azr.explorer.site import highlighted
from azr.graders import choice, code_blocks, extraction, math_spelling, mathematics, plain_json, programs, stated_values
from azr.records import Task
from azr.selfplay.rewards import edit_distance
from azr.tasks import inputs, normalize
from azr.tasks.prompts import ChatFormat, CompactFormat

SIZE = 100_000
LIMIT_S, LAPS = 0.3, 25
"""What a text may take on a quiet machine; and in laps of a loop that the same machine runs beside it, as busy as it
is: the slowest honest text takes 18."""
PIECES = (
    "x```python\n", "```python\nx", "```\n", "~~~ ", "`", "\\'", "'", "\"", "'''", "\\", "'\\", "\"'", "{", "}", "(",
    "[", "((]", "\\boxed{", "\\boxed", "\\boxed 1", "\\fbox{{", "<answer>", "</answer>", "</think>", "<think>",
    "<|input|>", "<|", " ", "\n", "\t", " \n", "1", "1,", "1.", "1_", "-", "- ", "- 1", "1e", "a", "a ", "\u00e9",
    "_", "\u0661", "answer is ", "answer: $", "\\(", "\\[", "$", "$1", "**", "** 1", "f(", "f(1) ==", "def f(",
    "def f(x):\n", "#", "# ", "@", "@a\n", ">", "> ```", "1/", "1 / ", "= ", "x = ", "\r\n", "\u0000", "\ud800",
    "not ", "lambda: ", "[PYTHON]", "[ANSWER]", "</code>", "\\text{ or", "\\frac{", "\\%", "\\ ", "{,}", "(A)", "A) ",
    "option ", "ANSWER: ", "```input ", "if x:\n ", "1;", "True ", "assert ", "* ", "10. ", "`` `", "```x", "<code>",
    "\"\"\"", "b'", "rb\"", "float('", "set(", "nan,", "{1:", "0.", "((", "'''\\", "f'{", "a.", "λ", "\n'",
)  # fmt: skip
ENDS = ("", "x", "1", "```", "'", "}", "</answer>", "\n", ")")
STARTS = ("", "<think></think><answer>", "```python\n", "\\boxed{", "[", "'", "</think>\n<answer>\n```input\n")
HELD = (
    " " * SIZE + "x", "`" * SIZE, "```" + " " * SIZE + "x", "```python\n" * 2**13, '```python\n"""\n```\n' * 6_000,
    "<code>" * 2**14, "if x\n" * 2**14, "(=\n" * 2**15, "</think>" * 2**13, "> " * 2**15 + "```", "- " * 2**15,
    "```python\nx='</think>'\n```\n" * 4_000, "```python\n" + "a" * SIZE + "```x\n", "```a" * 2**14,
    "```python\ndef g(): return h\n```\n" * 3_000, "```python\n'" + "\\'" * 2**15, "(" * SIZE,
    "\\boxed{1" + " " * 300 + "^" + " " * 1_600 + "1}", "answer is " + "\\(" * 9_900, "answer is " + "\\[" * 9_900,
    "answer is" + " " * SIZE, "answer is" + "* " * 2**15, "answer " * 2**13, "\\boxed{1" + "~" * 1_900 + "x}",
    "\\boxed{" + "½" * 1_900 + "}", "\\boxed{5 \\text{ " + "s" * 1_900 + "}}",
    "\\boxed{" + "; " * 900 + "k \\in \\mathbb Z}", "\\boxed{5 \\text{ m}^{" + "9" * 1_900 + "}}",
    "\\boxed{5" + " ^2" * 600 + " @}", "\\boxed{\\sin" + " " * 1_900 + "x}",
)  # fmt: skip
"""Texts over which a reader once took seconds."""
TASK = Task(id="t", kind="deduction", program="def f(x):\n    return x", inputs=("1",), outputs=("1",), fingerprint="")


def _tolerant(function: Callable[[str], Any]) -> Callable[[str], None]:
    """The function without its refusals."""

    def call(text: str) -> None:
        with contextlib.suppress(values.PlainDataError):
            function(text)

    return call


def gold(asked: str) -> stated_values.ProgramValue:
    return stated_values.ProgramValue(TASK.program, asked, "1", "1")


def _seconds(work: Callable[[], Any]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _is_late(work: Callable[[], Any], limits: int = 1) -> bool:
    """On a CPU clock; once in time is fast."""
    return not any(
        (taken := _seconds(work)) <= limits * LIMIT_S or taken <= limits * LAPS * _seconds(_lap) for _ in range(3)
    )


def _lap() -> int:
    return sum(map(hash, map(str, range(100_000))))


def _final(text: str) -> str:
    return extraction.final_answer(text) or text[: extraction.MAX_FINAL]


READERS: dict[str, Callable[[str], Any]] = {
    "chat": ChatFormat(str).parse, "chat, lenient": ChatFormat(str, response_format="answer").parse,
    "tags": CompactFormat("answer").parse, "boxes": extraction.placed_boxes, "last box": extraction.last_box,
    "value": _tolerant(values.parse), "arguments": _tolerant(values.parse_arguments),
    "input": lambda text: inputs.read_input(text, TASK.program), "final answer": extraction.final_answer,
    "answered input": lambda text: inputs.read_input(text, TASK.program, is_answer=True),
    "label": lambda text: choice._label(extraction.reply(text), ("A", "B")), "blocks": code_blocks.blocks,
    "script": code_blocks.program, "definition": lambda text: code_blocks.definition(text, "f"),
    "stated output": lambda text: stated_values.stated_value(text, gold("output")), "highlighted": highlighted,
    "stated input": lambda text: stated_values.stated_value(text, gold("input")), "program": normalize.parse_program,
    "standard output": lambda text: programs.same_output(text, "1 2.5 x", None),
    "long standard output": lambda text: programs.same_output(text, text + " 1", None),
    "normal mathematics": lambda text: mathematics.normal(_final(text)),
    "gold answer": extraction.gold_answer,
    "mathematics by name": lambda text: math_spelling.by_name(["3"], _final(text)),
    "compared mathematics": lambda text: mathematics.differ_in_kind("3", _final(text)),
}  # fmt: skip


@pytest.mark.parametrize("every", [18, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", READERS)
def test_no_text_holds_a_function_of_the_trusted_side(name: str, every: int):
    """Repeated pieces are what makes patterns look again and again."""
    cases = [(start, piece, end) for start in STARTS for piece in PIECES for end in ENDS]
    sample = random.Random(name).sample(cases, len(cases) // (10 * every))
    texts = [start + piece * ((SIZE - len(start)) // len(piece)) + end for start, piece, end in sample]
    late = []
    for text in (*HELD, *texts):
        if _is_late(partial(READERS[name], text)):
            late.append(f"{text[:40]}...{text[-20:]}")
        assert len(late) < 3, late
    assert not late


COLLIDING = [2**61 - 1 + n * (2**61 - 1) for n in range(30_000)]
CLAIMS = {
    "numbers that share a hash": {"s": [{"i": hex(n)} for n in COLLIDING]},
    "and one of them many times": {"s": [{"i": hex(n)} for n in COLLIDING + COLLIDING[:1] * 300]},
    "as keys": {"d": [[{"i": hex(n)}, 1] for n in COLLIDING]},
    "a fraction of many digits": {"f": [{"i": hex(3**2_000_000)}, {"i": hex(2**3_000_000 + 1)}]},
    "a decimal of many digits": {"n": "1" * 2_000_000},
    "a decimal and an integer that share a hash": {"s": [{"n": "5"}, {"i": hex(5 + ((2**61 - 1) << 4_000_000))}]},
    "the same within tuples": {"s": [{"t": [{"n": "5"}]}, {"t": [{"i": hex(5 + ((2**61 - 1) << 4_000_000))}]}]},
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_an_answer_claims_to_return_does_not_hold_the_judge(claim: str):
    def judge() -> None:
        with pytest.raises(ValueError, match=r"share a hash|takes long|too many digits"):
            plain_json.decode(CLAIMS[claim])

    assert not _is_late(judge)


def test_a_bonus_takes_no_longer_than_a_step_can_wait_and_honest_sets_with_many_repeats_pass():
    lists = ["def f(x):\n    return [" + ", ".join(f"{letter}{n}" for n in range(4000)) + "]" for letter in "ab"]
    tasks = [Task(id="t", kind="d", program=each, inputs=(), outputs=(), fingerprint="") for each in lists]
    assert 0 <= edit_distance(tasks[0], tasks[1:], tuple) <= 1
    assert not _is_late(lambda: edit_distance(tasks[0], tasks[1:], tuple), 3)
    items = [-1, -2, 1, 1.0, 2**61, "a", (1,), None] * 5_000
    assert plain_json.decode({"s": plain_json.encode(items)}) == set(items)
