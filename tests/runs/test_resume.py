from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from azr.config import GAE, AlgorithmConfig, Config, RunConfig, TrainConfig
from azr.runs.checkpoint_store import CheckpointStore
from azr.runs.config_changes import differences
from azr.runs.resume import LATEST, find, named
from azr.runs.run_dir import RunDirectory
from azr.runs.run_state import BEGINNING, Point


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(run=RunConfig(name="run", root=str(tmp_path)))


@pytest.fixture
def run(config: Config) -> RunDirectory:
    made = RunDirectory.create(config)
    made.metrics.write_text("")
    made.tasks.write_text("")
    return made


async def save(run: RunDirectory, step: int) -> Point:
    with run.metrics.open("a") as file:
        file.write(f'{{"step": {step}}}\n')
    point = Point(step=step, elapsed_s=10.0 * step, position=run.position())
    async with CheckpointStore(run.checkpoints, keep=9).draft(step) as folder:
        point.write(folder)
    return point


async def test_a_run_goes_on_from_its_newest_checkpoint(config, run):
    await save(run, 1)
    point = await save(run, 2)
    with run.metrics.open("a") as file:
        file.write('{"step": 3}\n')
    found = find(config, None)
    assert found.point == point and found.notes[-1] == "going on after step 2"


async def test_an_older_one_may_be_named_by_its_folder(config, run, tmp_path):
    point = await save(run, 1)
    await save(run, 2)
    for place in (run.path / "checkpoints" / "step_000001", tmp_path / "run" / "checkpoints" / "step_000001"):
        own, step = named(RunConfig(name="else", root="elsewhere"), str(place))
        assert (own.name, Path(own.root), step) == ("run", tmp_path, 1)
    found = find(config, 1)
    assert found.point == point and "checkpoints of steps 2 included" in found.notes[-1]


async def test_a_damaged_one_is_passed_over_unless_it_was_asked_for(config, run):
    await save(run, 1)
    await save(run, 2)
    damaged = run.checkpoints / "step_000002" / "driver.json"
    damaged.write_text("{}")
    found = find(config, None)
    assert found.point.step == 1 and str(damaged) in found.notes[0]
    with pytest.raises(ValueError, match=r"The checkpoint of step 2 cannot be used: .*driver.json"):
        find(config, 2)
    with pytest.raises(ValueError, match="The checkpoint of step 3 cannot be used"):
        find(config, 3)


def test_without_any_checkpoint_a_run_starts_again(config, run):
    found = find(config, None)
    assert found.point == BEGINNING and "starts again from its beginning" in found.notes[-1]


async def test_logs_that_were_altered_are_refused(config, run):
    await save(run, 1)
    run.metrics.write_text('{"step": 7}\n')
    with pytest.raises(ValueError, match=r"metrics.jsonl was altered since the checkpoint was saved"):
        find(config, None)
    run.metrics.unlink()
    with pytest.raises(ValueError, match=r"metrics.jsonl cannot be read"):
        find(config, None)


def test_there_must_be_a_run_to_go_on_with(config, tmp_path):
    for where in (LATEST, str(tmp_path), str(tmp_path / "step_000003")):
        with pytest.raises(ValueError, match=r"There is no run in .* to go on with"):
            named(config.run, where)


def test_changes_are_told_and_those_that_cannot_be_followed_refused():
    saved = Config()
    wanted = replace(saved, run=RunConfig(steps=9, name="other"), train=TrainConfig(data_parallel=2, policy_lr=1e-3))
    assert differences(saved, wanted) == [
        "run.steps: 500 -> 9", "train.data_parallel: 1 -> 2", "train.policy_lr: 1e-06 -> 0.001",
    ]  # fmt: skip
    with pytest.raises(
        ValueError, match=r"model.prompt_format was chat when the run was saved and cannot become compact"
    ):
        differences(saved, replace(saved, model=replace(saved.model, prompt_format="compact")))
    with pytest.raises(ValueError, match="there is no critic for gae"):
        differences(saved, replace(saved, algorithm=AlgorithmConfig(estimator=GAE())))
    assert differences(replace(saved, algorithm=AlgorithmConfig(estimator=GAE())), saved)
