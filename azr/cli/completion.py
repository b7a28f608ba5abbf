"""Print what makes a shell complete commands, recipes, options and knobs. bash: add eval "$(azr completion bash)" to
~/.bashrc; zsh: azr completion zsh > a file _azr in a folder of $fpath; fish: azr completion fish >
~/.config/fish/completions/azr.fish."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import shtab

from azr.cli.main import COMMANDS, load_command
from azr.cli.options import Parser, knob_options, recipes
from azr.config import ESTIMATOR_TYPES, Config
from azr.config_tree import ESTIMATOR, Knob

_KNOBS_FOR = ("cluster", "doctor", "eval", "plan", "prompts", "run", "seeds")
"""Commands that take knobs of a config."""
_SHELLS = ("bash", "zsh", "fish")


def main(argv: Sequence[str]) -> int:
    options = parser().parse(argv)
    print(shtab.complete(_everything(), options.shell))
    return 0


def parser() -> Parser:
    parser = Parser("completion", __doc__)
    parser.add_argument("shell", choices=_SHELLS, metavar="|".join(_SHELLS), help="shell to write completion for")
    return parser


def _everything() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="azr")
    whole.add_argument("--version", action="store_true", help="print the version of the code")
    commands = whole.add_subparsers()
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about)
        module = load_command(name)
        takes = command.add_subparsers().add_parser("prepare", help=about) if name == "data" else command
        _add(takes, module.parser(Config(), recipe=True) if name == "run" else module.parser())
        _add_knobs(command, name)
    return whole


def _add(command: argparse.ArgumentParser, its: Parser) -> None:
    for action in its._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        if action.type is Path or action.metavar in ("RUN", "MODEL|RUN", "FILE"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        command._add_action(action)


def _add_knobs(command: argparse.ArgumentParser, name: str) -> None:
    for action in command._actions:
        if action.metavar == "RECIPE":
            action.choices = list(recipes())
    if name in _KNOBS_FOR:
        for option, (knob, _) in knob_options().items():
            about = knob.doc.partition(". ")[0].replace("%", "%%")
            values = _values(knob)
            if knob.type == "boolean":
                command.add_argument(option, action="store_true", help=about)
            else:
                command.add_argument(option, choices=values, help=about)


def _values(knob: Knob) -> list[str] | None:
    """Return the values of an option if these are a list of names."""
    if knob.path == ESTIMATOR:
        return list(ESTIMATOR_TYPES)
    return list(knob.choices) or knob.schema.get("enum")
