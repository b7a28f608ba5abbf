"""Print trajectories of a run, newest step first; without any choice, what there is and the hardest tasks of the last
step. An index is kept beside the run; it may be deleted."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any

from azr.cli.options import Parser, whole
from azr.errors import UserError, did_you_mean, printable
from azr.explorer import queries
from azr.explorer.index import RunIndex, SampleRow
from azr.explorer.queries import ANY_RULE, AROUND, ORIGINS, SAMPLE_ORDERS, VERDICTS
from azr.explorer.record_files import Problem
from azr.monitoring.texts import SAFETY, TOTALS
from azr.records import Sample
from azr.text import clipped, without_middle

RESPONSES = 5
"""Printed unless ``-n`` says how many."""
MAX_ATTEMPTS = 40
"""Lines of a task's attempts."""
SHOWN_CHARS = 1500
"""Of a text's beginning and of its end, unless all of it is asked for."""


def main(argv: Sequence[str]) -> int:
    options = parser().parse(argv)
    index = RunIndex(options.run)
    if index.is_evaluation:
        raise UserError(f"{options.run} holds an evaluation and no run: azr view {options.run} shows its answers.")
    index.refresh(lambda sentence: print(sentence, file=sys.stderr))
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    if options.task is not None:
        _print_task(index, options.task)
        return 0
    _check_rule(index, options.flagged)
    named = {name: getattr(options, name) for name in ("step", "role", "kind", "verdict", "order")}
    if options.n is None and not options.flagged and named == {name: parser().get_default(name) for name in named}:
        _print(_overview(index))
        return 0
    step, there = options.step, queries.steps(index)
    if step is not None and step not in there:
        for found in index.select("SELECT path, sentence FROM problems WHERE path = ?", f"step_{step:06d}.jsonl.gz"):
            raise UserError(f"rollouts/{found['path']} of {index.run} has none to show: {found['sentence']}.")
        known = f"it has steps {there[0]} to {there[-1]}" if there else "it has none yet"
        raise UserError(f"{index.run} has no rollouts of step {step}: {known}.")
    kinds = queries.kinds(index)
    if options.kind and options.kind not in kinds:
        raise UserError(f"{index.run} has no kind {options.kind!r}; its kinds are {', '.join(kinds) or 'none'}.")
    rows, total = queries.find_samples(index, **named, flag=options.flagged, limit=options.n or RESPONSES)
    for sample in rows:
        _print(_sample_lines(index, sample, whole=options.whole))
    print(f"{len(rows)} of {total} trajectories")
    return 0


def parser() -> Parser:
    parser = Parser("show", __doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory; it may be growing or damaged")
    parser.add_argument("--step", type=whole(0, 10**9), help="only responses of this step")
    parser.add_argument("--kind", help="only of this kind of task, or of this suite")
    parser.add_argument("--role", choices=("proposer", "solver"), help="only of this role")
    parser.add_argument("--verdict", choices=VERDICTS, help="only proposals and responses with this verdict")
    parser.add_argument("--flagged", nargs="?", const=ANY_RULE, metavar="RULE", help="only responses that "
        "the safety screen flagged, by this rule or by any")  # fmt: skip
    parser.add_argument("--order", choices=tuple(SAMPLE_ORDERS), default="step", help="order of the responses")
    parser.add_argument("-n", type=whole(1, 10_000), help=f"number of responses (default: {RESPONSES})")
    parser.add_argument("--task", metavar="ID", help="show one task with its attempts instead")
    parser.add_argument("--whole", action="store_true", help="print long prompts and responses in full")
    parser.set_defaults(kind="", role="", verdict="", flagged="")
    return parser


def _check_rule(index: RunIndex, asked: str) -> None:
    known = sorted({name.removeprefix(SAFETY) for each in queries.metrics(index) for name in each if SAFETY in name})
    rules = [name for name in known if name not in TOTALS]
    if asked and asked != ANY_RULE and rules and asked not in rules:
        raise UserError(f"The screen of {index.run} has no rule {asked!r}{did_you_mean(asked, rules)}")


def _print_task(index: RunIndex, id: str) -> None:
    known = queries.find_task(index, id)
    if known is not None:
        _print(_task_lines(index, known))
        return
    rows, total = queries.find_samples(index, problem_id=id, limit=20)
    if not rows:
        ids = [row[0] for row in index.select("SELECT id FROM tasks ORDER BY n DESC LIMIT 2000")]
        raise UserError(f"{index.run} has no task {id!r}{did_you_mean(id, ids)}")
    about = "it is a refused proposal, or a task that was derived from another"
    _print([f"{id} was not stored: {about}. {total} trajectories"])
    for row in rows:
        _print(_sample_lines(index, row, whole=False))


def _print(lines: Iterable[str]) -> None:
    """Print texts of a run, which may be a stranger's: none of them may steer the terminal."""
    print(*map(printable, lines), sep="\n")


def _overview(index: RunIndex) -> Iterator[str]:
    """What there is, and the hardest tasks of the last step."""
    steps = queries.steps(index)
    _, tasks = queries.find_tasks(index, limit=1)
    _, samples = queries.find_samples(index, limit=1)
    yield f"{index.run}: {samples} trajectories of {len(steps)} steps, {tasks} tasks"
    yield from (f"note: {path}: {sentence}" for path, sentence in queries.problems(index))
    if not steps:
        return
    yield f"\nstep {steps[-1]}"
    for (kind, role), counts in queries.verdicts(index, steps[-1]).items():
        yield f"  {kind:<10} {role:<9} " + ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    hardest, _ = queries.find_tasks(index, step_from=steps[-1], step_to=steps[-1], order="hardest", limit=10)
    if hardest:
        yield f"\nhardest tasks of step {steps[-1]}; --task ID shows one"
        for row in hardest:
            yield f"  {row['id']:<28} solve rate {_number(row['solve_rate'])}, {row['lines']} lines"


def _sample_lines(index: RunIndex, row: SampleRow, *, whole: bool) -> Iterator[str]:
    """Yield the lines of one sample with its texts."""
    yield f"── {_headline(row.sample)}"
    if row.sample.judgement is not None and row.sample.judgement.detail:
        yield f"why: {row.sample.judgement.detail}"
    try:
        sample = queries.read_texts(index, row)
    except Problem as problem:
        yield f"note: {problem}"
        return
    for rule, around in queries.flags_with_text(sample):
        yield f"flagged by {rule}: {_line(''.join(around), 2 * AROUND + 200)}"
    for name, text in (("prompt", sample.prompt), *queries.turns(sample)):
        yield f"{name}:"
        yield indent(text if whole else without_middle(text, SHOWN_CHARS, "; --whole shows them"), "    ")


def _headline(sample: Sample) -> str:
    """Return a sample in a line."""
    parts = [
        f"step {sample.step}", sample.kind, f"{sample.role} ({sample.phase})", sample.problem_id,
        sample.verdict or "no grade", f"reward {_number(sample.reward)}",
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


def _task_lines(index: RunIndex, task: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a task of `queries.find_task`, with its attempts, proposer and children."""
    solved = _number(task["solve_rate"])
    yield f"{task['id']} · {task['kind']} · step {task['step']} · solve rate {solved} · {task['lines']} lines"
    yield "program:"
    yield indent(task["program"], "    ")
    for given, returned in zip(task["inputs"], task["outputs"], strict=False):
        yield f"  f({given}) -> {returned}"
    if task["message"]:
        yield f"message: {task['message']}"
    yield f"references: {', '.join(task['parents']) or 'none'}"
    attempts, total = queries.find_samples(index, problem_id=task["id"], limit=MAX_ATTEMPTS)
    yield f"\nproposal and attempts{f', the newest {MAX_ATTEMPTS} of {total}' if total > MAX_ATTEMPTS else ''}:"
    for attempt in (each.sample for each in attempts):
        yield f"  {_headline(attempt)}"
        if attempt.judgement is None:
            continue
        if attempt.role == "solver":
            yield from (f"      {label}: {_line(text)}" for label, text in attempt.judgement.answer or ())
        if attempt.judgement.detail:
            yield f"      why: {_line(attempt.judgement.detail)}"
    for id, count, rate in queries.derived_attempts(index, task["id"]):
        yield f"derived task {id}: {count} attempts, {_number(rate)} right"
    below, total = queries.children(index, task["id"], 20)
    if total:
        yield f"children ({total}): {', '.join(below)}{' …' if total > len(below) else ''}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"


def _line(text: str, most: int = 200) -> str:
    return clipped(text.replace("\n", "\\n"), most)
