import contextlib
import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save as save_tensors

from azr.algorithms.batch import Batch
from azr.config import GAE, RAE, AlgorithmConfig, Config, DataConfig, ModelConfig, RunConfig, TrainConfig
from azr.errors import UserError
from azr.files import hash_file
from azr.launch import load_recipe, resolve
from azr.runs.checkpoint_store import (
    INITIAL,
    CheckpointStore,
    RunState,
    config_changes,
    find_checkpoint,
    resolve_run,
    step_of,
)
from azr.runs.progress import Progress
from azr.runs.run_dir import RunDirectory
from azr.runs.run_logger import RunLogger
from azr.runs.sample_file import FileOffset, LogOffsets
from tests.mistakes import mistake
from tests.runs.factory import write_checkpoint


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return Config(run=RunConfig(name="run", root=str(tmp_path)))


@pytest.fixture
def run(config: Config) -> RunDirectory:
    run = RunDirectory.of(config.run).create(config)
    run.metrics.write_text("")
    run.tasks.write_text("")
    return run


def offset_of(path: Path) -> FileOffset:
    return FileOffset(path.stat().st_size, hash_file(path).digest)


async def save(run: RunDirectory, step: int) -> RunState:
    with run.metrics.open("a") as file:
        file.write(f'{{"step": {step}}}\n')
    state = RunState(step=step, elapsed_s=10.0 * step, offsets=LogOffsets(offset_of(run.metrics), offset_of(run.tasks)))
    async with CheckpointStore(run.checkpoints, keep=9).stage(step) as staging:
        write_checkpoint(staging.folder, state, run)
    return state


def test_an_estimator_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    dice = random.Random(3)
    players = [("deduction", "solver"), ("deduction", "proposer"), ("induction", "solver")]
    steps = [[dice.choice([-1.0, -0.5, 0.0, 1.0, dice.random()]) for _ in range(9)] for _ in range(6)]

    def score(estimator: RAE, rewards: list[float]) -> list[float]:
        return estimator.score(
            Batch(rewards=rewards, response_lengths=[1] * 9, kind_roles=players * 3, groups=["g"] * 9)
        ).tolist()

    whole, first, second = RAE(), RAE(), RAE()
    expected = [score(whole, rewards) for rewards in steps]
    assert [score(first, rewards) for rewards in steps[:3]] == expected[:3]
    RunState(step=3, elapsed_s=1.0, offsets=LogOffsets(), estimators={"rae": first.state}).write(tmp_path)
    second.state.update(RunState.read(tmp_path)[0].estimators["rae"])
    assert [score(second, rewards) for rewards in steps[3:]] == expected[3:]


async def save_shards(run: RunDirectory, *steps: int) -> None:
    for step in steps:
        async with CheckpointStore(run.checkpoints, keep=9).stage(step) as staging:
            write_checkpoint(staging.folder, RunState(step=step, elapsed_s=0.0, offsets=LogOffsets()), run)
            (staging.folder / "rank_000.safetensors").write_bytes(save_tensors({"weight": np.arange(9.0)}))


async def test_a_run_goes_on_from_its_newest_checkpoint_unless_an_older_one_is_named(config, run):
    older, state = await save(run, 1), await save(run, 2)
    with run.metrics.open("a") as file:
        file.write('{"step": 3}\n')
    found = find_checkpoint(run, None)
    assert found.state == state and found.notes[-1] == "continuing after step 2"
    named, step = resolve_run(RunConfig(name="else", root="elsewhere"), str(run.path / "checkpoints" / "step_000001"))
    assert (named.name, named.root, step) == ("run", config.run.root, 1)
    found = find_checkpoint(run, 1)
    assert found.state == older and "checkpoints of steps 2 included" in found.notes[-1]


@pytest.mark.parametrize("typed, step", [
    ("here/run", None), ("elsewhere/latest", None), ("elsewhere/best", 1), (".", None), ("rollouts/..", None),
    ("checkpoints/step_000001", 1),
])  # fmt: skip
async def test_the_run_that_a_path_leads_to_goes_on_and_no_other(config, run, typed, step, tmp_path, monkeypatch):
    await save(run, 1)
    RunDirectory(tmp_path / "elsewhere" / "run").create(config)
    (tmp_path / "here").symlink_to(tmp_path)
    (tmp_path / "elsewhere" / "latest").symlink_to("../run")
    (tmp_path / "elsewhere" / "best").symlink_to("../run/checkpoints/step_000001")
    monkeypatch.chdir(tmp_path if "/run" in typed or "elsewhere" in typed else run.path)
    found, found_step = resolve_run(RunConfig(name="else", root="other"), typed)
    assert (found.name, found_step) == ("run", step) and Path(found.root).samefile(tmp_path)


async def test_a_damaged_one_is_passed_over_unless_it_was_asked_for(config, run):
    await save(run, 1)
    await save(run, 2)
    damaged = run.checkpoints / "step_000002" / "driver.json"
    damaged.write_text("{}")
    found = find_checkpoint(run, None)
    assert found.state.step == 1 and str(damaged) in found.notes[0]
    with pytest.raises(UserError, match=r"The checkpoint of step 2 cannot be used: .*driver.json"):
        find_checkpoint(run, 2)
    with pytest.raises(UserError, match="has no checkpoint of step 3: there are those of steps 1, 2"):
        find_checkpoint(run, 3)


@pytest.mark.parametrize("part", ["driver.json", "config.yaml", "policy/", "trainers/"])
async def test_a_manifest_without_a_part_of_a_checkpoint_makes_it_unsound(config, run, part):
    await save(run, 1)
    await save(run, 2)
    manifest = run.checkpoints / "step_000002" / "manifest.json"
    files = json.loads(manifest.read_text())["files"]
    manifest.write_text(json.dumps({"files": {name: files[name] for name in files if not name.startswith(part)}}))
    found = find_checkpoint(run, None)
    assert found.state.step == 1 and f"{manifest} lists no {part}" in found.notes[0]


async def test_a_resumed_run_recomputes_the_layers_that_it_began_with(config):
    decided = replace(config, train=TrainConfig(gradient_checkpointing="none"))
    run = RunDirectory.of(config.run).create(decided)
    run.metrics.write_text("")
    run.tasks.write_text("")
    await save(run, 1)
    for wanted, kept in (("auto", "none"), ("full", "full")):
        again = resolve(replace(config, train=TrainConfig(gradient_checkpointing=wanted)), str(run.path))
        assert again.config.train.gradient_checkpointing == kept and len(again.resume.notes) == 1 + (kept != "none")


@pytest.mark.parametrize("old, new, said", [
    ("steps: 500", "steps: 77", "run.steps: 500 -> 77"), ("  - deduction\n", "", "selfplay.kinds"),
    ("rank: 0", "rank: 8", "train.lora.rank"), ("prompt_format: auto", "prompt_format: chat", "model.prompt_format"),
])  # fmt: skip
async def test_a_resume_compares_with_the_checkpoint_not_with_what_was_edited(config, run, old, new, said):
    await save(run, 1)
    run.config.write_text(run.config.read_text().replace(old, new, 1))
    edited = load_recipe(str(run.path))
    if " -> " in said:
        assert resolve(edited, str(run.path)).resume.notes[0] == f"changed: {said}"
    else:
        with pytest.raises(UserError, match=f"{said} was .* when the run was saved"):
            resolve(edited, str(run.path))


async def test_full_verification_finds_before_a_start_what_headers_do_not_show(config, run):
    await save_shards(run, 1, 2)
    damaged = run.checkpoints / "step_000002" / "rank_000.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"!")
    assert find_checkpoint(run, None).state.step == 2
    found = find_checkpoint(run, None, "full")
    assert found.state.step == 1 and str(damaged) in found.notes[0]
    with pytest.raises(UserError, match=f"The checkpoint of step 2 cannot be used: {damaged} has another content"):
        find_checkpoint(run, 2, "full")


async def test_checkpoints_of_which_none_is_sound_are_refused_and_left_as_they_are(config, run):
    for step in (1, 2):
        await save(run, step)
        (run.checkpoints / f"step_{step:06d}" / "driver.json").write_text("{")
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(UserError, match=r"has no sound checkpoint \(.*step 2 .*restore one .*--restart"):
        find_checkpoint(run, None)
    assert before == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("seeds", [range(10), pytest.param(range(10, 210), marks=pytest.mark.long)])
async def test_whatever_is_damaged_the_newest_sound_checkpoint_is_found(config, run, seeds, tmp_path):
    """Random cuts, flips and losses in files of checkpoints: those that are still sound serve, and nothing goes."""
    await save_shards(run, 1, 2, 3)
    sound = tmp_path / "sound"
    shutil.copytree(run.checkpoints, sound)
    for seed in seeds:
        rng = random.Random(seed)
        shutil.rmtree(run.checkpoints)
        shutil.copytree(sound, run.checkpoints)
        hurt = set()
        for _ in range(rng.randint(1, 4)):
            path = rng.choice(sorted(path for path in run.checkpoints.rglob("*") if path.is_file()))
            data = bytearray(path.read_bytes())
            at = rng.randrange(max(1, len(data)))
            if rng.random() < 0.2:
                path.unlink()
            elif rng.random() < 0.5 or not data:
                path.write_bytes(data[:at])
            else:
                data[at] ^= 1 << rng.randrange(8)
                path.write_bytes(data)
            hurt.add(step_of(run.checkpoints / path.relative_to(run.checkpoints).parts[0]))
        left = sorted({1, 2, 3} - hurt)
        before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
        if left:
            assert find_checkpoint(run, None, "full").state.step >= left[-1], seed
        else:
            with contextlib.suppress(UserError):  # a flipped bit may leave JSON that says the same
                find_checkpoint(run, None, "full")
        assert before == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}, seed


async def test_files_and_lost_folders_are_no_checkpoints(config, run):
    state = await save(run, 1)
    (run.checkpoints / "step_000002").touch()
    assert find_checkpoint(run, None).state == state
    shutil.rmtree(run.checkpoints)
    shutil.rmtree(run.rollouts(0).parent)
    found = find_checkpoint(run, None)
    assert found.state == INITIAL and "starts again from its beginning" in found.notes[-1]
    RunLogger.reopen(run, config, Progress(), 0, LogOffsets()).close()
    assert run.checkpoints.is_dir() and run.rollouts(0).parent.is_dir()


async def test_logs_that_were_altered_and_a_folder_of_another_step_are_refused(config, run):
    await save(run, 1)
    run.metrics.write_text('{"step": 7}\n')
    with pytest.raises(UserError, match=r"metrics.jsonl was altered since the checkpoint was saved"):
        find_checkpoint(run, None)
    run.metrics.unlink()
    with pytest.raises(UserError, match=r"metrics.jsonl cannot be read"):
        find_checkpoint(run, None)
    os.rename(run.checkpoints / "step_000001", run.checkpoints / "step_000009")
    with pytest.raises(UserError, match="step_000009 holds the state of step 1"):
        find_checkpoint(run, None)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["metrics.jsonl", "tasks.jsonl", "log.txt"])
async def test_a_link_or_a_pipe_in_place_of_a_log_is_not_written(config, run, name, tmp_path):
    await save(run, 1)
    (tmp_path / "mine").write_text("mine")
    for make in (lambda path: path.symlink_to(tmp_path / "mine"), os.mkfifo, Path.mkdir):
        (run.path / name).unlink(missing_ok=True)
        make(run.path / name)
        with pytest.raises(UserError, match=f"{name} is a link or no file"):
            find_checkpoint(run, None)
    assert (tmp_path / "mine").read_text() == "mine"


def test_changes_are_told_and_those_that_cannot_be_followed_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("model", "other"):
        Path(name).mkdir()
    saved, same, other = (Config(model=ModelConfig(path=path)) for path in ("model", str(tmp_path / "model"), "other"))
    assert config_changes(saved, same) == []
    with mistake("model.path"):
        config_changes(saved, other)
    saved = Config()
    wanted = replace(saved, run=RunConfig(steps=9, name="other"), train=TrainConfig(data_parallel=2, policy_lr=1e-3))
    assert config_changes(saved, wanted) == [
        "run.steps: 500 -> 9", "train.data_parallel: 1 -> 2", "train.policy_lr: 1e-06 -> 0.001",
    ]  # fmt: skip
    rows = replace(saved, data=DataConfig(path="rows.jsonl", play="alone"))
    mixed = replace(rows, data=replace(rows.data, play="mixed"))
    for before, after, says in (
        (saved, replace(saved, model=replace(saved.model, prompt_format="compact")), "cannot become compact"),
        (saved, replace(saved, algorithm=AlgorithmConfig(estimator=GAE())), "the checkpoint has no critic for gae"),
        (rows, mixed, "keep data.path and data.play"), (mixed, rows, "keep data.path and data.play"),
    ):  # fmt: skip
        with mistake(says=says):
            config_changes(before, after)
    assert config_changes(saved, mixed)
    assert config_changes(replace(saved, algorithm=AlgorithmConfig(estimator=GAE(lambda_=0.5))), saved) == [
        "algorithm.estimator: gae -> trrpp", "algorithm.estimator.lambda_: 0.5 -> unset",
        "algorithm.estimator.critic_mini_batches: 1 -> unset", "algorithm.estimator.critic_warmup_steps: 0 -> unset",
    ]  # fmt: skip
