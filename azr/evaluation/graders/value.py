"""Grade values: the output of a program, an input that leads to an output, or the answer to a self-play task."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from azr import values
from azr.evaluation.graders import extraction
from azr.evaluation.graders.code_blocks import blocks
from azr.evaluation.question import Question
from azr.execution import CallResult, CallStatus, ExecutionRequest
from azr.records import Judgement, Task
from azr.tasks.base import Verdict
from azr.tasks.inputs import answer_may_state
from azr.tasks.prompts import ChatFormat, CompactFormat, Section
from azr.tasks.registry import KINDS

if TYPE_CHECKING:
    from azr.answering import Executor

_MAX_INPUT_CHARS = 2**13
_ON_ONE_LINE = re.compile(r"```(?:(output|input|python)[ \t]+)?([^`\n]+)```")
_WRAPPED = re.compile(r"\\(?:text|texttt|mathtt|mathrm|textbf|mathbf)\s*\{(.*)\}", re.DOTALL)
_ESCAPED = re.compile(r"\\([{}_#$%&])")
"""Characters that LaTeX escapes."""
_TAKE = """
nan, inf = float("nan"), float("inf")
def _take(*given, **named):
    return given, named

def f():
    return _take({text}
)
"""
_RUN = """
def f(given, named):
    space = {{"__name__": "program"}}
    exec(compile({program!r}, "program", "exec"), space)
    return eval({call!r}, space, {{"given": given, "named": named}})
"""


@dataclass(frozen=True, slots=True)
class ProgramValue:
    """Gold of `ValueGrader`: a program with an input and its output."""

    program: str
    """Defines ``f``, or the function that ``entry`` names."""
    asked: Literal["output", "input"]
    input: str
    """Argument text; if the input is asked for, one of many that are right."""
    output: str
    """Value text."""
    entry: str = "f"


@dataclass(slots=True)
class ValueGrader:
    """Compares plain data. A stated input is run, and its output is compared outside the sandbox."""

    executor: Executor

    async def grade(self, question: Question, response: str) -> Judgement:
        gold: ProgramValue = question.gold
        text = stated_value(response, gold.asked, gold.entry)
        if text is None:
            return Judgement(verdict=Verdict.MALFORMED)
        verdict = await (self._try_input(gold, text) if gold.asked == "input" else self._compare(gold, text))
        return Judgement(verdict=verdict, answer=(("answer", text),))

    async def _compare(self, gold: ProgramValue, text: str) -> Verdict:
        try:
            value = values.parse(text)
        except values.PlainDataError:
            return Verdict.MALFORMED
        try:
            return Verdict.RIGHT if values.equal(value, values.parse(gold.output)) else Verdict.WRONG
        except values.PlainDataError:
            return Verdict.UNGRADED

    async def _try_input(self, gold: ProgramValue, text: str) -> Verdict:
        try:
            arguments = values.canonical_arguments((values.parse_arguments(text), {}))
        except values.PlainDataError:
            lambdas = not _is_plain(gold.input)  # some recorded inputs are functions
            if not _computes(text, lambdas):
                return Verdict.WRONG
            # Evaluate the arguments in another process, so that f gets data and no object that acts inside it.
            stated = await self._call(_TAKE.format(text=text), "")
            if stated.status is CallStatus.LOST:
                return Verdict.UNGRADED
            if stated.status is CallStatus.REJECTED and lambdas:
                return self._judge(gold, await self._call(_with_entry(gold, f"{gold.entry}({text}\n)"), "(), {}"))
            value = values.parse(stated.value) if stated.value is not None else None
            if type(value) is not tuple or len(value) != 2 or type(value[0]) is not tuple or type(value[1]) is not dict:
                return Verdict.WRONG
            arguments = values.canonical_arguments(value)
        return self._judge(gold, await self._call(_with_entry(gold, f"{gold.entry}(*given, **named)"), arguments))

    async def _call(self, program: str, arguments: str) -> CallResult:
        request = ExecutionRequest(program=program, inputs=(arguments,), static_check=False, admitted=True)
        return (await self.executor.execute(request)).outputs[0]

    def _judge(self, gold: ProgramValue, call: CallResult) -> Verdict:
        if call.status is CallStatus.LOST:
            return Verdict.UNGRADED
        if call.status is not CallStatus.OK or call.value is None:
            return Verdict.WRONG
        try:
            expected = values.parse(gold.output)
        except values.PlainDataError:
            return Verdict.UNGRADED
        return Verdict.RIGHT if values.equal(values.parse(call.value), expected) else Verdict.WRONG


@dataclass(slots=True)
class TaskGrader:
    """Grades answers to self-play tasks by the task's kind; responses may be in either prompt format."""

    executor: Executor

    async def grade(self, question: Question, response: str) -> Judgement:
        task: Task = question.gold
        sections = _sections(response)
        if sections is None:
            return Judgement(verdict=Verdict.MALFORMED)
        verdict = await KINDS[task.kind].grade(task, sections, self.executor.execute)
        return Judgement(verdict=verdict, answer=tuple((str(each.label), each.text) for each in sections))


def _with_entry(gold: ProgramValue, call: str) -> str:
    """Return a program whose ``f`` makes the call; the gold program has its own namespace, so that it may recurse."""
    return _RUN.format(program=gold.program, call=call)


def _computes(text: str, lambdas: bool) -> bool:
    """Whether an argument list is an answer's: it computes, but does not search, and cannot reach the program."""
    call = _expression(f"_({text}\n)")
    stated = [*call.args, *(word.value for word in call.keywords)] if isinstance(call, ast.Call) else []
    return all(answer_may_state(each, lambdas=lambdas) for each in stated)


def _is_plain(text: str) -> bool:
    try:
        values.parse_arguments(text)
    except values.PlainDataError:
        return False
    return True


def _sections(response: str) -> tuple[Section, ...] | None:
    compact = CompactFormat("answer").parse(response)
    if compact is not None or response.startswith("<|"):
        return compact
    return ChatFormat(lambda message: message, response_format="answer").parse(response)


def stated_value(response: str, asked: str, entry: str) -> str | None:
    """Return the value or argument text of a response; None if there is none.

    It is the last block labelled with what is asked for, else the last block, else the last box, else a short answer as
    a whole. A call such as ``f(1)`` gives its arguments, and an assertion ``f(1) == 2`` the side that is asked for.
    """
    text = extraction.reply(response)
    fenced = [(block.language, block.content) for block in blocks(text)] or _ON_ONE_LINE.findall(text)
    if fenced:
        text = next((content for language, content in reversed(fenced) if language == asked), fenced[-1][1])
    elif (box := extraction.last_box(text)) is not None:
        text = _without_latex(box)
    text = text.strip()
    if not fenced and "[/ANSWER]" in text:
        text = text.partition("[/ANSWER]")[0].rpartition("[ANSWER]")[2].strip()
    text = text.strip("`").strip()
    text = text.removeprefix("assert ").strip() if text.startswith("assert ") else text
    if not text and (asked == "output" or not fenced):
        return None
    if len(text) > _MAX_INPUT_CHARS:
        return None
    tree = _expression(text)
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], ast.Eq):
        side = tree.left if asked == "input" else tree.comparators[0]
        if _is_call(tree.left, entry):
            text, tree = ast.get_source_segment(text, side) or "", side
    if asked == "output":
        # An answer that repeats the call is not a value.
        return None if tree is not None and _names(tree, entry) else text
    if tree is not None and _is_call(tree, entry):
        text = text[text.index("(") + 1 : text.rindex(")")]
    arguments = _expression(f"_({text}\n)")
    if not isinstance(arguments, ast.Call) or not isinstance(arguments.func, ast.Name) or arguments.func.id != "_":
        return None
    return None if not _is_input(arguments, entry) else text


def _without_latex(box: str) -> str:
    """Return the content of a box without LaTeX, if that makes it a Python expression."""
    if "\\" not in box or _expression(box) is not None:
        return box
    plain = _ESCAPED.sub(r"\1", wrapped[1] if (wrapped := _WRAPPED.fullmatch(box.strip())) else box)
    return box if _expression(plain) is None else plain


def _expression(text: str) -> ast.expr | None:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def _is_call(tree: ast.expr, entry: str) -> bool:
    return isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == entry


def _names(tree: ast.AST, entry: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == entry for node in ast.walk(tree))


def _is_input(tree: ast.AST, entry: str) -> bool:
    """Whether an argument list is only data and expressions: it must not patch, search with or name the program."""
    for node in ast.walk(tree):
        if isinstance(node, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return False
        if isinstance(node, ast.Name) and node.id in (entry, "_entry", "globals", "locals", "exec", "eval", "vars"):
            return False
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            return False
    return True
