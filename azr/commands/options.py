"""Options of a command: argparse, with one sentence instead of a usage text when something is wrong."""

from __future__ import annotations

import argparse
import difflib
import math
from collections.abc import Callable, Sequence
from typing import NoReturn


class Parser(argparse.ArgumentParser):
    """``parse`` raises ValueError with one sentence; an unknown option is answered with the nearest one."""

    def __init__(self, command: str, description: str) -> None:
        super().__init__(
            prog=f"azr {command}",
            description=description,
            allow_abbrev=False,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The options. Raises ValueError, and SystemExit when ``--help`` was asked for."""
        # Before argparse, which would rather complain about what else is missing.
        for word in argv:
            flag = word.partition("=")[0]
            if word.startswith("--") and flag not in self._option_string_actions:
                nearest = difflib.get_close_matches(flag, self._option_string_actions, n=1, cutoff=0.0)[0]
                raise ValueError(f"There is no option {flag}; did you mean {nearest}?")
        return self.parse_args(argv)

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; {self.prog} --help lists every option.")


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
