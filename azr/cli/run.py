"""``azr run`` and every recipe's command line: parse, prepare, and run; ``--dry-run`` prints the plan instead."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import get_args

import yaml

from azr.cli.main import exit_code
from azr.cli.options import RECIPE_HELP, RUN_CONFIG, Parser, is_run, load_recipe, read_config, value_text
from azr.config import Config, RunConfig
from azr.config_tree import knobs, leaves, override, to_tree
from azr.doctor.machine import check_disk, check_fit, check_machine, memory_bytes, query_gpus
from azr.errors import UserError, printable
from azr.own_data import find_own_data
from azr.plan.inputs import Assumptions, ClusterSpec, Workload
from azr.plan.planner import cpu_text, plan_run, step_lines, text
from azr.prepare import ModelUnreachable, check, prepare
from azr.runs.checkpoint_store import (
    LATEST,
    ResumeState,
    RunState,
    Verify,
    config_changes,
    find_checkpoint,
    resolve_run,
)
from azr.runs.run_dir import RunOwner, keep_aside, run_path
from azr.runs.stop_signal import StopRequested
from azr.runs.trackers import hand_over

USAGE = "usage: azr run RECIPE [--dry-run] [--resume [RUN] [--verify LEVEL] | --restart] [--section.knob value ...]"
_INTERRUPTED, _FAILED = 130, 1
_OWN_DATA = ("model.path", "eval.path", "selfplay.seeds")
"""Knobs that may name data of this project."""


def main(argv: Sequence[str]) -> int:
    """``azr run RECIPE [overrides]``; a run's folder goes on with that run."""
    asks_help = {"--help", "-h"} & set(argv)
    options, values = parser(Config(), recipe=True).parse_with_knobs([word for word in argv if word not in asks_help])
    name = options.recipe or (options.resume if options.resume != LATEST else None)
    if asks_help:
        parser(load_recipe(name) if name is not None else Config(), recipe=True).print_help()
        return 0
    if name is None:
        raise UserError(f"azr run needs a recipe or the folder of a run, before --resume if that is given; {USAGE}")
    if options.recipe is None and not is_run(name):
        options.resume = LATEST
    config = load_recipe(name)
    options.config = override(_with_own_data(config) if is_run(name) else config, values)
    if is_run(name) and options.resume in (None, LATEST) and not {"run.name", "run.root"} & values.keys():
        if options.restart:
            options.config = dataclasses.replace(options.config, run=resolve_run(options.config.run, name)[0])
        else:
            options.resume = name
    return _start(options)


def launch(default: Config, argv: Sequence[str] | None = None) -> None:
    """Run a recipe's config with the overrides of its command line. Exit the process with a code other than 0 after a
    failure."""
    if code := exit_code(lambda: _start(parse(default, sys.argv[1:] if argv is None else argv))):
        sys.exit(code)


def _start(options: argparse.Namespace) -> int:
    if options.restart and options.resume is not None:
        raise UserError("--resume goes on with a run and --restart begins it again: give one of them.")
    config, resume = options.config, None
    check(config)
    with ExitStack() as owned:
        if options.resume is not None:
            run, step = resolve_run(config.run, options.resume)
            config = dataclasses.replace(config, run=run)
            if not options.dry_run:
                owned.callback(RunOwner(run_path(run)).release)
            saved = _with_own_data(read_config(str(run_path(run) / RUN_CONFIG)))
            changes = config_changes(saved, config)
            found = find_checkpoint(config, step, options.verify)
            notes = (*(f"changed: {change}" for change in changes), *found.notes)
            if (end := _reached_end(run, found.state)) is not None:
                notes = (*notes, end)
                if not options.dry_run:
                    hand_over(run_path(run), config, found.state.step, print)
                    print(end)
                    return 0
            resume = dataclasses.replace(found, notes=notes)
        return _run(options, config, resume)


def _with_own_data(saved: Config) -> Config:
    """Return a run's config with the paths of own data as they are from this working directory."""
    known = leaves(saved)
    paths = {name: path for name in _OWN_DATA if isinstance(path := known[name], str)}
    return override(saved, {name: find_own_data(path) for name, path in paths.items()})


def _reached_end(run: RunConfig, state: RunState) -> str | None:
    """Return why nothing is left of a run; None if there are steps."""
    if state.step >= run.steps:
        return f"step {state.step} of --run.steps {run.steps} is done, so nothing is left to do: raise it to go on"
    if run.max_minutes is not None and state.elapsed_s > 60 * run.max_minutes:
        taken = f"the {state.step} steps have taken {state.elapsed_s / 60:.1f} minutes of --run.max-minutes"
        return f"{taken} {run.max_minutes:g}, so nothing is left to do: raise it to go on"
    return None


def _run(options: argparse.Namespace, config: Config, resume: ResumeState | None) -> int:
    """Run, or print what would run. Raises UserError if the run would be refused or does not fit."""
    here = query_gpus()
    check_machine(config, here)
    notes = [*check_fit(config, here, suppose=options.dry_run), *check_disk(config)]
    if options.dry_run:
        return _dry_run(config, resume, notes, restart=options.restart, has_gpu=bool(here.all))
    for note in notes:
        print(f"warning: {note}", file=sys.stderr)
    prepared = prepare(config, resume, restart=options.restart)
    if options.restart and (kept := keep_aside(config.run)) is not None:
        print(f"the run that was there is kept in {kept}", file=sys.stderr)
    from azr.runtime import Driver  # Ray and vLLM take seconds to load.

    try:
        asyncio.run(Driver(prepared).run())
    except StopRequested as stopped:
        begun = is_run(str(run_path(config.run)))
        left = "what was done is saved, and --resume goes on from there" if begun else "nothing had been done yet"
        print(f"{stopped}: {left}", file=sys.stderr)
        return stopped.exit_code
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted: every process of the run was ended", file=sys.stderr)
        return _INTERRUPTED
    except (OSError, TimeoutError) as error:
        if not (run_path(config.run) / "log.txt").exists():
            raise
        print(f"error: {printable(str(error))}: --resume goes on from the last checkpoint", file=sys.stderr)
        return _FAILED
    return 0


def _dry_run(config: Config, resume: ResumeState | None, notes: Sequence[str], *, restart: bool, has_gpu: bool) -> int:
    said = [*(resume.notes if resume is not None else ()), *notes]
    try:
        said += prepare(config, resume, fetch=False, restart=restart).notes
    except ModelUnreachable as unchecked:
        said.append(str(unchecked))
    on_cpu = config.train.device == "cpu" or not (config.train.device == "cuda" or config.cluster.address or has_gpu)
    print(describe(config, on_cpu=on_cpu))
    for note in said:
        print(f"# {note}")
    return 0


def parse(default: Config, argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command, with the config after overrides as ``config``.

    Raises:
        UserError: an option is unknown (the message names the nearest one), or a value has a wrong type or is out of
            bounds.
        SystemExit: ``--help`` was printed.
    """
    options, values = parser(default).parse_with_knobs(argv)
    options.config = override(default, values)
    return options


def parser(default: Config, *, recipe: bool = False) -> Parser:
    about = "Run self-play. Each option for a knob overrides the recipe or the saved config."
    parser = Parser("run", about, usage=USAGE.removeprefix("usage: "), more_help="\n".join(_help(default)) + "\n")
    if recipe:
        parser.add_argument("recipe", metavar="RECIPE", nargs="?", help=RECIPE_HELP)
    parser.add_argument("--dry-run", action="store_true", help="check everything that can be checked without starting "
        "anything, print the resolved config and the plan, and exit")  # fmt: skip
    parser.add_argument("--resume", nargs="?", const=LATEST, metavar="RUN", help="go on with the run of this name from "
        "its newest complete checkpoint; or name a run or a checkpoint by its folder")  # fmt: skip
    parser.add_argument("--restart", action="store_true", help="begin again: a run of this name that is there already "
        "is kept under another name")  # fmt: skip
    parser.add_argument("--verify", choices=get_args(Verify), default="headers", help="with --resume: look at sizes "
        "and headers of the checkpoint's large files, or read all of them and compare digests")  # fmt: skip
    return parser


def _help(default: Config) -> Iterator[str]:
    """Yield lines on every option by section: its value, what it accepts, and the first sentence of its docs."""
    now, width, section = leaves(default), min(120, shutil.get_terminal_size().columns), ""
    for knob in knobs().values():
        if section != (section := knob.path.partition(".")[0]):
            yield f"\n{section}:"
        value = now.get(knob.path, knob.schema.get("default"))  # of another choice
        only = f"; only with {' or '.join(knob.owners)}" if knob.owners else ""
        yield f"  {knob.option} {value_text(value)}  ({knob.accepts}{only})"
        sentence = re.split(r"(?<=\.)\s", knob.doc)[0]
        yield textwrap.fill(sentence, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    yield "\nA switch needs no value; --section.no-knob turns it off. azr/config.py says more about each knob."


def describe(config: Config, *, on_cpu: bool = False) -> str:
    """Return the resolved config as YAML, and as comments the work of a step and a plan of memory and time.

    The plan is for nodes of up to eight 80 GB GPUs, as many as the config needs; `azr plan` makes it for others.
    ``on_cpu``: it is for this machine's memory.
    """
    bound = f", at most {config.run.max_minutes:g} minutes," if config.run.max_minutes is not None else ""
    head = f"plan: {config.run.steps} steps{bound} into {Path(config.run.root) / config.run.name}"
    assumed = Assumptions()
    try:
        if on_cpu:
            plan = cpu_text(config, memory_bytes())
        else:
            plan = text(*plan_run(config, ClusterSpec.with_gpus(config.num_gpus), assumed))
    except UserError as error:
        # The shape of the model is not known here, which is no mistake in the config.
        step = step_lines(config, Workload.of(config, assumed))
        plan = "\n".join([*step, f"no tables of bytes and seconds: {error}"])
    comment = "\n".join(f"# {line}".rstrip() for line in [head, *plan.splitlines()])
    return yaml.safe_dump(to_tree(config), sort_keys=False, allow_unicode=True).rstrip() + "\n" + comment
