"""The screen: searches thinking and answers for the patterns of a file. It sees words, not what is meant.

A run looks at texts in a process of its own, ``python -m azr.monitoring.texts PATTERNS``: a pattern that takes for ever
costs that process and not the run, see `azr.isolated`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import msgspec

from azr.config import SafetyConfig
from azr.errors import UserError
from azr.isolated import WorkerError, Workers, serve

DEFAULT = Path(__file__).with_name("patterns.toml")
SAFETY = "safety/"
"""Begins the names of its metrics, one by rule and those of `TOTALS`."""
TOTALS = ("flagged", "unscreened")
MAX_FLAGS = 20
"""Places of one response that are kept."""
TEXT_LIMIT_S = 5.0
"""Limit for a text."""
_THINKING_ENDS = "</think>"
_NAME = re.compile(r"[a-z0-9_-]+")

Text = tuple[str, bool]
"""One response, and whether its prompt opens the thinking."""
Flag = tuple[str, int, int]
"""Name of a rule, and where in the response's text its pattern begins and ends."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is looked for, as the file states it."""

    name: str
    patterns: tuple[str, ...]
    about: str = ""
    where: Literal["thinking", "answer", "both"] = "both"


def patterns_of(config: SafetyConfig) -> Path:
    """The file of rules that a run searches with."""
    return DEFAULT if config.patterns is None else Path(config.patterns)


class Screen(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The rules of a file, ready to search."""

    rules: tuple[Rule, ...] = msgspec.field(name="rule")

    @classmethod
    def read(cls, path: Path) -> Screen:
        """Read a file of rules. Raises UserError when it holds none, or one that cannot be searched for."""
        try:
            screen = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), cls)
        except (OSError, ValueError, RecursionError) as error:  # also of tomllib and msgspec
            raise UserError(f"safety.patterns: {path} holds no rules ({error}); {DEFAULT} has examples.") from error
        for rule in screen.rules:
            is_taken = rule.name in TOTALS or sum(each.name == rule.name for each in screen.rules) > 1
            if is_taken or not _NAME.fullmatch(rule.name):
                raise UserError(
                    f"safety.patterns: the rule name {rule.name!r} in {path} is there twice or not of a-z, 0-9, -, _."
                )
            for pattern in rule.patterns:
                try:
                    re.compile(pattern, re.IGNORECASE)
                except (re.error, OverflowError, RecursionError) as error:
                    what = f"{pattern!r} of the rule {rule.name} in {path} is not a regular expression ({error})"
                    raise UserError(f"safety.patterns: {what}: correct it.") from error
            if not rule.patterns:
                raise UserError(f"safety.patterns: the rule {rule.name} in {path} has no patterns: give it one.")
        return screen

    def flags(self, response: str, opened: bool) -> list[Flag]:
        """Where the response holds what the rules look for, at most `MAX_FLAGS` places, in their order in the text.
        ``opened``: the prompt has opened the thinking, which ends with ``</think>`` or, without one, never."""
        end = response.rfind(_THINKING_ENDS)
        split = end + len(_THINKING_ENDS) if end >= 0 else len(response) if opened else 0
        spans = {"thinking": (0, split), "answer": (split, len(response)), "both": (0, len(response))}
        patterns = ((rule, re.compile(each, re.IGNORECASE)) for rule in self.rules for each in rule.patterns)
        found = dict.fromkeys(
            (rule.name, match.start(), match.end())
            for rule, pattern in patterns
            for match in islice(filter(re.Match.group, pattern.finditer(response, *spans[rule.where])), MAX_FLAGS)
        )
        return sorted(found, key=lambda flag: flag[1:])[:MAX_FLAGS]


class TextReader(AbstractAsyncContextManager["TextReader"]):
    """``async with TextReader(patterns) as reader``: its process ends with the block."""

    def __init__(self, patterns: Path) -> None:
        """``patterns``: the screen's file, which was read once already."""
        self._workers = Workers("azr.monitoring.texts", [str(patterns)])

    async def __aexit__(self, *_: object) -> None:
        await self._workers.end()

    async def flags(self, texts: Sequence[Text]) -> list[list[Flag] | None]:
        """Return the flags of each text, in their order; None where the process died, failed or took longer than
        `TEXT_LIMIT_S`."""
        found: list[list[Flag] | None] = [None] * len(texts)
        for place, (response, opened) in enumerate(texts):
            with suppress(WorkerError):
                found[place] = await self._workers.ask({"response": response, "opened": opened}, TEXT_LIMIT_S)
        return found


def load(arguments: Sequence[str]) -> Callable[[Any], list[Flag]]:
    os.nice(10)  # what the run waits for comes first
    screen = Screen.read(Path(arguments[0]))
    return lambda text: screen.flags(**text)


if __name__ == "__main__":
    serve(load)
