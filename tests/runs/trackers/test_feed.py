"""What holds for every tracker: a run does not wait for it and does not end with it, and it gets each step once."""

import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from azr.config import Config
from azr.records import ROLES
from azr.runs import trackers
from azr.runs.metrics import Metrics
from azr.runs.run_dir import RunDirectory
from azr.runs.trackers import TRACKERS, Trackers, sample_tables
from azr.runs.trackers.base import Bookmark, Table, Tracker
from tests.mistakes import mistake
from tests.runs.factory import sample, until
from tests.runs.trackers.factory import TASK, config


class FolderTracker(Tracker):
    """A file per step in a folder, which a test may take away; it continues as W&B and MLflow do."""

    label: ClassVar[str] = "Folder"
    folder: ClassVar[Path]
    asked: ClassVar[threading.Event]
    may_write: ClassVar[threading.Event]

    @classmethod
    def check(cls, config: Config) -> None: ...

    def open(self, run: Path, config: Config) -> int:
        self.place = self.folder  # a thread may outlive its test
        self.mark = Bookmark(run, "folder")
        self.mark.save(self.mark.id or "id", self.mark.step)
        return self.mark.step

    def write(self, step: int, metrics: Metrics) -> None:
        self.asked.set()
        self.may_write.wait()
        with (self.place / str(step)).open("a") as file:
            file.write(f"{metrics['loss']}{metrics.get('reward/mean', '')}\n")
        self.mark.save("id", step)

    def write_tables(self, step: int, tables: Mapping[str, Table]) -> None: ...

    def close(self, *, complete: bool) -> None: ...


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(TRACKERS, "folder", FolderTracker)
    monkeypatch.setattr(FolderTracker, "folder", tmp_path / "there", raising=False)
    for name in ("asked", "may_write"):
        monkeypatch.setattr(FolderTracker, name, threading.Event(), raising=False)
    FolderTracker.may_write.set()
    FolderTracker.folder.mkdir()
    return FolderTracker.folder


def opened(root: Path, said: list[str], history: list[tuple[int, Metrics]] | None = None) -> Trackers:
    return Trackers(root, config(root, "folder"), history or [], said.append)


def held(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def test_trackers_get_numbers_by_names_of_others_too(tmp_path: Path, folder: Path) -> None:
    feeds = opened(tmp_path, said := [], [(1, {"loss": 1.0, "batch/reward": 0.5})])
    feeds.write(2, {"loss": 2.0, "batch/reward": 0.25})
    feeds.close(complete=True)
    assert said == [] and held(folder) == {"1": "1.00.5\n", "2": "2.00.25\n"}


def test_a_step_is_handed_over_once_even_when_the_run_goes_back(tmp_path: Path, folder: Path) -> None:
    said: list[str] = []
    first = opened(tmp_path, said)
    for step in (1, 2, 3):
        first.write(step, {"loss": float(step)})
    first.close(complete=False)
    assert said == []
    again = opened(tmp_path, said, [(1, {"loss": 1.0})])
    for step in (2, 3, 4):
        again.write(step, {"loss": 10.0 * step})
    again.close(complete=True)
    assert held(folder) == {"1": "1.0\n", "2": "2.0\n", "3": "3.0\n", "4": "40.0\n"}
    (told,) = said
    assert told.startswith("Folder keeps steps 2 to 3") and "delete trackers/folder.json" in told
    (tmp_path / "trackers" / "folder.json").unlink()
    opened(tmp_path, said, [(step, {"loss": 0.5}) for step in range(1, 200)]).close(complete=True)
    assert len(held(folder)) == 199, "a new one gets every step of metrics.jsonl"


def test_a_run_at_its_end_hands_over_what_is_lacked_up_to_its_last_step(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("".join(f'{{"step": {step}, "loss": 0.5}}\n' for step in (1, 2, 3)))
    Bookmark(tmp_path, "folder").save("id", 1)
    trackers.hand_over(RunDirectory(tmp_path), config(tmp_path, "tensorboard,folder"), 2, pytest.fail)
    assert held(folder) == {"2": "0.5\n"} and not (tmp_path / "tensorboard").exists()


def test_what_breaks_is_said_once_and_caught_up_with(tmp_path: Path, folder: Path) -> None:
    said: list[str] = []
    feed = opened(tmp_path, said)
    feed.write(1, {"loss": 1.0})
    until(lambda: (folder / "1").exists() and (tmp_path / "trackers" / "folder.json").exists())
    folder.rename(tmp_path / "gone")
    feed.write(2, {"loss": 2.0})
    until(lambda: said != [])
    FolderTracker.asked.clear()
    feed.write(3, {"loss": 3.0})
    assert FolderTracker.asked.wait(10)
    (told,) = said
    assert told.startswith("Folder failed and is tried again with each step: [Errno 2]"), told
    (tmp_path / "gone").rename(folder)
    feed.write(4, {"loss": 4.0})
    feed.close(complete=True)
    assert held(folder) == {str(step): f"{step}.0\n" for step in (1, 2, 3, 4)}
    assert said[1:] == ["Folder has all steps again"]


def test_one_that_hangs_holds_nothing_up(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("azr.runs.trackers.CLOSE_S", 0.2)
    FolderTracker.may_write.clear()
    said: list[str] = []
    feed = opened(tmp_path, said)
    feed.write(1, {"loss": 1.0})
    assert FolderTracker.asked.wait(5)
    begun = time.monotonic()
    for step in range(2, trackers.MOST_WAITING + 5):
        feed.write(step, {"loss": 1.0})
    assert time.monotonic() - begun < 1.0
    assert len(said) == 1 and said[0].startswith("Folder took nothing for 100 steps")
    feed.close(complete=True)
    assert time.monotonic() - begun < 2.0
    assert len(said) == 2 and "did not answer" in said[1]
    FolderTracker.may_write.set()


def test_samples_that_are_not_taken_hold_no_numbers_back(tmp_path, folder, monkeypatch):
    def refuse(self: Tracker, step: int, tables: Mapping[str, Table]) -> None:
        raise OSError("no place for files")

    monkeypatch.setattr(FolderTracker, "write_tables", refuse)
    said: list[str] = []
    feed = opened(tmp_path, said)
    for step in (1, 2):
        feed.write_tables(step, {})
        feed.write(step, {"loss": float(step)})
    feed.close(complete=True)
    assert held(folder) == {"1": "1.0\n", "2": "2.0\n"}, said
    (told,) = said
    assert told.startswith("Folder did not take samples of step 1") and "no place for files" in told


def test_a_wrong_name_is_answered_with_a_sentence(tmp_path: Path) -> None:
    for to, says in (
        (("tensorbord",), "There is no tracker 'tensorbord'; did you mean tensorboard?"),
        (("tensorboard,wandbb",), "There is no tracker 'wandbb'; did you mean wandb?"),
        (("tensorboard:here",), "tensorboard writes into the run directory"),
        (("wandb,tensorboard", "wandb"), "A tracker is named twice in wandb, tensorboard, wandb"),
    ):
        with mistake(says=says):
            trackers.check_names(config(tmp_path, *to).tracking)


def test_a_sample_is_the_best_and_the_worst_of_each_player_and_some_tasks() -> None:
    samples = [sample(role, reward=reward) for role in ROLES for reward in (0.5, -1.0, 1.0, None)]
    samples.append(sample("solver", "error", verdict="right"))
    for each in samples:
        each.prompt = each.response = "x" * 9000
    kinds = ["deduction"] * 20 + ["induction"] * 20
    tasks = [replace(TASK, id=str(number), kind=kind) for number, kind in enumerate(kinds)]
    tables = sample_tables(3, samples, tasks)
    rows = tables["rollouts"]
    assert [(row["kind"], row["role"], row["reward"]) for row in rows] == [
        ("deduction", "proposer", 1.0), ("deduction", "proposer", -1.0),
        ("deduction", "solver", 1.0), ("deduction", "solver", -1.0), ("error", "solver", 1.0),
    ]  # fmt: skip
    assert [row["outcome"] for row in rows] == [None] * 4 + ["right"]
    assert {row["step"] for row in rows} == {3}
    assert all(len(str(row["prompt"])) < trackers.CHARACTERS + 50 for row in rows)
    shown = tables["tasks"]
    assert len(shown) == trackers.TASKS and {row["kind"] for row in shown} == {"deduction", "induction"}
    assert sample_tables(1, [], []) == {}
    assert [step for step in range(0, 31) if trackers.is_due(step) and step] == [1, 10, 20, 30]
