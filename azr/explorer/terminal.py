"""A run's tasks and responses as text for a terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator

from azr.explorer import queries
from azr.explorer.flags import AROUND, flags_with_text
from azr.explorer.index import RunIndex
from azr.explorer.record_files import Problem
from azr.explorer.rows import RolloutFilter, RolloutRow, TaskFilter, TaskRow, TaskTexts

MAX_ATTEMPTS = 40
"""Lines of a task's attempts."""
SHOWN_CHARS = 1500
"""Of a text's beginning and of its end, unless all of it is asked for."""
_KEPT = "\n\t"


def overview(index: RunIndex) -> Iterator[str]:
    """What there is, and the hardest tasks of the last step."""
    steps = queries.steps(index)
    _, tasks = queries.find_tasks(index, TaskFilter(limit=1))
    _, rollouts = queries.find_rollouts(index, RolloutFilter(limit=1))
    yield f"{index.run}: {rollouts} trajectories of {len(steps)} steps, {tasks} tasks"
    yield from (f"note: {printable(path)}: {printable(sentence)}" for path, sentence in queries.problems(index))
    if not steps:
        return
    yield f"\nstep {steps[-1]}"
    for (kind, role), counts in queries.outcomes(index, steps[-1]).items():
        yield f"  {kind:<10} {role:<9} " + ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    hardest, _ = queries.find_tasks(
        index, TaskFilter(step_from=steps[-1], step_to=steps[-1], order="hardest", limit=10)
    )
    if hardest:
        yield f"\nhardest tasks of step {steps[-1]}; --task ID shows one"
        yield from (f"  {each.id:<28} solve rate {number(each.solve_rate)}, {each.lines} lines" for each in hardest)


def rollout(index: RunIndex, row: RolloutRow, *, whole: bool) -> Iterator[str]:
    """One trajectory with its texts."""
    yield f"── {headline(row)}"
    if row.detail:
        yield f"why: {printable(row.detail)}"
    try:
        record = queries.read_texts(index, row)
    except Problem as problem:
        yield f"note: {problem}"
        return
    for rule, around in flags_with_text(row, record.response):
        yield f"flagged by {rule}: {_line(''.join(around), 2 * AROUND + 200)}"
    for name, text in (("prompt", record.prompt), ("response", record.response)):
        yield f"{name}:"
        yield _indented(text if whole else shortened(text))


def headline(row: RolloutRow) -> str:
    """A trajectory in a line."""
    parts = [
        f"step {row.step}", row.kind, f"{row.role} ({printable(row.phase)})", printable(row.task_id),
        row.outcome or "no grade", f"reward {number(row.reward)}",
    ]  # fmt: skip
    if row.advantage is not None:
        parts.append(f"advantage {row.advantage:+.3f}")
    if row.mismatch is not None:
        parts.append(f"mismatch {row.mismatch:.4f}")
    if row.response_tokens is not None:
        parts.append(f"{row.response_tokens} tokens{' (cut off)' if row.finish_reason == 'length' else ''}")
    if row.origin:
        parts.append(row.origin)
    if not row.trained:
        parts.append("not trained on")
    return " · ".join(parts)


def task(index: RunIndex, row: TaskRow, texts: TaskTexts) -> Iterator[str]:
    """One task with its attempts, proposer and children."""
    yield f"{row.id} · {row.kind} · step {row.step} · solve rate {number(row.solve_rate)} · {row.lines} lines"
    yield "program:"
    yield _indented(texts.program)
    for given, returned in zip(texts.inputs, texts.outputs, strict=False):
        yield f"  f({printable(given)}) -> {printable(returned)}"
    if texts.message:
        yield f"message: {printable(texts.message)}"
    yield f"references: {', '.join(row.parent_ids) or 'none'}"
    attempts, total = queries.find_rollouts(index, RolloutFilter(task_id=row.id, order="step", limit=MAX_ATTEMPTS))
    yield f"\nproposal and attempts{f', the newest {MAX_ATTEMPTS} of {total}' if total > MAX_ATTEMPTS else ''}:"
    for attempt in attempts:
        yield f"  {headline(attempt)}"
        if attempt.role == "solver":
            yield from (f"      {label}: {_line(text)}" for label, text in attempt.sections)
        if attempt.detail:
            yield f"      why: {_line(attempt.detail)}"
    for id, count, rate in queries.derived_attempts(index, row.id):
        yield f"derived task {id}: {count} attempts, {number(rate)} right"
    below, total = queries.children(index, row.id, 20)
    if total:
        names = ", ".join(id for id, *_ in below)
        yield f"children ({total}): {names}{' …' if total > len(below) else ''}"


def number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def printable(text: str) -> str:
    """A text whose control characters, such as those that steer a terminal, are escapes."""
    if text.isprintable():
        return text
    return "".join(char if char in _KEPT or not _steers(char) else ascii(char)[1:-1] for char in text)


def shortened(text: str) -> str:
    """A long text without its middle."""
    left_out = len(text) - 2 * SHOWN_CHARS
    if left_out <= 0:
        return text
    return f"{text[:SHOWN_CHARS]}\n[{left_out} characters; --whole shows them]\n{text[-SHOWN_CHARS:]}"


def _steers(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def _line(text: str, most: int = 200) -> str:
    flat = printable(text).replace("\n", "\\n")
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in printable(text).split("\n"))
