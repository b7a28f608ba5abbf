"""A run's tasks and responses as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from azr.explorer import queries
from azr.explorer.index import RunIndex, SampleRow
from azr.explorer.queries import AROUND, ORIGINS, SampleFilter, TaskFilter
from azr.explorer.record_files import Problem
from azr.records import Sample

MAX_ATTEMPTS = 40
"""Lines of a task's attempts."""
SHOWN_CHARS = 1500
"""Of a text's beginning and of its end, unless all of it is asked for."""


def overview(index: RunIndex) -> Iterator[str]:
    """What there is, and the hardest tasks of the last step."""
    steps = queries.steps(index)
    _, tasks = queries.find_tasks(index, TaskFilter(limit=1))
    _, samples = queries.find_samples(index, SampleFilter(limit=1))
    yield f"{index.run}: {samples} trajectories of {len(steps)} steps, {tasks} tasks"
    yield from (f"note: {path}: {sentence}" for path, sentence in queries.problems(index))
    if not steps:
        return
    yield f"\nstep {steps[-1]}"
    for (kind, role), counts in queries.verdicts(index, steps[-1]).items():
        yield f"  {kind:<10} {role:<9} " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    hardest, _ = queries.find_tasks(
        index, TaskFilter(step_from=steps[-1], step_to=steps[-1], order="hardest", limit=10)
    )
    if hardest:
        yield f"\nhardest tasks of step {steps[-1]}; --task ID shows one"
        for row in hardest:
            yield f"  {row['id']:<28} solve rate {number(row['solve_rate'])}, {row['lines']} lines"


def rollout(index: RunIndex, row: SampleRow, *, whole: bool) -> Iterator[str]:
    """Yield the lines of one sample with its texts."""
    yield f"── {headline(row.sample)}"
    if row.sample.judgement is not None and row.sample.judgement.detail:
        yield f"why: {row.sample.judgement.detail}"
    try:
        sample = queries.read_texts(index, row)
    except Problem as problem:
        yield f"note: {problem}"
        return
    for rule, around in queries.flags_with_text(sample):
        yield f"flagged by {rule}: {_line(''.join(around), 2 * AROUND + 200)}"
    for name, text in (("prompt", sample.prompt), ("response", sample.response)):
        yield f"{name}:"
        yield _indented(text if whole else shortened(text))


def headline(sample: Sample) -> str:
    """Return a sample in a line."""
    parts = [
        f"step {sample.step}", sample.kind, f"{sample.role} ({sample.phase})", sample.problem_id,
        sample.verdict or "no grade", f"reward {number(sample.reward)}",
    ]  # fmt: skip
    if sample.advantage is not None:
        parts.append(f"advantage {sample.advantage:+.3f}")
    if sample.mismatch is not None:
        parts.append(f"mismatch {sample.mismatch:.4f}")
    if sample.response_tokens is not None:
        is_cut_off = sample.finish_reason == "length"
        parts.append(f"{sample.response_tokens} tokens{' (cut off)' if is_cut_off else ''}")
    if origin := ORIGINS[sample.origin]:
        parts.append(origin)
    if sample.used != "trained":
        parts.append(f"not trained on ({sample.used})")
    return _line(" · ".join(parts), 600)


def task(index: RunIndex, task: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a task of `queries.find_task`, with its attempts, proposer and children."""
    yield "{id} · {kind} · step {step} · solve rate {rate} · {lines} lines".format(
        **task, rate=number(task["solve_rate"])
    )
    yield "program:"
    yield _indented(task["program"])
    for given, returned in zip(task["inputs"], task["outputs"], strict=False):
        yield f"  f({given}) -> {returned}"
    if task["message"]:
        yield f"message: {task['message']}"
    yield f"references: {', '.join(task['parents']) or 'none'}"
    attempts, total = queries.find_samples(index, SampleFilter(problem_id=task["id"], limit=MAX_ATTEMPTS))
    yield f"\nproposal and attempts{f', the newest {MAX_ATTEMPTS} of {total}' if total > MAX_ATTEMPTS else ''}:"
    for attempt in (each.sample for each in attempts):
        yield f"  {headline(attempt)}"
        if attempt.judgement is None:
            continue
        if attempt.role == "solver":
            yield from (f"      {label}: {_line(text)}" for label, text in attempt.judgement.answer or ())
        if attempt.judgement.detail:
            yield f"      why: {_line(attempt.judgement.detail)}"
    for id, count, rate in queries.derived_attempts(index, task["id"]):
        yield f"derived task {id}: {count} attempts, {number(rate)} right"
    below, total = queries.children(index, task["id"], 20)
    if total:
        yield f"children ({total}): {', '.join(below)}{' …' if total > len(below) else ''}"


def number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def shortened(text: str) -> str:
    """A long text without its middle."""
    left_out = len(text) - 2 * SHOWN_CHARS
    if left_out <= 0:
        return text
    return f"{text[:SHOWN_CHARS]}\n[{left_out} characters; --whole shows them]\n{text[-SHOWN_CHARS:]}"


def _line(text: str, most: int = 200) -> str:
    flat = text.replace("\n", "\\n")
    return flat if len(flat) <= most else f"{flat[: most - 1]}…"


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.split("\n"))
