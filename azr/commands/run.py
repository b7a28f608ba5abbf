"""``azr run`` and every recipe's command line: parse, check, run; a user's mistake is one sentence and exit code 2."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import difflib
import io
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
import yaml

from azr import preflight
from azr.checkpoint.changes import differences
from azr.checkpoint.resume import LATEST, Resumption, find, named
from azr.cluster.plan import table
from azr.cluster.plan.assumptions import Assumptions, Machine
from azr.cluster.plan.batch import Batch
from azr.cluster.plan.verdict import gpus_wanted, plan_run
from azr.config import Config
from azr.interrupt import Stopped
from azr.tracking.run_dir import folder

_FAILURE = 1
_USER_ERROR = 2
_INTERRUPTED = 130
USAGE = "usage: azr run CONFIG.yaml [--section.key value ...]"


@dataclass(frozen=True)
class _CommandLine:
    config: Annotated[Config, tyro.conf.arg(name="")]
    dry_run: bool = False
    """Print the resolved config and the plan, and exit."""
    resume: str | None = None
    """Go on with the run of this name from its newest complete checkpoint; or name a run or a checkpoint by its
    folder."""


def main(argv: Sequence[str]) -> int:
    """``azr run CONFIG.yaml [overrides]``: repeats a run from the config saved in its directory."""
    if {"--help", "-h"} & set(argv[:1]):
        print(f"{USAGE}\nEvery option, with its meaning and unit: azr run CONFIG.yaml --help")
        return 0
    if not argv or argv[0].startswith("-"):
        raise ValueError(f"azr run needs the config of a run first; {USAGE}")
    try:
        config = load(Path(argv[0]).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{argv[0]} is no config of a run: {error}") from error
    launch(config, argv[1:])
    return 0


def load(text: str) -> Config:
    """A config from YAML, e.g. a run's ``config.yaml``; what it leaves out has its default.

    Raises:
        ValueError: it is no mapping, a key is unknown (the message names the nearest one) or a value of a wrong type.
    """
    try:
        tree = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"This is not YAML: {error}".replace("\n", " ")) from error
    if not isinstance(tree, dict):
        raise ValueError(f"A config is a mapping of sections, not {type(tree).__name__}.")
    return parse(Config(), list(_options(tree))).config


def _options(tree: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The command line that says what a mapping says."""
    for key, value in tree.items():
        name = str(key).replace("_", "-")
        match value:
            case dict():
                yield from _options(value, f"{prefix}{name}.")
            case bool():
                yield f"--{prefix}{name}" if value else f"--{prefix}no-{name}"
            case list():
                yield from (f"--{prefix}{name}", *map(str, value))
            case _:
                yield f"--{prefix}{name}={value}"


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
        from azr.driver import Driver

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
    changes = differences(load((folder(run) / "config.yaml").read_text()), config)
    found = find(config, step)
    notes = tuple(f"changed: {change}" for change in changes) + found.notes
    return config, dataclasses.replace(found, notes=notes)


def parse(default: Config, argv: list[str]) -> _CommandLine:
    """Config after overrides.

    Raises:
        ValueError: an unknown key (the message names the nearest valid one) or a value of the wrong type.
        SystemExit: ``--help`` was asked for.
    """
    known = {f"--{key}" for key in _keys(default)} | {"--help", "-h", "--dry-run", "--no-dry-run", "--resume"}
    argv = _spelled_out(argv)
    for word in argv:
        flag = word.partition("=")[0].replace("_", "-")
        if word.startswith("--") and flag not in known:
            nearest = difflib.get_close_matches(flag, sorted(known), n=1, cutoff=0.0)[0]
            raise ValueError(f"There is no option {flag}; did you mean {nearest}?")
    if {"--help", "-h"} & set(argv):
        return tyro.cli(_CommandLine, default=_CommandLine(default), args=argv)
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint), contextlib.redirect_stdout(complaint):
            return tyro.cli(_CommandLine, default=_CommandLine(default), args=argv)
    except SystemExit as error:
        raise ValueError(_sentence(complaint.getvalue())) from error


def _spelled_out(argv: list[str]) -> list[str]:
    """A bare ``--resume`` means the run that the config names."""
    pairs = itertools.pairwise([*argv, "--"])
    return [f"{word}={LATEST}" if word == "--resume" and after.startswith("-") else word for word, after in pairs]


def _sentence(box: str) -> str:
    """What a parser's framed complaint says, on one line."""
    words = re.sub(r"[^\x20-\x7e]+", " ", box)
    _, said, *_ = re.split(r"-{3,}", words)
    return re.sub(r"\s+", " ", said.partition("For full helptext")[0]).strip(" .") + "; --help lists every option."


def _keys(node: Any, prefix: str = "") -> Iterator[str]:
    """Dotted option names of a config tree, as the command line spells them."""
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        name = field.name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            yield from _keys(value, f"{prefix}{name}.")
        else:
            yield prefix + name
            if isinstance(value, bool):
                yield f"{prefix}no-{name}"


def describe(config: Config) -> str:
    """The resolved config as YAML, what a step of it amounts to, and what it takes of GPUs such as it asks for."""
    bound = f", at most {config.run.max_minutes:g} minutes," if config.run.max_minutes is not None else ""
    head = f"plan: {config.run.steps} steps{bound} into {Path(config.run.root) / config.run.name}"
    lines = [head, *_plan(config).splitlines()]
    comment = "\n".join(f"# {line}".rstrip() for line in lines)
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False).rstrip() + "\n" + comment


def _plan(config: Config) -> str:
    """Tables for nodes of up to eight 80 GB GPUs, as many as the config asks for; `azr plan` makes them for others."""
    assumed = Assumptions()
    try:
        return table.text(*plan_run(config, Machine.with_gpus(gpus_wanted(config)), assumed))
    except ValueError as error:
        # A dry run is about the config; that nobody knows the model's shape yet is no mistake.
        return "\n".join([*table.step(config, Batch.of(config, assumed)), f"no tables of bytes and seconds: {error}"])
