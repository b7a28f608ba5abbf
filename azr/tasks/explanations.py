"""Explain a verdict in one sentence for the rollout records."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Sequence
from functools import partial

from azr.execution import CallStatus, ExecutionRequest, ExecutionResult
from azr.records import Completion, Reason, Task
from azr.tasks.base import RejectReason, Verdict
from azr.tasks.normalize import ENTRY, MAX_CHARS
from azr.tasks.prompts import Section
from azr.text import clipped

MAX_DETAIL = 400
"""Characters of a sentence; what it quotes is shortened to fit."""
_quoted = partial(clipped, most=120)
Sections = Sequence[Section] | None
"""Sections of a response; None if it is not in the asked format."""
LastRun = tuple[ExecutionRequest, ExecutionResult] | None
"""The last program that judging the response ran."""

_NOT_RUN = {
    RejectReason.NOT_ALLOWED: "it states what may not be shown: control tokens, the program in its own message, or "
    "an exception named like no exception",
    RejectReason.TOO_LARGE: "it is longer than programs, messages or prompts may be",
}
"""Rejections before anything ran."""


def explain_rejection(reason: RejectReason, completion: Completion, sections: Sections, last_run: LastRun) -> str:
    """Return why a proposal was rejected by its validation; empty where there is nothing to add."""
    if reason is RejectReason.MALFORMED:
        return _malformed(completion, sections, last_run)[:MAX_DETAIL]
    return (_failed_run(last_run) or _NOT_RUN.get(reason, ""))[:MAX_DETAIL]


def explain_answer(verdict: Verdict, task: Task, completion: Completion, sections: Sections, last_run: LastRun) -> str:
    """Return why an answer is not right; empty where there is nothing to add."""
    detail = ""
    if verdict is Verdict.MALFORMED:
        detail = _malformed(completion, sections, last_run)
    elif verdict is Verdict.UNGRADED:
        detail = _failed_run(last_run)
    elif verdict is Verdict.WRONG and task.program and task.inputs and task.outputs:
        detail = (
            _wrong_output(task, sections) if last_run is None else _failed_run(last_run) or _wrong_call(task, *last_run)
        )
    return detail[:MAX_DETAIL]


def unreadable_reason(sections: Sequence[Section], expected: Sequence[Section]) -> Reason:
    """Return why the sections of a response are not what the prompt wants; ``expected``: those of a well-formed one."""
    found = {section.label for section in sections}
    return "unreadable" if found >= {section.label for section in expected} else "missing_block"


def _malformed(completion: Completion, sections: Sections, last_run: LastRun) -> str:
    if completion.finish_reason == "length":
        return f"cut off after {len(completion.response_ids)} tokens"
    if sections is None:
        return "no answer in the asked form was found"
    return _failed_run(last_run) or _unreadable(sections)


def _unreadable(sections: Sequence[Section]) -> str:
    """Explain sections that were never run: the program cannot be read, or the wrong sections are there."""
    for section in sections:
        if section.label == "program" and (why := _unreadable_program(section.text)):
            return why
    if len(sections) == 1:
        return f"the answer holds one {sections[0].label}, which is not plain data or not what was asked"
    counts = Counter(str(section.label) for section in sections)
    held = ", ".join(f"{count} {label}{'s' * (count > 1)}" for label, count in counts.items()) or "nothing"
    return f"the answer holds {held}: others were asked, one of them is not plain data, or two inputs are equal"


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


def _failed_run(last_run: LastRun) -> str:
    """Return why the last run did not return plain data; empty if it did, or if nothing ran."""
    if last_run is None:
        return ""
    request, result = last_run
    if result.static_check:
        return "; ".join(result.static_check)
    for given, call in zip(request.inputs, result.outputs, strict=True):
        if call.status is not CallStatus.OK:
            return f"{ENTRY}({_quoted(given)}) {call.status}: {call.error or 'no reason given'}"
    return "runs with other hash seeds gave other results" if result.deterministic is False else ""


def _wrong_output(task: Task, sections: Sections) -> str:
    """Explain a wrong output, which was compared without running anything."""
    stated = [section.text for section in sections or () if section.label == "output"]
    given, wanted = task.inputs[0], task.outputs[0]
    return f"{ENTRY}({_quoted(given)}) gives {_quoted(wanted)}, not {_quoted(stated[0].strip())}" if stated else ""


def _wrong_call(task: Task, request: ExecutionRequest, result: ExecutionResult) -> str:
    """Return the first call whose value is not the expected one."""
    asked = task.outputs[-len(request.inputs) :]
    for given, call, wanted in zip(request.inputs, result.outputs, asked, strict=False):
        if call.value != wanted:
            returned = _quoted(call.value or "nothing")
            return f"{ENTRY}({_quoted(given)}) returned {returned}, not {_quoted(wanted)}"
    return ""
