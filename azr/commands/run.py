"""``azr run`` and every recipe's command line: parse, check, run; a user's mistake is one sentence and exit code 2."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import difflib
import io
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
import yaml

from azr import preflight
from azr.config import Config

_FAILURE = 1
_USER_ERROR = 2
_INTERRUPTED = 130
USAGE = "usage: azr run CONFIG.yaml [--section.key value ...]"


@dataclass(frozen=True)
class _CommandLine:
    config: Annotated[Config, tyro.conf.arg(name="")]
    dry_run: bool = False
    """Print the resolved config and the plan, and exit."""


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
        preflight.check_surroundings(command.config)
        from azr.experiment import SelfPlayExperiment

        asyncio.run(SelfPlayExperiment(command.config).run())
    except (ValueError, TimeoutError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(_USER_ERROR if isinstance(error, ValueError) else _FAILURE)
    except KeyboardInterrupt:
        print("interrupted: every process of the run was ended", file=sys.stderr)
        sys.exit(_INTERRUPTED)


def parse(default: Config, argv: list[str]) -> _CommandLine:
    """Config after overrides.

    Raises:
        ValueError: an unknown key (the message names the nearest valid one) or a value of the wrong type.
        SystemExit: ``--help`` was asked for.
    """
    known = {f"--{key}" for key in _keys(default)} | {"--help", "-h", "--dry-run", "--no-dry-run"}
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
    """The resolved config as YAML, and what a step of it amounts to."""
    play, rollout = config.selfplay, config.rollout
    proposals = len(play.kinds) * play.proposals_per_kind
    solves = len(play.kinds) * play.solves_per_kind
    estimates = proposals * play.estimate_samples
    trained = preflight.trajectories_per_step(config) + (estimates if play.train_on_estimates else 0)
    roles = ["policy", *["critic"] * config.algorithm.needs_critic, *["reference"] * config.algorithm.needs_reference]
    plan = (
        f"# plan: {config.run.steps} steps into {Path(config.run.root) / config.run.name}\n"
        f"# a step: {proposals} proposals, up to {estimates} estimate rollouts, {solves} solutions; "
        f"up to {trained} trajectories of at most {preflight.longest_trajectory(config)} tokens trained on\n"
        f"# roles: {', '.join(roles)}, {config.train.data_parallel} rank(s) each; {rollout.engines} engine(s)"
    )
    return yaml.safe_dump(dataclasses.asdict(config), sort_keys=False).rstrip() + "\n" + plan
