"""Prompts that ask for a value of a program: a message to a chat model, or worked examples that a model continues."""

from __future__ import annotations

from dataclasses import dataclass

from azr.evaluation.graders.value import ProgramValue
from azr.evaluation.question import Question

CHAT, COMPLETION, COMPLETION_COT = FORMATS = ("chat", "completion", "completion-cot")
"""How a value is asked for. The last two are the few-shot formats of CRUXEval, without and with chain of thought."""
_OUTPUT = (
    "Here are a Python program and a call of its function. Work out what the call returns. Think it through step by "
    "step, and give the returned value as a Python literal in a last block that begins with ```output.\n\n"
    "```python\n{program}\n```\n\nThe call is:\n```python\n{entry}({input})\n```"
)
_INPUT = (
    "Here are a Python program and a value. Find arguments for which its function {entry} returns this value; where "
    "several are right, give any of them. Think it through step by step, and give what would stand between the "
    "parentheses of the call in a last block that begins with ```input.\n\n"
    "```python\n{program}\n```\n\nThe value is:\n```python\n{output}\n```"
)
_RULES = {
    "output": "Each program is followed by a call of its function. The assertion in the answer says, as a Python "
    "literal, what the call returns.",
    "input": "Each program is followed by a value that its function returns. The assertion in the answer calls the "
    "function with arguments that lead to this value; any such arguments will do.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worked:
    """A solved example in both directions."""

    program: str
    input: str
    output: str
    forwards: str
    """Steps from the input to the output."""
    backwards: str
    """Steps from the output to an input."""


EXAMPLES = (
    _Worked(
        program="def f(words, n):\n    kept = [word for word in words if len(word) > n]\n    return kept[::-1]",
        input="['oak', 'birch', 'maple'], 3",
        output="['maple', 'birch']",
        forwards="1. 'oak' has 3 letters, 'birch' and 'maple' have 5. Longer than 3: kept = ['birch', 'maple'].\n"
        "2. kept[::-1] is kept from its end: ['maple', 'birch'].",
        backwards="1. kept[::-1] is ['maple', 'birch'], so kept is ['birch', 'maple'].\n"
        "2. Both have 5 letters. With n = 3 both are kept, and 'oak' before them is not.",
    ),
    _Worked(
        program="def f(text):\n    result = ''\n    for char in text:\n        if char.isdigit():\n"
        "            result += str(int(char) + 1)\n        else:\n            result += char.upper()\n"
        "    return result",
        input="'a7-b'",
        output="'A8-B'",
        forwards="1. 'a' is no digit: 'A'.\n2. '7' is a digit: '8'.\n3. '-' has no upper case: '-'.\n"
        "4. 'b' is no digit: 'B'. Together: 'A8-B'.",
        backwards="1. 'A' comes from 'a', '8' from the digit 7, '-' from '-', 'B' from 'b'.\n2. Together: 'a7-b'.",
    ),
    _Worked(
        program="def f(total, step):\n    seen = {}\n    while total > 0:\n        seen[total] = total % step == 0\n"
        "        total -= step\n    return seen",
        input="6, 4",
        output="{6: False, 2: False}",
        forwards="1. total = 6: 6 % 4 is 2, so seen[6] = False. total becomes 2.\n"
        "2. total = 2: 2 % 4 is 2, so seen[2] = False. total becomes -2, and the loop ends.",
        backwards="1. The keys fall from 6 to 2, so total begins at 6 and step is 4.\n"
        "2. Neither 6 nor 2 can be divided by 4: both are False, and 2 - 4 ends the loop.",
    ),
)


def chat_message(gold: ProgramValue) -> str:
    """Return the user turn that asks for the output of a program, or for an input."""
    form = _INPUT if gold.asked == "input" else _OUTPUT
    return form.format(program=gold.program.strip("\n"), entry=gold.entry, input=gold.input, output=gold.output)


def value_question(suite: str, id: str, group: str, gold: ProgramValue, prompt_format: str) -> Question:
    """Return the question of a suite that asks for a value in one of `FORMATS`."""
    message, opened = chat_message(gold), ""
    stops: tuple[str, ...] = ()
    if prompt_format != CHAT:
        works = prompt_format == COMPLETION_COT
        shown = (_example(worked, gold.asked, works=works) for worked in EXAMPLES)
        opened = "[THOUGHT]\n1." if works else f"[ANSWER]\n{_begun_assertion(gold)}"
        message = "\n\n".join([_RULES[gold.asked], *shown, f"{_asked(gold)}\n{opened}"])
        stops = ("[/ANSWER]",) if works else ("\n",)
    return Question(
        id=id, suite=suite, group=group, message=message, opened=opened, stop_strings=stops, problem=gold.program,
        gold=gold, programs=(gold.program,),
    )  # fmt: skip


def _example(worked: _Worked, asked: str, *, works: bool) -> str:
    gold = ProgramValue(worked.program, asked, worked.input, worked.output)  # type: ignore[arg-type]
    steps = worked.backwards if asked == "input" else worked.forwards
    thought = f"[THOUGHT]\n{steps}\n[/THOUGHT]\n" if works else ""
    return f"{_asked(gold)}\n{thought}[ANSWER]\nassert f({worked.input}) == {worked.output}\n[/ANSWER]"


def _asked(gold: ProgramValue) -> str:
    call = f"{gold.entry}(??) == {gold.output}" if gold.asked == "input" else f"{gold.entry}({gold.input}) == ??"
    program = gold.program.strip("\n")
    return f"[PYTHON]\n{program}\n\nassert {call}\n[/PYTHON]"


def _begun_assertion(gold: ProgramValue) -> str:
    """Return the beginning of the assertion, as far as it is known before the answer.

    It ends before the parenthesis: tokenizers join ``('`` into one token, which no model writes after a lone ``(``.
    """
    return f"assert {gold.entry}" if gold.asked == "input" else f"assert {gold.entry}({gold.input}) =="
