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
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import get_args

import yaml

from azr.cli.main import exit_code, run_as_process
from azr.cli.options import RECIPE_HELP, Parser, value_text
from azr.config import Config
from azr.config_rules import check
from azr.config_tree import config_options, leaves, override, to_tree
from azr.doctor import Mark
from azr.doctor.machine import Gpus, check_disk, check_machine, memory_bytes, oldest_gpu, product_flops, query_gpus
from azr.errors import UserError, printable
from azr.hardware import Device, compute_type
from azr.launch import Run, is_run, load_recipe, resolve
from azr.plan.inputs import GIB, Assumptions, ClusterSpec, Workload, shape_of
from azr.plan.memory import checkpoint_bytes, model_roles
from azr.plan.planner import check_memory, cpu_text, cpu_time, decide_here, known_plan, plan_run, step_lines, text
from azr.prepare import ModelUnreachable, prepare
from azr.runs.checkpoint_store import LATEST, Verify, resolve_run
from azr.runs.run_dir import RunDirectory
from azr.runs.stop_signal import StopRequested, stop_line
from azr.runs.trackers import hand_over

USAGE = "usage: azr run RECIPE [--dry-run] [--resume [RUN] [--verify LEVEL] | --restart] [--section.option value ...]"


def main(argv: Sequence[str]) -> int:
    """``azr run RECIPE [overrides]``; a run's folder resumes that run."""
    asks_help = {"--help", "-h"} & set(argv)
    words = [word for word in argv if word not in asks_help]
    options, values = parser(Config(), recipe=True).parse_with_overrides(words)
    name = options.recipe or (options.resume if options.resume != LATEST else None)
    if asks_help:
        parser(load_recipe(name) if name is not None else Config(), recipe=True).print_help()
        return 0
    if name is None:
        raise UserError(f"azr run needs a recipe or the folder of a run, before --resume if that is given; {USAGE}")
    if options.recipe is None and not is_run(name):
        options.resume = LATEST
    options.config = override(load_recipe(name), values)
    if is_run(name) and options.resume in (None, LATEST) and not {"run.name", "run.root"} & values.keys():
        if options.restart:
            options.config = dataclasses.replace(options.config, run=resolve_run(options.config.run, name)[0])
        else:
            options.resume = name
    return _start(options)


def launch(default: Config, argv: Sequence[str] | None = None) -> None:
    """Run a recipe's config with the overrides of the command line, and end the process with the command's code. With
    ``argv`` return after a success, and end the process after a failure."""
    command = partial(exit_code, lambda: _start(parse(default, sys.argv[1:] if argv is None else argv)))
    if argv is None:
        run_as_process(command)
    if code := command():
        sys.exit(code)


def _start(options: argparse.Namespace) -> int:
    if options.restart and options.resume is not None:
        raise UserError("--resume continues a run and --restart begins it again: give one of them.")
    if options.resume is None and options.verify is not None:
        raise UserError("--verify says how the checkpoint of --resume is looked at: leave it out, or add --resume.")
    check(options.config)
    with ExitStack() as owned:
        verify: Verify = options.verify or "headers"
        mine = None if options.dry_run else owned
        run = resolve(options.config, options.resume, restart=options.restart, verify=verify, owned=mine)
        if run.end is not None and not options.dry_run:
            hand_over(run.folder, run.config, run.step, print)
            print(run.end)
            return 0
        config, because = decide_recomputation(run.config, gpus := query_gpus())
        check_machine(config, gpus)
        warnings = fit_notes(config, gpus, memory_bytes() / GIB, suppose=options.dry_run)
        warnings += disk_notes(config, suppose=options.dry_run)
        run, on_cpu = dataclasses.replace(run, config=config), _is_on_cpu(config, gpus)
        minutes, steps = list[str](), config.run.steps - run.step
        if on_cpu and config.data.path is None:
            with suppress(UserError):  # the shape of the model is not known
                minutes = [cpu_time(config, steps, product_flops(compute_type(config.train.dtype, "cpu")))]
        if options.dry_run:
            return _dry_run(run, [*because, *warnings, *minutes], on_cpu=on_cpu)
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
        return _run(run, because, minutes)


def _run(run: Run, because: Sequence[str], minutes: Sequence[str]) -> int:
    """Run to the end, with lines for its log and for the terminal. Raises UserError if the run is refused."""
    prepared = prepare(run)
    prepared = dataclasses.replace(prepared, notes=[*prepared.notes, *because])
    if run.restart and (kept := run.folder.keep_aside()) is not None:
        print(f"the run that was there is kept in {kept}", file=sys.stderr)
    for line in minutes:
        print(line, flush=True)
    from azr.runtime import Driver  # Ray and vLLM take seconds to load.

    try:
        asyncio.run(Driver(prepared).run())
    except StopRequested as stopped:
        print(stop_line(stopped.exit_code - 128, run.folder), file=sys.stderr)
        return stopped.exit_code
    except (OSError, TimeoutError) as error:
        if not run.folder.log.exists():
            raise
        print(f"error: {printable(str(error))}: --resume continues from the last checkpoint", file=sys.stderr)
        return 1
    return 0


def fit_notes(config: Config, gpus: Gpus, host_gib: float | None = None, *, suppose: bool = False) -> list[str]:
    """Return warnings if the run may not fit on the GPUs of this machine, or in its memory if that is given; raises
    UserError if it certainly does not, or if a GPU is too old for CUDA 13.

    Returns none for a run on a CPU. Without GPUs of known memory here, or for a cluster, the GPUs are not known yet:
    returns none either, but with ``suppose`` compares the run with 80 GB GPUs.
    """
    if config.train.device == "cpu":
        return []
    here = gpus if config.cluster.address is None else Gpus()
    size = max(here.sizes_mib, default=0) / 1024 if here.all else 80.0 if suppose else 0
    notes = []
    if here.all and config.num_gpus > len(here.all):
        remedy = "lower train.data_parallel and rollout.engines, or name a larger cluster by cluster.address"
        notes = [f"the run takes {config.num_gpus} GPUs, and this machine has {len(here.all)}: {remedy}"]
    if here.all and (old := oldest_gpu()) is not None:
        if old.mark is Mark.MISSING:
            raise UserError(f"{old.message}.")
        notes.append(old.message)
        config = _typed(config, "cuda")
    plan = known_plan(config, size, host_gib if here.all else None) if size else None
    return notes + (check_memory(plan) if plan is not None else [])


def decide_recomputation(config: Config, gpus: Gpus) -> tuple[Config, list[str]]:
    """Decide `train.gradient_checkpointing` auto by this machine. Return also a line that says why, if it was auto."""
    if config.train.gradient_checkpointing != "auto":
        return config, []
    on_cpu = _is_on_cpu(config, gpus)
    gib = min(gpus.sizes_mib, default=0) / 1024 if config.cluster.address is None else 0
    typed = _typed(config, "cpu" if on_cpu else "cuda")
    decided, because = decide_here(typed, memory_bytes() / GIB if on_cpu else gib, on_cpu=on_cpu)
    return dataclasses.replace(decided, train=dataclasses.replace(decided.train, dtype=config.train.dtype)), [because]


def _typed(config: Config, device: Device) -> Config:
    """Return the config with `train.dtype` auto decided."""
    dtype = compute_type(config.train.dtype, device)
    return dataclasses.replace(config, train=dataclasses.replace(config.train, dtype=dtype))


def _is_on_cpu(config: Config, gpus: Gpus) -> bool:
    return config.train.device == "cpu" or not (config.train.device == "cuda" or config.cluster.address or gpus.all)


def disk_notes(config: Config, *, suppose: bool = False) -> list[str]:
    """Return a warning if the disk has no room for the checkpoints that stay and the one that is being written; none
    if the model's shape is not known here. Raises UserError as `check_disk`."""
    try:
        roles = model_roles(config, shape_of(config.model.path))
    except UserError:
        return []
    # The next one is written aside before the oldest goes.
    copies = config.checkpoint.keep + 1 if config.checkpoint.every else 1
    return check_disk(Path(config.run.root), copies, checkpoint_bytes(roles, config.train), suppose=suppose)


def _dry_run(run: Run, notes: list[str], *, on_cpu: bool) -> int:
    """Print what would run. Raises UserError if the run would be refused."""
    if run.resume is not None:
        notes = [*run.resume.notes, *([run.end] if run.end is not None else []), *notes]
    try:
        notes += prepare(run, fetch=False).notes
    except ModelUnreachable as unchecked:
        notes.append(str(unchecked))
    print("\n".join([describe(run.config, on_cpu=on_cpu), *(f"# {note}" for note in notes)]))
    return 0


def parse(default: Config, argv: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command, with the config after overrides as ``config``.

    Raises:
        UserError: an option is unknown (the message names the nearest one), or a value has a wrong type or is out of
            bounds.
        SystemExit: ``--help`` was printed.
    """
    options, values = parser(default).parse_with_overrides(argv)
    options.config = override(default, values)
    return options


def parser(default: Config, *, recipe: bool = False) -> Parser:
    about = "Run self-play. Each option of the config overrides the recipe or the saved config."
    parser = Parser("run", about, usage=USAGE.removeprefix("usage: "), more_help="\n".join(_help(default)) + "\n")
    if recipe:
        parser.add_argument("recipe", metavar="RECIPE", nargs="?", help=RECIPE_HELP)
    parser.add_argument("--dry-run", action="store_true", help="check everything that can be checked without starting "
        "anything, print the resolved config and the plan, and exit")  # fmt: skip
    parser.add_argument("--resume", nargs="?", const=LATEST, metavar="RUN", help="continue the run of this name from "
        "its newest complete checkpoint; or name a run or a checkpoint by its folder")  # fmt: skip
    parser.add_argument("--restart", action="store_true", help="begin again: a run of this name that is there already "
        "is kept under another name")  # fmt: skip
    parser.add_argument("--verify", choices=get_args(Verify), help="with --resume: look at sizes "
        "and headers of the checkpoint's large files, or read all of them and compare digests")  # fmt: skip
    return parser


def _help(default: Config) -> Iterator[str]:
    """Yield lines on every option by section: its value, what it accepts, and the first sentence of its docs."""
    now, width, section = leaves(default), min(120, shutil.get_terminal_size().columns), ""
    for option in config_options().values():
        if section != (section := option.path.partition(".")[0]):
            yield f"\n{section}:"
        value = now.get(option.path, option.schema.get("default"))  # of another choice
        only = f"; only with {' or '.join(option.owners)}" if option.owners else ""
        yield f"  {option.flag} {value_text(value)}  ({option.accepts}{only})"
        sentence = re.split(r"(?<=\.)\s", option.doc)[0]
        yield textwrap.fill(sentence, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
    yield "\nA switch needs no value; --section.no-option turns it off. azr/config.py says more about each option."


def describe(config: Config, *, on_cpu: bool = False) -> str:
    """Return the resolved config as YAML, and as comments the work of a step and a plan of memory and time.

    The plan is for nodes of up to eight 80 GB GPUs, as many as the config needs; `azr plan` makes it for others.
    ``on_cpu``: it is for this machine's memory.
    """
    bound = f", at most {config.run.max_minutes:g} minutes," if config.run.max_minutes is not None else ""
    head = f"plan: {config.run.steps} steps{bound} into {RunDirectory.of(config.run).path}"
    assumed, nodes = Assumptions(), ClusterSpec.with_gpus(config.num_gpus)
    try:
        plan = cpu_text(config, memory_bytes()) if on_cpu else text(*plan_run(config, nodes, assumed))
    except UserError as error:
        # The shape of the model is not known here, which is not a mistake in the config.
        step = step_lines(config, Workload.of(config, assumed))
        plan = "\n".join([*step, f"no tables of bytes and seconds: {error}"])
    comment = "\n".join(f"# {line}".rstrip() for line in [head, *plan.splitlines()])
    return yaml.safe_dump(to_tree(config), sort_keys=False, allow_unicode=True).rstrip() + "\n" + comment
