"""Options of a command, those for the options of a config too."""

from __future__ import annotations

import argparse
import math
import socket
from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise, takewhile
from typing import Any, NoReturn

from azr.config_tree import ConfigOption, config_options, expand_home
from azr.errors import UserError, did_you_mean


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Shows defaults as they are typed, and none that is nothing."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = action.default
        if default in (None, "", (), argparse.SUPPRESS) or default is False:
            return action.help
        shown = "on" if default is True else ",".join(map(str, default)) if isinstance(default, tuple) else default
        return f"{action.help or ''} (default: {str(shown).replace('%', '%%')})".lstrip()


class Parser(argparse.ArgumentParser):
    """``parse`` raises UserError with one sentence; an unknown option is answered with the nearest one."""

    def __init__(self, command: str, description: str | None, usage: str | None = None, more_help: str = "") -> None:
        """`more_help`: text that ``--help`` prints, as it is, below the options."""
        super().__init__(
            prog=f"azr {command}",
            usage=usage,
            description=description,
            allow_abbrev=False,
            formatter_class=_HelpFormatter,
        )
        self._more_help = more_help

    def format_help(self) -> str:
        return super().format_help() + self._more_help

    def parse(self, argv: Sequence[str], others: Collection[str] = ()) -> argparse.Namespace:
        """The options; `others` are known elsewhere, and may be what a wrong one was meant to be. Raises UserError, and
        SystemExit when ``--help`` is among them."""
        # Before argparse, which would rather complain about what else is missing.
        for word in argv:
            flag = word.partition("=")[0]
            if word.startswith("--") and flag not in self._option_string_actions:
                raise _no_option(flag, [*self._option_string_actions, *others])
        return self.parse_args(list(map(_expand_home, argv)))

    def parse_with_overrides(self, argv: Sequence[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
        """Parse as ``parse`` for a command that also takes options of a config, whose names have a dot.

        Their values, by path, stay text, which `azr.config_tree` reads and checks. A switch needs no value, and
        ``--section.no-option`` turns it off. A list is one word with commas, or, once the positional arguments are
        given, all words up to the next option.
        """
        known, own, given = option_flags(), list[str](), list[tuple[str, str, list[str]]]()
        words = deque(argv)
        while words:
            word = words.popleft()
            flag, has_value, value = word.partition("=")
            if not flag.startswith("--") or "." not in flag:
                own.append(word)
                continue
            name = flag.replace("_", "-")
            if name.startswith(_OF_ESTIMATOR) and name not in known:  # a plug-in's, which is not loaded yet
                known[name] = ConfigOption(path=flag[2:].replace("-", "_"), schema={"type": "string"}), False
            if name not in known:
                raise _no_option(flag, known)
            (option, off), count = known[name], 1
            following = [*takewhile(lambda word: not word.startswith("--"), words)]
            if option.type == "array" and "," not in "".join(following[:1]) and self._has_positionals(own):
                count = len(following)
            elif option.type == "boolean":
                count = sum(not off and word.lower() in ("true", "false") for word in following[:1])
            texts = [value] if has_value else [words.popleft() for _ in following[:count]]
            given.append((flag, name, texts))
        options = self.parse(own, known)
        values: dict[str, Any] = {}
        for flag, name, texts in given:
            option, off = known[name]
            if option.type == "array" and option.path in values:
                raise UserError(f"{name} is given twice: give its values once, with commas between them.")
            values[option.path] = _value(option, flag, texts, off=off)
        return options, values

    def _has_positionals(self, words: Sequence[str]) -> bool:
        """Whether words give every positional argument."""
        takers = {flag for flag, action in self._option_string_actions.items() if action.nargs != 0}
        given = [word for before, word in pairwise(["", *words]) if not word.startswith("-") and before not in takers]
        return len(given) >= len(self._get_positional_actions())

    def add_model(self, *, required: bool = True) -> None:
        """Add MODEL|RUN and the options that say which policy of a run is meant, and how it is asked."""
        place = "run directory, Hugging Face folder or hub name"
        self.add_argument("model", nargs=None if required else "?", metavar="MODEL|RUN", help=place)
        self.add_argument("--step", type=whole(0, 10**9), help="step of the run's policy (default: the last)")
        self.add_argument("--template", default="train", help="prompt: train, conversation, tokenizer or FILE.jinja")
        self.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto", help="compute type")

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help lists every option.")


def _expand_home(word: str) -> str:
    """A word of a command line with the home folder for a ``~`` that the shell has left in it."""
    flag, equals, value = word.partition("=")
    return f"{flag}={expand_home(value)}" if equals and flag.startswith("--") else str(expand_home(word))


def _no_option(flag: str, known: Collection[str]) -> UserError:
    section, _, name = flag.removeprefix("--no-").partition(".")
    off = f"--{section}.no-{name}"
    return UserError(f"There is no option {flag}{did_you_mean(off if off in known else flag, known)}")


def option_flags() -> dict[str, tuple[ConfigOption, bool]]:
    """Return each flag's option, and whether the flag turns a switch off."""
    flags = {option.flag: (option, False) for option in config_options().values()}
    for flag, (option, _) in list(flags.items()):
        if option.type == "boolean":
            section, _, name = flag.rpartition(".")
            flags[f"{section}.no-{name}"] = (option, True)
    return flags


def _value(option: ConfigOption, flag: str, given: list[str], *, off: bool) -> Any:
    if option.type == "boolean" and not given:
        return not off
    if option.type == "array" and given:
        return [name for word in given for name in map(str.strip, word.split(","))]
    if len(given) == 1 and not off:
        return given[0]
    wants = "no value" if off else option.accepts
    raise UserError(f"{flag} takes {wants}, not {' '.join(given) or 'nothing'}.")


def whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > len(str(most)) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return read


def number(what: str, is_valid: Callable[[float], bool]) -> Callable[[str], float]:
    """Return a reader of numbers for which ``is_valid`` holds; ``what`` describes them."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not is_valid(value):
            raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}")
        return value

    return read


def above(bound: float) -> Callable[[str], float]:
    return number(f"a number above {bound:g}", lambda value: bound < value < math.inf)


def value_text(value: Any) -> str:
    """Return an option's value as it is typed."""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there. Raises UserError if that cannot be."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)  # so that the address is one when it is printed
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise UserError(f"Port {port} of {host} cannot be used ({why}): choose another --port or --host.") from error
    return listener


RECIPE_HELP = "a recipe by name, a .py or .yaml file, a run's folder, or a dotted module with a config"
"""Help of every command that takes a recipe."""
_OF_ESTIMATOR = "--algorithm.estimator."
