"""``azr run`` and every recipe's command line: parse, check, run; a user's mistake is one sentence and exit code 2."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_origin

import yaml

from azr import preflight
from azr.cli.options import Parser
from azr.config import Config
from azr.config_tree import describe as describe_type
from azr.config_tree import from_yaml, knobs, leaves, override, to_tree
from azr.plan import planner
from azr.plan.inputs import Assumptions, ClusterSpec, Workload
from azr.runs.config_changes import differences
from azr.runs.resume import LATEST, Resumption, find, named
from azr.runs.run_dir import folder
from azr.runs.stop_signal import Stopped

_FAILURE = 1
_USER_ERROR = 2
_INTERRUPTED = 130
USAGE = "usage: azr run CONFIG.yaml [--section.key value ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandLine:
    """What a command line asks for."""

    config: Config
    dry_run: bool
    resume: str | None
    """What ``--resume`` names; `LATEST` when it names nothing."""


def main(argv: Sequence[str]) -> int:
    """``azr run CONFIG.yaml [overrides]``: repeats a run from the config saved in its directory."""
    if {"--help", "-h"} & set(argv[:1]):
        print(f"{USAGE}\nEvery option, with its meaning and unit: azr run CONFIG.yaml --help")
        return 0
    if not argv or argv[0].startswith("-"):
        raise ValueError(f"azr run needs the config of a run first; {USAGE}")
    try:
        config = from_yaml(Path(argv[0]).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{argv[0]} is no config of a run: {error}") from error
    launch(config, argv[1:])
    return 0


def launch(default: Config, argv: Sequence[str] | None = None) -> None:
    """Runs an experiment from a recipe's config and the command line's overrides, then exits the process."""
    try:
        command = parse(default, sys.argv[1:] if argv is None else list(argv))
        preflight.check(command.config)
        if command.dry_run:
            print(describe(command.config))
            return
        config, resumption = resumed(command.config, command.resume)
        preflight.check_surroundings(config, resumed=resumption is not None)
        from azr.runtime import Driver

        asyncio.run(Driver(config, resumption).run())
    except (ValueError, TimeoutError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(_USER_ERROR if isinstance(error, ValueError) else _FAILURE)
    except Stopped as stopped:
        begun = (folder(config.run) / "config.yaml").exists()
        left = "what was done is saved, and --resume goes on from there" if begun else "nothing had been done yet"
        print(f"{stopped}: {left}", file=sys.stderr)
        sys.exit(stopped.exit_code)
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted: every process of the run was ended", file=sys.stderr)
        sys.exit(_INTERRUPTED)


def resumed(config: Config, where: str | None) -> tuple[Config, Resumption | None]:
    """The config with the place of the run that ``--resume`` names, and where that run goes on.

    Raises:
        ValueError: there is no such run or checkpoint, or it cannot go on with this config.
    """
    if where is None:
        return config, None
    run, step = named(config.run, where)
    config = dataclasses.replace(config, run=run)
    changes = differences(from_yaml((folder(run) / "config.yaml").read_text()), config)
    found = find(config, step)
    notes = tuple(f"changed: {change}" for change in changes) + found.notes
    return config, dataclasses.replace(found, notes=notes)


def parse(default: Config, argv: Sequence[str]) -> CommandLine:
    """Config after overrides.

    Raises:
        UserError: an unknown option (the message names the nearest one), or a value of a wrong type or out of bounds.
        SystemExit: ``--help`` was asked for.
    """
    parser = _parser(default)
    options = vars(parser.parse(argv))
    dry_run, resume = options.pop("dry_run"), options.pop("resume")
    return CommandLine(config=override(default, options), dry_run=dry_run, resume=resume)


def _parser(default: Config) -> Parser:
    """An option per knob. Values stay text: `azr.config_tree` reads and checks them as it does those of YAML."""
    parser = Parser("run", "Run self-play; every option overrides the recipe or the saved config.", defaults=False)
    parser.add_argument("--dry-run", action="store_true", help="check everything that can be checked without starting "
        "anything, print the resolved config and the plan, and exit")  # fmt: skip
    parser.add_argument("--resume", nargs="?", const=LATEST, metavar="RUN", help="go on with the run of this name from "
        "its newest complete checkpoint; or name a run or a checkpoint by its folder")  # fmt: skip
    now, groups = leaves(default), {}
    for knob in knobs():
        section = knob.path.split(".")[0]
        if section not in groups:
            groups[section] = parser.add_argument_group(section)
        said = f"; now {_text(now[knob.path])}" if knob.path in now else ""
        owner = f"estimator {knob.owner}: " if knob.owner else ""
        options: dict[str, Any] = {"dest": knob.path, "default": argparse.SUPPRESS}
        options["help"] = f"{owner}{knob.doc} ({describe_type(knob.type)}{said})".replace("%", "%%")
        if knob.type is bool:
            options["action"] = argparse.BooleanOptionalAction
        elif get_origin(knob.type) is tuple:
            options |= {"nargs": "+", "metavar": "NAME"}
        else:
            options["metavar"] = "VALUE"
        groups[section].add_argument(knob.option, **options)
    return parser


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def describe(config: Config) -> str:
    """The resolved config as YAML, what a step of it amounts to, and what it takes of GPUs such as it asks for."""
    bound = f", at most {config.run.max_minutes:g} minutes," if config.run.max_minutes is not None else ""
    head = f"plan: {config.run.steps} steps{bound} into {Path(config.run.root) / config.run.name}"
    lines = [head, *_plan(config).splitlines()]
    comment = "\n".join(f"# {line}".rstrip() for line in lines)
    return yaml.safe_dump(to_tree(config), sort_keys=False).rstrip() + "\n" + comment


def _plan(config: Config) -> str:
    """Tables for nodes of up to eight 80 GB GPUs, as many as the config asks for; `azr plan` makes them for others."""
    assumed = Assumptions()
    try:
        return planner.text(*planner.plan_run(config, ClusterSpec.with_gpus(config.num_gpus), assumed))
    except ValueError as error:
        # A dry run is about the config; that nobody knows the model's shape yet is no mistake.
        return "\n".join(
            [*planner.step_lines(config, Workload.of(config, assumed)), f"no tables of bytes and seconds: {error}"]
        )
