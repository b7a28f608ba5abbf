"""Options of a command: argparse for its own, `overrides` for the knobs of a config."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from typing import Any, NoReturn

from azr.config_tree import Knob, at_home, knobs
from azr.errors import UserError, nearest


class Parser(argparse.ArgumentParser):
    """``parse`` raises UserError with one sentence; an unknown option is answered with the nearest one."""

    def __init__(self, command: str, description: str, usage: str | None = None, more_help: str = "") -> None:
        """`more_help`: text that ``--help`` prints, as it is, below the options."""
        super().__init__(
            prog=f"azr {command}",
            usage=usage,
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        self._more_help = more_help

    def format_help(self) -> str:
        return super().format_help() + self._more_help

    def parse(self, argv: Sequence[str], others: Collection[str] = ()) -> argparse.Namespace:
        """The options; `others` are known elsewhere, and may be what a wrong one was meant to be.

        Raises UserError, and SystemExit when ``--help`` is among them.
        """
        # Before argparse, which would rather complain about what else is missing.
        for word in argv:
            flag = word.partition("=")[0]
            if word.startswith("--") and flag not in self._option_string_actions:
                raise _no_option(flag, [*self._option_string_actions, *others])
        return self.parse_args(list(map(_at_home, argv)))

    def parse_with_knobs(self, argv: Sequence[str]) -> tuple[argparse.Namespace, dict[str, Any]]:
        """As ``parse``, for a command that takes knobs of a config too, which have a dot in their option's name."""
        command_words: list[str] = []
        knob_words: list[str] = []
        words = command_words
        for word in argv:
            if word.startswith("--"):
                words = knob_words if "." in word.partition("=")[0] else command_words
            words.append(word)
        return self.parse(command_words, knob_options()), overrides(knob_words)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help lists every option.")


def _at_home(word: str) -> str:
    """A word of a command line with the home folder for a ``~`` that the shell has left in it."""
    flag, equals, value = word.partition("=")
    return f"{flag}={at_home(value)}" if equals and flag.startswith("--") else str(at_home(word))


def _no_option(flag: str, known: Collection[str]) -> UserError:
    return UserError(f"There is no option {flag}; did you mean {nearest(flag, known)}?")


def overrides(words: Sequence[str]) -> dict[str, Any]:
    """Knobs that ``--section.knob value`` sets, by path; values stay text, which `azr.config_tree` reads and checks.

    A switch needs no value, and ``--section.no-knob`` turns it off. Raises UserError.
    """
    known = knob_options()
    values: dict[str, Any] = {}
    at = 0
    while at < len(words):
        flag, has_value, value = words[at].partition("=")
        given = [value] if has_value else []
        while (at := at + 1) < len(words) and not words[at].startswith("--"):
            given.append(words[at])
        option = flag.replace("_", "-")
        if option not in known:
            raise _no_option(flag, known)
        knob, off = known[option]
        values[knob.path] = _value(knob, flag, given, off=off)
    return values


def knob_options() -> dict[str, tuple[Knob, bool]]:
    """Every option of a knob, and whether it is the one that turns a switch off."""
    options = {knob.option: (knob, False) for knob in knobs().values()}
    for option, (knob, _) in list(options.items()):
        if knob.type == "boolean":
            section, _, name = option.rpartition(".")
            options[f"{section}.no-{name}"] = (knob, True)
    return options


def _value(knob: Knob, flag: str, given: list[str], *, off: bool) -> Any:
    if knob.type == "boolean" and not given:
        return not off
    if knob.type == "array" and given:
        return given
    if len(given) == 1 and not off:
        return given[0]
    wants = "no value" if off else knob.accepts
    raise UserError(f"{flag} takes {wants}, not {' '.join(given) or 'nothing'}.")


def whole(least: int, most: int) -> Callable[[str], int]:
    """Reads a whole number within bounds."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > len(str(most)) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return read


def wholes(least: int, most: int) -> Callable[[str], tuple[int, ...]]:
    """Reads rising whole numbers within bounds, with commas between them."""
    one = whole(least, most)

    def read(text: str) -> tuple[int, ...]:
        numbers = tuple(one(word) for word in text.split(","))
        if any(number >= after for number, after in pairwise(numbers)):
            raise argparse.ArgumentTypeError(f"must be numbers that rise, not {text!r}")
        return numbers

    return read


def seconds(least: float, most: float) -> Callable[[str], float]:
    """Reads a number of seconds within bounds."""

    def read(text: str) -> float:
        if not least <= (value := _float(text)) <= most:
            raise argparse.ArgumentTypeError(f"must be a number of seconds from {least:g} to {most:g}, not {text!r}")
        return value

    return read


def above(bound: float) -> Callable[[str], float]:
    """Reads a finite number above a bound."""

    def read(text: str) -> float:
        if not bound < (value := _float(text)) < math.inf:
            raise argparse.ArgumentTypeError(f"must be a number above {bound:g}, not {text!r}")
        return value

    return read


def share(text: str) -> float:
    """Reads a number above 0 and below 1."""
    if not 0 < (value := _float(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be a number above 0 and below 1, not {text!r}")
    return value


def _float(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
