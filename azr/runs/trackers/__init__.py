"""Where a run's numbers and samples go beside its directory, by the names that `tracking.to` takes.

Each tracker has a thread of its own: none of them holds a step up or ends a run. Another tracker is a module beside
these, with the shape of `azr.runs.trackers.base.Tracker`, and one line here.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from azr.config import Config, TrackingConfig
from azr.errors import UserError
from azr.records import Sample, Task, grouped
from azr.registry import Registry
from azr.runs.metrics import Metrics
from azr.runs.run_dir import RunDirectory
from azr.runs.sample_file import read_metrics
from azr.runs.trackers.base import NOTHING, Table, Tracker, failure
from azr.runs.trackers.mlflow import MlflowTracker
from azr.runs.trackers.tensorboard import TensorBoardTracker
from azr.runs.trackers.wandb import WandbTracker
from azr.text import without_middle

TRACKERS = Registry[type[Tracker]](
    "tracker",
    {"tensorboard": TensorBoardTracker, "wandb": WandbTracker, "mlflow": MlflowTracker},
    "tracking.to may hold",
)


def check_names(tracking: TrackingConfig) -> None:
    """Raises UserError for a name that no tracker has, or that stands there twice."""
    for name in tracking.names:
        TRACKERS.find(name)
    if len(set(tracking.names)) < len(tracking.names):
        raise UserError(f"A tracker is named twice in {', '.join(tracking.names)}: name each once.")
    if tracking.setting("tensorboard", ""):
        raise UserError("tensorboard writes into the run directory: name it in tracking.to without more.")


ALIASES = {
    "reward/mean": "batch/reward", "reward/std": "batch/reward_std", "frac_reward_zero_std": "batch/idle_groups",
    "completions/mean_length": "batch/response_length", "clip_ratio": "policy/clip_fraction",
    "entropy": "policy/entropy", "kl": "policy/kl_reference",
}  # fmt: skip
"""Our names of numbers by names that TRL and others give them, under which trackers get them too."""
MOST_WAITING = 100
"""Steps that wait for a tracker; then it gets no more, until the run is resumed."""
CLOSE_S = 30.0
"""Longest wait for all trackers together at the end of a run."""
EVERY = 10
"""Steps from one sample to the next; seeding, as step 0, and the first step have one too."""
TASKS = 8
"""Most tasks of a table, of all that were stored in the step."""
CHARACTERS = 2000
"""Characters of a text in a table; the middle is left out."""
Say = Callable[[str], None]
Piece = tuple[int, Metrics | None, Mapping[str, Table]]
"""A step with its numbers, or with tables of its samples, which are worth one try."""


class Trackers:
    """All trackers of a run."""

    def __init__(
        self, run: Path, config: Config, history: Sequence[tuple[int, Metrics]], say: Say, names: Sequence[str] = ()
    ) -> None:
        """``history``: the steps that the run has behind it; each tracker gets those it lacks. ``names``: by default
        all of the config. Does not wait."""
        self._feeds = [Feed(name, run, config, history, say) for name in names or config.tracking.names]

    def write(self, step: int, metrics: Metrics) -> None:
        for feed in self._feeds:
            feed.put((step, metrics, {}))

    def write_tables(self, step: int, tables: Mapping[str, Table]) -> None:
        for feed in self._feeds:
            feed.put((step, None, tables))

    def close(self, *, complete: bool) -> None:
        """Returns when everything is handed over, but after `CLOSE_S` seconds at the latest; blocks."""
        deadline = time.monotonic() + CLOSE_S
        for feed in self._feeds:
            feed.begin_close(complete=complete)
        for feed in self._feeds:
            feed.wait(deadline)


def hand_over(run: RunDirectory, config: Config, step: int, say: Say) -> None:
    """Give the trackers that keep runs of their own what they lack of a run that is at its end after ``step``; blocks
    as `Trackers.close`."""
    own = [name for name in config.tracking.names if name != "tensorboard"]
    if own:
        history = [each for each in read_metrics(run.metrics) if each[0] <= step]
        Trackers(run.path, config, history, say, own).close(complete=True)


class Feed:
    """One tracker and what waits for it. Numbers that fail are tried again when the next piece comes, in order."""

    def __init__(self, name: str, run: Path, config: Config, history: Sequence[tuple[int, Metrics]], say: Say) -> None:
        self._tracker, self._name, self._run, self._config, self._say = TRACKERS[name](), name, run, config, say
        self._waiting: deque[Piece] = deque((step, metrics, {}) for step, metrics in history)
        self._most = len(self._waiting) + MOST_WAITING
        self._history_end = history[-1][0] if history else NOTHING
        self._held: int | None = None
        """Last step that the tracker held when it was opened."""
        self._news = threading.Event()
        self._news.set()
        self._complete: bool | None = None
        """Whether the run came to its end; None until the feed is to close."""
        self._gave_up = self._failed = self._lost_samples = False
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def put(self, piece: Piece) -> None:
        """Hand a piece over as soon as it can be; never waits."""
        if len(self._waiting) >= self._most and not self._gave_up:
            self._gave_up = True
            self._say(f"{self._tracker.label} took nothing for {MOST_WAITING} steps; a resumed run hands over the rest")
        if not self._gave_up:
            self._waiting.append(piece)
            self._news.set()

    def begin_close(self, *, complete: bool) -> None:
        self._complete = complete
        self._news.set()

    def wait(self, deadline: float) -> None:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._say(
                f"{self._tracker.label} did not answer in {CLOSE_S:.0f} s; a resumed run hands over what it lacks"
            )

    def _work(self) -> None:
        complete = None
        while complete is None:
            self._news.wait()
            self._news.clear()
            complete = self._complete
            with self._complaining():
                self._hand_over()
        with self._complaining():
            self._tracker.close(complete=complete)

    def _hand_over(self) -> None:
        if self._held is None:
            self._held = self._tracker.open(self._run, self._config)
            if (where := self._tracker.where()) is not None:
                self._say(f"{self._tracker.label}: {where}")
            if self._held > max(self._history_end, NOTHING):
                self._say(
                    f"{self._tracker.label} keeps steps {self._history_end + 1} to {self._held} of before the run went "
                    f"back; delete trackers/{self._name}.json before --resume to begin a new one there"
                )
        while self._waiting:
            step, metrics, tables = self._waiting[0]
            try:
                if step > self._held and metrics is not None:
                    elsewhere = {name: metrics[ours] for name, ours in ALIASES.items() if ours in metrics}
                    self._tracker.write(step, metrics | elsewhere)
                elif step > self._held:
                    self._tracker.write_tables(step, tables)
            except Exception as error:
                if metrics is not None:
                    raise
                if not self._lost_samples:
                    self._lost_samples = True
                    self._say(
                        f"{self._tracker.label} did not take samples of step {step}: {failure(error)}; azr view has all"
                    )
            self._waiting.popleft()
        if self._failed:
            self._failed = False
            self._say(f"{self._tracker.label} has all steps again")

    @contextmanager
    def _complaining(self) -> Iterator[None]:
        """Say what the block raises: a library of others may raise anything, and no tracker is worth a run."""
        try:
            yield
        except Exception as error:
            if not self._failed:
                self._failed = True
                self._say(f"{self._tracker.label} failed and is tried again with each step: {failure(error)}")


def is_due(step: int) -> bool:
    """Whether samples of this step are taken."""
    return step == 1 or step % EVERY == 0


def sample_tables(step: int, samples: Sequence[Sample], tasks: Sequence[Task]) -> dict[str, Table]:
    """Return tables of a step, whose samples have their texts: ``rollouts``, the best and the worst rewarded sample of
    each kind and role, and ``tasks``, evenly over all, so that each kind is among them; none without rows."""
    rollouts: list[dict[str, str | float | None]] = []
    for (kind, role), played in sorted(grouped(((each.kind, each.role), each) for each in samples).items()):
        ranked = sorted(played, key=lambda each: -(each.reward or 0.0))
        for each in ranked[:: max(1, len(ranked) - 1)]:
            detail = "" if each.judgement is None else _cut(each.judgement.detail)
            rollouts.append({
                "step": step, "kind": kind, "role": role, "task": each.problem_id, "reward": each.reward,
                "outcome": each.verdict or None, "detail": detail, "tokens": each.response_tokens,
                "finish": each.finish_reason, "prompt": _cut(each.prompt), "response": _cut(each.response),
            })  # fmt: skip
    chosen = [tasks[at * len(tasks) // TASKS] for at in range(TASKS)] if len(tasks) > TASKS else tasks
    shown = [
        {
            "step": step, "kind": each.kind, "id": each.id, "solve rate": each.solve_rate,
            "program": _cut(each.program), "inputs": _cut("\n".join(each.inputs)),
            "outputs": _cut("\n".join(each.outputs)), "message": _cut(each.message),
        }
        for each in chosen
    ]  # fmt: skip
    return {name: table for name, table in (("rollouts", rollouts), ("tasks", shown)) if table}


def _cut(text: str) -> str:
    return without_middle(text, CHARACTERS // 2)
