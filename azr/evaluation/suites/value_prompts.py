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
    """Working from the input to the output: prose, for small models that see numbered steps go on numbering."""
    backwards: str
    """Working from the output to an input."""


EXAMPLES = (
    _Worked(
        program="def f(words, n):\n    kept = [word for word in words if len(word) > n]\n    return kept[::-1]",
        input="['oak', 'birch', 'maple'], 3",
        output="['maple', 'birch']",
        forwards="The words of more than 3 letters are kept: 'birch' and 'maple', in this order. They are returned "
        "from the last to the first, so the value is ['maple', 'birch'].",
        backwards="The kept words are returned from the last to the first, so they are 'birch' and then 'maple'. Both "
        "have 5 letters. With n = 3 both are kept, and a word of 3 letters such as 'oak' may stand before them.",
    ),
    _Worked(
        program="def f(text):\n    result = ''\n    for char in text:\n        if char.isdigit():\n"
        "            result += str(int(char) + 1)\n        else:\n            result += char.upper()\n"
        "    return result",
        input="'a7-b'",
        output="'A8-B'",
        forwards="Each digit grows by 1 and every other character becomes upper case. In 'a7-b' the 7 becomes 8 and "
        "the letters become A and B, while the dash stays. Joined in their order this is 'A8-B'.",
        backwards="Each digit grows by 1 and every other character becomes upper case. So the 8 was a 7, and A and B "
        "may have been a and b, while the dash was a dash. Joined in their order this is 'a7-b'.",
    ),
    _Worked(
        program="def f(total, step):\n    seen = {}\n    while total > 0:\n        seen[total] = total % step == 0\n"
        "        total -= step\n    return seen",
        input="6, 4",
        output="{6: False, 2: False}",
        forwards="The loop sees total as 6 and then as 2; after that it is -2 and the loop ends. Neither 6 nor 2 can "
        "be divided by 4, so both keys have the value False: {6: False, 2: False}.",
        backwards="The keys are 6 and then 2, so total begins as 6 and falls by a step of 4. Neither can be divided by "
        "4, as the values False ask for, and 2 - 4 is below 0, which ends the loop.",
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
        opened = "[THOUGHT]\n" if works else f"[ANSWER]\n{_begun_assertion(gold)}"
        message = "\n\n".join([_RULES[gold.asked], *shown, f"{_asked(gold)}\n{opened}"])
        stops = ("[/ANSWER]",) if works else ("\n",)
    return Question(
        id=id, suite=suite, group=group, message=message, opened=opened, stop_strings=stops, problem=gold.program,
        gold=gold, programs=(gold.program,),
    )  # fmt: skip


def _example(worked: _Worked, asked: str, *, works: bool) -> str:
    gold = ProgramValue(worked.program, asked, worked.input, worked.output)  # type: ignore[arg-type]
    working = worked.backwards if asked == "input" else worked.forwards
    thought = f"[THOUGHT]\n{working}\n[/THOUGHT]\n" if works else ""
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
