"""Grow the seed tasks of a recipe with its own model, save them and stop; nothing is trained. A run starts from the
file with --selfplay.seeds FILE. With --convert, files of the Absolute Zero authors' code are read instead (.jsonl,
.jsonl.gz), every task is run in the sandbox, and those that pass are saved."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from azr.cli.options import RECIPE_HELP, Parser, load_recipe
from azr.config import Config
from azr.config_tree import override
from azr.doctor.machine import check_machine, query_gpus
from azr.errors import UserError
from azr.executor.pool import SandboxPool
from azr.records import Task
from azr.runs.stop_signal import StopRequested
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.seeds import SINGLE_CALL_KINDS, check_seeds, read_authors_seeds, seeds_line, write_lines
from azr.tasks.registry import KINDS, SingleCallKind

USAGE = (
    "usage: azr seeds RECIPE --out FILE [--section.knob value ...]\n"
    "       azr seeds --convert FILE [FILE ...] --out FILE [--kinds KIND ...] [--executor.knob value ...]"
)


def main(argv: Sequence[str]) -> int:
    options, values = parser().parse_with_knobs(argv)
    if (options.recipe is None) == (options.convert is None):
        raise UserError("azr seeds needs a recipe, such as azr_coder7b_ppo, or files to --convert; --help says more.")
    _check_free(options.out)
    try:
        tasks = asyncio.run(_convert(options, values) if options.recipe is None else _growing(options, values))
    except StopRequested as stopped:
        print(f"{stopped}: nothing was saved", file=sys.stderr)
        return stopped.exit_code
    with _writing(options.out):
        write_lines(options.out, (task.record() for task in tasks))
    print(table(tasks))
    print(f"{len(tasks)} tasks are now in {options.out}; a run starts from them with --selfplay.seeds {options.out}")
    return 0


def _growing(options: argparse.Namespace, values: dict[str, Any]) -> Coroutine[Any, Any, list[Task]]:
    if options.kinds is not None:
        raise UserError("--kinds is for --convert; those of a recipe are selfplay.kinds.")
    from azr.prepare import check, prepare  # Only now, because these take a second to load.

    config = override(load_recipe(options.recipe), values)
    check(config)
    check_machine(config, query_gpus())
    prepared = prepare(config, into_run=False)
    _make_folder(options.out)
    from azr.runtime import grow_seeds  # Ray and vLLM take seconds to load.

    return grow_seeds(prepared, _rejects(options.out))


def table(tasks: Sequence[Task]) -> str:
    rows = [("kind", "tasks", "programs", "median lines")]
    for kind in KINDS:
        programs = [task.program for task in tasks if task.kind == kind]
        if programs:
            lines = statistics.median(len(program.splitlines()) for program in programs)
            rows.append((kind, str(len(programs)), str(len(set(programs))), f"{lines:g}"))
    return "\n".join(f"{kind:<10} {count:>6} {distinct:>9} {lines:>13}" for kind, count, distinct, lines in rows)


async def _convert(options: argparse.Namespace, values: dict[str, Any]) -> list[Task]:
    """Return the tasks that pass, file after file, and write the rejected ones next to the output."""
    if wrong := [name for name in values if not name.startswith("executor.")]:
        raise UserError(f"--convert only runs programs: of the knobs it takes those of executor, and not {wrong[0]}.")
    config, kinds, out = override(Config(), values).executor, _kinds(options.kinds), options.out
    contents = [(path, read_authors_seeds(path, kinds)) for path in options.convert]
    _make_folder(out)
    from azr.selfplay.proposer import proposal_limits  # Only now, because it loads transformers.

    # A buffer only to find repeats in: it must never be full.
    buffer = TaskBuffer(list(KINDS), capacity=1 + sum(len(lines) for _, lines in contents))
    tasks: list[Task] = []
    refused: list[dict[str, object]] = []
    async with SandboxPool(config) as pool:
        for path, lines in contents:
            passed, rejected, num_changed = await check_seeds(
                lines, buffer, proposal_limits(), pool.execute, lambda task: None
            )
            tasks += passed
            refused += [{"file": str(path), **each} for each in rejected]
            print(seeds_line(path, len(passed), rejected, num_changed, _rejects(out)))
    if refused:
        with _writing(out):
            write_lines(_rejects(out), refused)
    if not tasks:
        raise UserError(f"None of the tasks passed, so {out} was not written: {_rejects(out)} says why.")
    return [replace(task, id=f"seed-{number:06d}") for number, task in enumerate(tasks, 1)]


def _kinds(names: Sequence[str] | None) -> Sequence[str]:
    if names is None:
        return SINGLE_CALL_KINDS
    for name in names:
        if not isinstance(KINDS.find(name), SingleCallKind):
            raise UserError(f"A record with one call is no task of kind {name}; those with a message become that.")
    return tuple(dict.fromkeys(names))


def _check_free(out: Path) -> None:
    if out.suffix == ".gz":
        raise UserError(f"{out} would not be packed, as its name says: name a .jsonl file with --out.")
    if (taken := out).exists() or (taken := _rejects(out)).exists():
        raise UserError(f"{taken} exists already: name another file with --out, or remove it.")


def _make_folder(out: Path) -> None:
    with _writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)


@contextmanager
def _writing(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): name another file with --out.") from error


def _rejects(out: Path) -> Path:
    """Path of the rejected tasks, e.g. ``seeds_rejected.jsonl`` next to ``seeds.jsonl``."""
    return out.with_name(f"{out.name.removesuffix('.jsonl')}_rejected.jsonl")


def parser() -> Parser:
    parser = Parser("seeds", __doc__, usage=USAGE.removeprefix("usage: "))
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help=RECIPE_HELP)
    parser.add_argument("--out", metavar="FILE", type=Path, required=True, help="file to write; must not exist")
    parser.add_argument("--convert", metavar="FILE", type=Path, nargs="+", help="seed files of the authors' code")
    single = " and ".join(SINGLE_CALL_KINDS)
    kinds = f"with --convert: kinds made of a record with one call (default: {single}; `error` for the authors' code_e)"
    parser.add_argument("--kinds", metavar="KIND", nargs="+", help=kinds)
    return parser
