"""Why a response counts as what it counts as, in a sentence for the rollout records."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from azr.execution import CallStatus, ExecutionRequest, ExecutionResult
from azr.records import Completion, FinishReason, Judged, Task
from azr.tasks.base import RejectReason, Verdict
from azr.tasks.normalize import ENTRY, MAX_CHARS
from azr.tasks.prompts import Section

VALID = "valid"
"""Outcome of a proposal that became a task."""
MAX_DETAIL = 400
"""Characters of a sentence; what it quotes is shortened to fit."""
_MAX_QUOTED = 120
_NO_FORM = "no answer in the asked form was found"


@dataclass(slots=True)
class Seen:
    """What judging a response came across."""

    completion: Completion
    sections: tuple[Section, ...] | None = None
    last_run: tuple[ExecutionRequest, ExecutionResult] | None = None
    failures: list[Exception] = field(default_factory=list)
    """Of the executor."""


def judge_proposal(outcome: Task | RejectReason, seen: Seen) -> Judged:
    """Of a proposal as it was validated."""
    if not isinstance(outcome, RejectReason):
        return Judged(outcome=VALID, answer=_texts(seen))
    is_malformed = outcome is RejectReason.MALFORMED
    detail = _malformed(seen) if is_malformed else _refused_run(seen) or _UNRUN.get(outcome, "")
    return Judged(outcome=str(outcome), detail=detail[:MAX_DETAIL], answer=_texts(seen))


_UNRUN = {
    RejectReason.NOT_ALLOWED: "it states what may not be shown: control tokens, the program in its own message, an "
    "exception named like no exception, or a composite that leaves out a given function",
    RejectReason.TOO_LARGE: "it is longer than programs, messages or prompts may be",
}
"""Refusals that nothing that ran led to."""


def judge_answer(verdict: Verdict, task: Task, seen: Seen) -> Judged:
    """Of an answer as it was graded."""
    detail = ""
    if verdict is Verdict.MALFORMED:
        detail = _malformed(seen)
    elif verdict is Verdict.UNGRADED:
        detail = _refused_run(seen)
    elif verdict is Verdict.WRONG and task.program:
        detail = (
            _wrong_output(task, seen)
            if seen.last_run is None
            else _refused_run(seen) or _wrong_call(task, *seen.last_run)
        )
    return Judged(outcome=str(verdict), detail=detail[:MAX_DETAIL], answer=_texts(seen))


def _texts(seen: Seen) -> tuple[tuple[str, str], ...] | None:
    return None if seen.sections is None else tuple((str(each.label), each.text) for each in seen.sections)


def _malformed(seen: Seen) -> str:
    if seen.completion.finish_reason is FinishReason.LENGTH:
        return f"cut off after {len(seen.completion.response_ids)} tokens"
    if seen.sections is None:
        return _NO_FORM
    return _refused_run(seen) or _unreadable(seen.sections)


def _unreadable(sections: Sequence[Section]) -> str:
    """Of sections of which none has run: their program cannot be read, or the wrong ones are there."""
    for section in sections:
        if section.label == "program" and (why := _unreadable_program(section.text)):
            return why
    if len(sections) == 1:
        return f"the answer holds one {sections[0].label}, which is no plain data or not what was asked"
    counts = Counter(str(section.label) for section in sections)
    held = ", ".join(f"{count} {label}{'s' * (count > 1)}" for label, count in counts.items()) or "nothing"
    return f"the answer holds {held}: others were asked, one of them is no plain data, or two inputs are equal"


def _unreadable_program(text: str) -> str:
    if len(text) > MAX_CHARS:
        return "the program is too long to be read"
    try:
        tree = ast.parse(text.strip("\n"))
    except SyntaxError as error:
        return f"line {error.lineno or 1}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return f"the program cannot be read ({type(error).__name__})"
    entries = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == ENTRY]
    if len(entries) != 1:
        return f"the program defines {len(entries)} functions {ENTRY} instead of one"
    arguments = entries[0].args
    if not (arguments.posonlyargs or arguments.args or arguments.vararg):
        return f"{ENTRY} takes no argument"
    return ""


def _refused_run(seen: Seen) -> str:
    """Why what ran last did not return plain data; empty when it did, or nothing ran."""
    if seen.last_run is None:
        return ""
    request, result = seen.last_run
    if result.static_check:
        return "; ".join(result.static_check)
    for given, call in zip(request.inputs, result.outputs, strict=True):
        if call.status is not CallStatus.OK:
            return f"{ENTRY}({_quoted(given)}) {call.status}: {call.error or 'no reason given'}"
    return "runs with other hash seeds gave other results" if result.deterministic is False else ""


def _wrong_output(task: Task, seen: Seen) -> str:
    """An answer that states an output, which is compared without running anything."""
    stated = [section.text for section in seen.sections or () if section.label == "output"]
    given, wanted = task.inputs[0], task.outputs[0]
    return f"{ENTRY}({_quoted(given)}) gives {_quoted(wanted)}, not {_quoted(stated[0].strip())}" if stated else ""


def _wrong_call(task: Task, request: ExecutionRequest, result: ExecutionResult) -> str:
    """The first call of the answer, or of the task with it, whose value is another than the one asked for."""
    asked = task.outputs[-len(request.inputs) :]
    for given, call, wanted in zip(request.inputs, result.outputs, asked, strict=False):
        if call.value != wanted:
            returned = _quoted(call.value or "nothing")
            return f"{ENTRY}({_quoted(given)}) returned {returned}, not {_quoted(wanted)}"
    return ""


def _quoted(text: str) -> str:
    return text if len(text) <= _MAX_QUOTED else f"{text[: _MAX_QUOTED - 1]}…"
