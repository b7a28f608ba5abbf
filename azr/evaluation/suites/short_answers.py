"""Suites of short answers: mathematics, multiple choice, and the values that programs take and return.

A value is asked for by a message to a chat model, or by worked examples that a model continues.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from azr.evaluation.suites.files import PROMPTS, Row, text
from azr.evaluation.suites.own import labels
from azr.graders.choice import Choice
from azr.graders.extraction import last_box
from azr.graders.mathematics import MathGold
from azr.graders.question import Question
from azr.graders.value import ProgramValue
from azr.records import Task
from azr.tasks.normalize import ENTRY, renamed
from azr.tasks.prompts import CompletionFormat, opened_block
from azr.tasks.registry import KINDS, Abduction, Deduction

CHAT, COMPLETION, COMPLETION_COT, WORKED = FORMATS = ("chat", "completion", "completion-cot", "worked")
"""The second and third are CRUXEval's few-shot formats, without and with chain of thought; the last is self-play's."""
_WORKED = CompletionFormat(lambda text: (), works=True)
"""Counts no tokens, so that every question has two examples."""
_OPTION = re.compile(r"^[ \t]*([A-Z1-9])\)", re.MULTILINE)
_GPQA_HEAD = re.compile(r"\AAnswer the following multiple choice question\..*?\n\n", re.DOTALL)


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
    if prompt_format == WORKED:
        task = value_task(id, gold)
        message, stops = _WORKED.solve(KINDS[task.kind], KINDS[task.kind].solver_view(task)), _WORKED.stop_strings
        opened = opened_block(message)
    elif prompt_format != CHAT:
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


def value_task(id: str, gold: ProgramValue) -> Task:
    """Return a question about a program as a task of self-play, whose function is called ``f``."""
    program = gold.program
    if gold.entry != ENTRY:
        program = ast.unparse(renamed(ast.parse(program), {gold.entry: ENTRY}))
    kind = (Deduction if gold.asked == "output" else Abduction).name
    return Task(id=id, kind=kind, program=program, inputs=(gold.input,), outputs=(gold.output,), fingerprint="")


def _example(worked: Mapping[str, str], asked: str, *, works: bool) -> str:
    gold = ProgramValue(worked["program"], asked, worked["input"], worked["output"])  # type: ignore[arg-type]
    working = worked["backwards" if asked == "input" else "forwards"]
    thought = f"[THOUGHT]\n{working}\n[/THOUGHT]\n" if works else ""
    return f"{_asked(gold)}\n{thought}[ANSWER]\nassert f({gold.input}) == {gold.output}\n[/ANSWER]"


def _asked(gold: ProgramValue) -> str:
    call = f"{gold.entry}(??) == {gold.output}" if gold.asked == "input" else f"{gold.entry}({gold.input}) == ??"
    program = gold.program.strip("\n")
    return f"[PYTHON]\n{program}\n\nassert {call}\n[/PYTHON]"


def _math(suite: str, id: str, group: str, problem: str, answer: str, **how: Any) -> Question:
    if not answer.strip():
        raise ValueError("the answer is empty")
    gold = MathGold((answer,), **how)
    return Question(id=id, suite=suite, group=group, message=math_message(problem), problem=problem, gold=gold)


def _number(value: object) -> str:
    """Return a gold answer as text; a float in the file must be a whole number."""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError("the answer is neither text nor a number")
    return str(value)


def _aime24(suite: str, row: Row, number: int) -> Question:
    return _math(suite, str(number), "all", row["prompt"][0]["value"], _number(row["final_answer"]))


def _contest(suite: str, row: Row, number: int) -> Question:
    return _math(suite, str(row["id"]), "all", text(row, "problem"), _number(row["answer"]))


def _math500(suite: str, row: Row, number: int) -> Question:
    id, group = text(row, "unique_id"), f"level {row['level']}"
    return _math(suite, id, group, text(row, "problem"), text(row, "answer"))


def _minerva(suite: str, row: Row, number: int) -> Question:
    answer = last_box(text(row, "solution"))
    if answer is None:
        raise ValueError("its solution has no box")
    return _math(suite, str(row["idx"]), text(row, "type"), text(row, "problem"), answer, relative=True)


def _olympiadbench(suite: str, row: Row, number: int) -> Question:
    (answer,) = row["final_answer"]
    stated = (row.get("error") or "").strip().strip("$")
    problem = "\n\n".join(filter(None, [row.get("context"), text(row, "question")]))
    answer, tolerance = answer.strip().rstrip("."), float(stated) if stated else None
    return _math(suite, str(row["id"]), text(row, "subfield"), problem, answer, tolerance=tolerance)


def _gsm8k(suite: str, row: Row, number: int) -> Question:
    _, marked, answer = text(row, "answer").rpartition("####")
    if not marked:
        raise ValueError("its answer has no ####")
    return _math(suite, str(row.get("idx", number)), "all", text(row, "question"), answer.strip().replace(",", ""))


def _luffy(suite: str, row: Row, number: int) -> Question:
    (problem,) = (turn["content"] for turn in row["prompt"] if turn["role"] == "user")
    source, truth = text(row, "data_source"), str(row["reward_model"]["ground_truth"])
    answer = _number(float(truth)) if truth.endswith(".0") else truth
    return _math(suite, f"{source}-{row['extra_info']['index']}", source, problem, answer)


def _choice(suite: str, id: str, group: str, question: str, gold: Choice) -> Question:
    if gold.label not in gold.labels:
        raise ValueError(f"the answer {gold.label!r} is none of the labels {', '.join(gold.labels)}")
    message = PROMPTS["choice"].format(question=question.strip(), labels=", ".join(gold.labels))
    return Question(id=id, suite=suite, group=group, message=message, problem=question.strip(), gold=gold)


def _luffy_choice(suite: str, row: Row, number: int) -> Question:
    turns = {turn["role"]: turn["content"] for turn in row["prompt"]}
    question = _GPQA_HEAD.sub("", turns["user"])
    labels = tuple(dict.fromkeys(_OPTION.findall(question)))
    gold = str(row["reward_model"]["ground_truth"]).strip()
    if gold.isdigit() and gold not in labels:
        # A few rows of ARC number in the answer what they letter in the question.
        gold = labels[int(gold) - 1]
    return _choice(suite, str(row["extra_info"]["index"]), "all", question, Choice(gold, labels))


def _mmlu_pro(suite: str, row: Row, number: int) -> Question:
    options = [str(option) for option in row["options"]]
    letters = labels(options)
    index, answer = row["answer_index"], text(row, "answer")
    if not 0 <= index < len(letters) or letters[index] != answer:
        raise ValueError(f"answer {answer!r} is not option {index}")
    listed = "\n".join(f"{label}) {option}" for label, option in zip(letters, options, strict=True))
    question = f"{text(row, 'question').strip()}\n\n{listed}"
    return _choice(suite, str(row["question_id"]), text(row, "category"), question, Choice(answer, letters))


def _cruxeval(asked: Literal["input", "output"], suite: str, prompt_format: str, row: Row, number: int) -> Question:
    ast.parse(program := text(row, "code"))
    gold = ProgramValue(program, asked, text(row, "input"), text(row, "output"))
    return value_question(suite, text(row, "id"), "all", gold, prompt_format)


def _execution(suite: str, prompt_format: str, row: Row, number: int) -> Question:
    program, entry = text(row, "code"), text(row, "function_name")
    call = ast.parse(text(row, "input"), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != entry:
        raise ValueError(f"input is not a call of {entry}")
    arguments = ast.get_source_segment(row["input"], call) or ""
    arguments = arguments[arguments.index("(") + 1 : arguments.rindex(")")]
    gold = ProgramValue(program, "output", arguments, text(row, "output"), entry)
    return value_question(suite, str(row["id"]), str(row.get("difficulty", "all")), gold, prompt_format)


READERS: dict[str, Callable[[str, Row, int], Question]] = {
    "aime24": _aime24, "aime25": _contest, "amc23": _contest, "math500": _math500, "minerva": _minerva,
    "olympiadbench": _olympiadbench, "gsm8k": _gsm8k, "arc-c": _luffy_choice, "gpqa": _luffy_choice,
    "mmlu-pro": _mmlu_pro, "luffy": _luffy,
}  # fmt: skip
"""Questions of rows, by suite."""
VALUE_READERS: dict[str, Callable[[str, str, Row, int], Question]] = {
    "cruxeval-i": partial(_cruxeval, "input"), "cruxeval-o": partial(_cruxeval, "output"),
    "livecodebench-execution": _execution,
}  # fmt: skip
"""Those of suites that ask in every one of `FORMATS`, of which a row's question is in the given one."""
