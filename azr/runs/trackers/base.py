"""Interface of a tracker, which gets copies of a run's numbers. `metrics.jsonl` stays the truth."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

from azr.config import Config
from azr.errors import UserError
from azr.files import atomic_write
from azr.runs.metrics import Metrics
from azr.text import clipped, first_line

NOTHING = -1
"""The step that a tracker holds before its first; step 0 is the evaluation before a run's first step."""


Table = Sequence[Mapping[str, str | float | None]]
"""Samples of a step, at least one: rows by the names of their columns, of which the first is the step."""


class Tracker(ABC):
    """Called from one thread of its own, which may wait. What it raises never ends the run; the call comes again."""

    label: ClassVar[str]
    """Name in messages."""

    @classmethod
    @abstractmethod
    def check(cls, config: Config) -> None:
        """Before anything is started: raises UserError when the tracker could not begin. Leaves nothing behind."""

    @abstractmethod
    def open(self, run: Path, config: Config) -> int:
        """Begin, or continue where the run in this folder was tracked before. Returns the last step it holds, or
        `NOTHING`."""

    @abstractmethod
    def write(self, step: int, metrics: Metrics) -> None:
        """The numbers of a step, each step once and in order; lists are counts as in `funnel_metrics`."""

    @abstractmethod
    def write_tables(self, step: int, tables: Mapping[str, Table]) -> None:
        """Samples of a step by the name of their table; later steps' numbers may have come before."""

    @abstractmethod
    def close(self, *, complete: bool) -> None:
        """Ends it; also after `open` has failed. ``complete``: the run came to its end, and was not stopped."""

    def where(self) -> str | None:
        """Where to look, once it is open; None where that is said elsewhere."""
        return None


class Bookmark:
    """Which run of a tracker's own is this one, and how far it was handed over: ``trackers/<name>.json``."""

    def __init__(self, run: Path, name: str) -> None:
        self._path = run / "trackers" / f"{name}.json"
        self.id: str | None = None
        self.step = NOTHING
        if self._path.exists():
            saved = json.loads(self._path.read_text())
            self.id, self.step = saved["id"], saved["step"]

    def save(self, id: str | None, step: int) -> None:
        """On the disk when it returns."""
        self.id, self.step = id, step
        self._path.parent.mkdir(exist_ok=True)
        with atomic_write(self._path) as staging:
            staging.write_text(json.dumps({"id": id, "step": step}) + "\n")


def need(tracker: str) -> None:
    """Raises UserError when the library of an optional tracker is not installed."""
    if find_spec(tracker) is None:
        raise UserError(
            f"tracking.to names {tracker}, which is not installed: run pip install -e '.[{tracker}]' in the clone."
        )


def bins(counts: list[int]) -> list[float]:
    """The rates that a list of n + 1 counts stands for: bin b is b / n, as in `azr.runs.metrics.funnel_metrics`."""
    last = max(1, len(counts) - 1)
    return [b / last for b in range(len(counts))]


def edges(counts: list[int]) -> list[float]:
    """Return the n + 2 edges of these bins, so that each rate is in the middle of its bar."""
    half = 0.5 / max(1, len(counts) - 1)
    return [-half, *(rate + half for rate in bins(counts))]


def failure(error: BaseException) -> str:
    """Return the first line of an exception's message, at most 200 characters and without passwords."""
    return clipped(without_password(first_line(error)), 200)


def without_password(text: str) -> str:
    """Addresses in it lose the name and password that they may hold."""
    return re.sub(r"//[^/\s]*@", "//", text)
