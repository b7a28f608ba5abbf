"""Print trajectories of a run, newest step first; without any choice, what there is and the hardest tasks of the last
step. An index is kept beside the run; it may be deleted."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from azr.cli.options import Parser, whole
from azr.errors import UserError, did_you_mean, printable
from azr.explorer import queries, terminal
from azr.explorer.index import RunIndex
from azr.explorer.queries import ANY_RULE, SAMPLE_ORDERS, SampleFilter
from azr.monitoring.texts import SAFETY, TOTALS
from azr.records import VALID
from azr.tasks.base import RejectReason, Verdict

VERDICTS = tuple(dict.fromkeys([VALID, *map(str, Verdict), *map(str, RejectReason)]))


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
    role, kind, verdict = options.role or "", options.kind or "", options.verdict or ""
    flag, order = _rule(index, options.flagged), options.order
    wanted = SampleFilter(
        step=options.step, role=role, kind=kind, verdict=verdict, flag=flag, order=order, limit=options.n
    )
    if wanted == SampleFilter(limit=options.n) and "-n" not in argv:
        _print(terminal.overview(index))
        return 0
    _check_step(index, options.step)
    kinds = queries.kinds(index)
    if options.kind is not None and options.kind not in kinds:
        raise UserError(f"{index.run} has no kind {options.kind!r}; its kinds are {', '.join(kinds) or 'none'}.")
    rows, total = queries.find_samples(index, wanted)
    for row in rows:
        _print(terminal.rollout(index, row, whole=options.whole))
    print(f"{len(rows)} of {total} trajectories")
    return 0


def parser() -> Parser:
    parser = Parser("show", __doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory; it may be growing or damaged")
    parser.add_argument("--step", type=whole(0, 10**9), help="only responses of this step")
    parser.add_argument("--kind", help="only of this kind of task, or of this suite")
    parser.add_argument("--role", choices=("proposer", "solver"), help="only of this role")
    parser.add_argument("--verdict", choices=VERDICTS, help="only proposals and responses with this verdict")
    parser.add_argument("--flagged", nargs="?", const=ANY_RULE, default="", metavar="RULE", help="only responses that "
        "the safety screen flagged, by this rule or by any")  # fmt: skip
    parser.add_argument("--order", choices=tuple(SAMPLE_ORDERS), default="step", help="order of the responses")
    parser.add_argument("-n", type=whole(1, 10_000), default=5, help="number of responses")
    parser.add_argument("--task", metavar="ID", help="show one task with its attempts instead")
    parser.add_argument("--whole", action="store_true", help="print long prompts and responses in full")
    return parser


def _rule(index: RunIndex, asked: str) -> str:
    known = sorted({name.removeprefix(SAFETY) for each in queries.metrics(index) for name in each if SAFETY in name})
    rules = [name for name in known if name not in TOTALS]
    if asked and asked != ANY_RULE and rules and asked not in rules:
        raise UserError(f"The screen of {index.run} has no rule {asked!r}{did_you_mean(asked, rules)}")
    return asked


def _check_step(index: RunIndex, step: int | None) -> None:
    there = queries.steps(index)
    if step is not None and step not in there:
        known = f"it has steps {there[0]} to {there[-1]}" if there else "it has none yet"
        raise UserError(f"{index.run} has no rollouts of step {step}: {known}.")


def _print_task(index: RunIndex, id: str) -> None:
    known = queries.find_task(index, id)
    if known is not None:
        _print(terminal.task(index, known))
        return
    rows, total = queries.find_samples(index, SampleFilter(problem_id=id, limit=20))
    if not rows:
        ids = [row[0] for row in index.select("SELECT id FROM tasks ORDER BY n DESC LIMIT 2000")]
        raise UserError(f"{index.run} has no task {id!r}{did_you_mean(id, ids)}")
    about = "it is a refused proposal, or a task that was derived from another"
    _print([f"{id} was not stored: {about}. {total} trajectories"])
    for row in rows:
        _print(terminal.rollout(index, row, whole=False))


def _print(lines: Iterable[str]) -> None:
    """Print texts of a run, which may be a stranger's: none of them may steer the terminal."""
    print(*map(printable, lines), sep="\n")
