"""Prompts of suites, whose texts prompts.toml states: mathematics, and values of programs.

A value is asked for by a message to a chat model, or by worked examples that a model continues.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path

from azr.evaluation.graders.value import ProgramValue
from azr.evaluation.question import Question

PROMPTS = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text(encoding="utf-8"))
CHAT, COMPLETION, COMPLETION_COT = FORMATS = ("chat", "completion", "completion-cot")
"""How a value is asked for. The last two are the few-shot formats of CRUXEval, without and with chain of thought."""


def math_message(problem: str) -> str:
    """Return the user turn of a mathematical problem."""
    return str(PROMPTS["math"].format(problem=problem.strip()))


def chat_message(gold: ProgramValue) -> str:
    """Return the user turn that asks for the output of a program, or for an input."""
    named = {"program": gold.program.strip("\n"), "entry": gold.entry, "input": gold.input, "output": gold.output}
    return str(PROMPTS["chat"][gold.asked].format(**named))


def value_question(suite: str, id: str, group: str, gold: ProgramValue, prompt_format: str) -> Question:
    """Return the question of a suite that asks for a value in one of `FORMATS`."""
    message, opened = chat_message(gold), ""
    stops: tuple[str, ...] = ()
    if prompt_format != CHAT:
        works = prompt_format == COMPLETION_COT
        # An opened assertion ends before the parenthesis: tokenizers join ``('`` into one token, which no model writes
        # after a lone ``(``.
        known = "" if gold.asked == "input" else f"({gold.input}) =="
        opened = "[THOUGHT]\n" if works else f"[ANSWER]\nassert {gold.entry}{known}"
        shown = (_example(worked, gold.asked, works=works) for worked in PROMPTS["examples"])
        message = "\n\n".join([PROMPTS["rules"][gold.asked], *shown, f"{_asked(gold)}\n{opened}"])
        stops = ("[/ANSWER]",) if works else ("\n",)
    return Question(
        id=id, suite=suite, group=group, message=message, opened=opened, stop_strings=stops, problem=gold.program,
        gold=gold, programs=(gold.program,),
    )  # fmt: skip


def _example(worked: Mapping[str, str], asked: str, *, works: bool) -> str:
    gold = ProgramValue(worked["program"], asked, worked["input"], worked["output"])  # type: ignore[arg-type]
    working = worked["backwards" if asked == "input" else "forwards"]
    thought = f"[THOUGHT]\n{working}\n[/THOUGHT]\n" if works else ""
    return f"{_asked(gold)}\n{thought}[ANSWER]\nassert f({gold.input}) == {gold.output}\n[/ANSWER]"


def _asked(gold: ProgramValue) -> str:
    call = f"{gold.entry}(??) == {gold.output}" if gold.asked == "input" else f"{gold.entry}({gold.input}) == ??"
    program = gold.program.strip("\n")
    return f"[PYTHON]\n{program}\n\nassert {call}\n[/PYTHON]"
