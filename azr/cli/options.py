"""Options of a command: argparse, with one sentence instead of a usage text when something is wrong."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import NoReturn

from azr.errors import UserError, nearest


class Parser(argparse.ArgumentParser):
    """``parse`` raises UserError with one sentence; an unknown option is answered with the nearest one."""

    def __init__(self, command: str, description: str, *, defaults: bool = True) -> None:
        super().__init__(
            prog=f"azr {command}",
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter if defaults else argparse.HelpFormatter,
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The options. Raises UserError, and SystemExit when ``--help`` was asked for."""
        # Before argparse, which would rather complain about what else is missing.
        for word in argv:
            flag = word.partition("=")[0]
            if word.startswith("--") and flag not in self._option_string_actions:
                raise UserError(
                    f"There is no option {flag}; did you mean {nearest(flag, self._option_string_actions)}?"
                )
        return self.parse_args(argv)

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help lists every option.")


def whole(least: int, most: int) -> Callable[[str], int]:
    """Reads a whole number within bounds."""

    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or len(text) > len(str(most)) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return read


def seconds(least: float, most: float) -> Callable[[str], float]:
    """Reads a number of seconds within bounds."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be a number of seconds from {least:g} to {most:g}, not {text!r}")
        return value

    return read
