"""Progress of an evaluation: a bar with the time left on a terminal, otherwise a line every 30 seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from azr.records import Sample
from azr.runs.progress import duration
from azr.tasks.base import Verdict

EVERY_S = 30.0
"""Seconds between two lines without a terminal."""


class EvalProgress:
    """Progress bar on standard error: ``with EvalProgress(...) as progress``."""

    def __init__(self, total: int, done: int = 0, file: TextIO | None = None) -> None:
        """``total``: questions; ``done``: questions that an interrupted evaluation had answered."""
        self._total, self._done, self._before = total, done, done
        self._answers = self._right = self._tokens = 0
        self._began = self._said = time.monotonic()
        self._file = file or sys.stderr
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("questions · {task.fields[state]}"),
            TimeElapsedColumn(),
            TextColumn("· left"),
            TimeRemainingColumn(),
            console=Console(file=self._file),
            disable=not self._file.isatty(),
        )
        self._task = self._bar.add_task("starting", total=total, completed=done, state="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Show the current phase."""
        self._bar.update(self._task, description=text)
        if self._bar.disable:
            print(text, file=self._file, flush=True)

    def answered(self, answers: Sequence[Sample]) -> None:
        """Count a question whose answers are all graded."""
        self._done += 1
        self._answers += len(answers)
        self._right += sum(answer.verdict == Verdict.RIGHT for answer in answers)
        self._tokens += sum(answer.response_tokens or 0 for answer in answers)
        self._bar.update(self._task, completed=self._done, state=self._state())
        now = time.monotonic()
        if self._bar.disable and now - self._said > EVERY_S:
            self._said = now
            left = (now - self._began) / (self._done - self._before) * (self._total - self._done)
            print(
                f"{self._done}/{self._total} questions · {self._state()} · about {duration(left)} left",
                file=self._file,
                flush=True,
            )

    def _state(self) -> str:
        rate = self._tokens / max(time.monotonic() - self._began, 1e-9)
        return f"{self._right / self._answers:.0%} of answers right · {rate:,.0f} tokens/s"
