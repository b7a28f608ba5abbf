"""The loop itself with scripted responses: real play, sandbox, records and checkpointing, no engine and no trainer."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from azr import runtime
from azr.cluster.weight_sync import PushReport
from azr.concurrency import Phase
from azr.config import Config, DataConfig, SafetyConfig
from azr.datasets.choice import load_rows
from azr.datasets.play import DataPlay
from azr.datasets.rows import RowOrder, grader_names
from azr.errors import RunEnded
from azr.evaluation.periodic import AnswerExecutor
from azr.executor.pool import SandboxPool
from azr.experiment import SelfPlayExperiment
from azr.graders import open_graders
from azr.monitoring.monitor import Monitor
from azr.monitoring.texts import Screen, TextReader, patterns_of
from azr.prompts.codec import PromptCodec
from azr.records import Sample
from azr.runs.checkpoint_store import AsyncCheckpointer, CheckpointStore
from azr.runs.progress import Progress
from azr.runs.run_dir import RunDirectory
from azr.runs.run_logger import RunLogger
from azr.runs.stop_signal import MalformedAlarm, StopSignal
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.journal import Journal
from tests.datasets import test_play as datasets
from tests.datasets.test_play import order_of
from tests.datasets.test_rows import write
from tests.e2e import runs
from tests.selfplay.test_play import CODEC, CONFIG, Script, half_right, proposal


def small(root: Path, *, stop: bool = True) -> Config:
    play = replace(CONFIG.selfplay, proposer_prompts=2, solver_prompts=1, seed_tasks=3)
    run = replace(CONFIG.run, root=str(root), name="run", steps=4, stop_when_malformed=stop)
    return replace(CONFIG, run=run, selfplay=play, ablation=replace(CONFIG.ablation, train_proposer=False))


class Engines(Script):
    async def stats(self) -> dict[str, float]:
        return {"restarts": 0}


class Answering(datasets.Sampler):
    """Answers rows."""

    stats = Engines.stats


def go_on() -> None: ...


async def learn(samples: list[Sample], step: int, *, critic_only: bool) -> dict[str, dict[str, float]]:
    for sample in samples:
        sample.advantage, sample.mismatch = 0.5, 0.01
    return {"policy": {"loss": 0.0}, "computed_tokens": {}}


def experiment_of(
    config: Config, engines: Any, execute: Any, logger: RunLogger, reader: TextReader, store: AsyncCheckpointer,
    *, codec: PromptCodec = CODEC, data: DataPlay | None = None, buffer: TaskBuffer | None = None,
    journal: Journal | None = None, rules: Sequence[str] = (), diverged: Callable[[], None] = go_on,
    pushed: Callable[[int], None] = lambda version: None, learn: Any = learn,
) -> SelfPlayExperiment:  # fmt: skip
    """An experiment whose trainers are stand-ins; ``pushed`` is told the version of every push."""

    async def offload_engines_onload_trainers(phase: Phase) -> None: ...

    async def sync_and_onload_engines(version: int, phase: Phase) -> PushReport:
        pushed(version)
        return PushReport(version=version, seconds=1.0, nbytes=1)

    async def stats_delta() -> dict[str, float]:
        return {}

    turns = SimpleNamespace(
        memory={},
        offload_engines_onload_trainers=offload_engines_onload_trainers,
        sync_and_onload_engines=sync_and_onload_engines,
    )
    executor = SimpleNamespace(execute=execute, stats_delta=stats_delta)
    return SelfPlayExperiment(
        config=config, codec=codec, seeds=None, evaluation=SimpleNamespace(should_run=lambda *at: False), data=data,
        buffer=buffer or TaskBuffer(config.kinds), logger=logger, checkpointer=store, stop_signal=StopSignal(),
        system=SimpleNamespace(engines=engines, executor=executor, turns=turns), elapsed_s=lambda: 0.0,
        learner=SimpleNamespace(learn=learn, raise_if_diverged=diverged), monitor=Monitor(codec, reader, rules),
        journal=journal or Journal(engines.generate, 1.0),
        alarm=MalformedAlarm(codec.decode, logger.progress.log, stop=config.run.stop_when_malformed),
    )  # fmt: skip


def play(
    config: Config, engines: Engines | Answering, saved: list[int], raise_if_diverged: Callable[[], None] = go_on,
    codec: PromptCodec = CODEC,
) -> None:  # fmt: skip
    """Plays to the end as the driver does; ``saved`` gets the steps whose checkpoints were written."""
    rows = load_rows(config, codec)[0] if config.data.path is not None else []

    async def write(step: int, staging: object) -> None:
        saved.append(step)

    async def run() -> None:
        logger = RunLogger.create(RunDirectory.of(config.run), config, Progress())
        patterns = patterns_of(config.safety)
        async with (
            SandboxPool(config.executor) as pool,
            open_graders(grader_names(rows), answers=partial(AnswerExecutor, config)) as graders,
            TextReader(patterns) as reader,
        ):
            data = None
            if rows:
                data = DataPlay(config=config, codec=codec, rows=rows, graders=graders, order=order_of(rows))
            checkpointer = AsyncCheckpointer(CheckpointStore(logger.run.checkpoints, 2), 0, write, print, 0)
            experiment = experiment_of(
                config, engines, pool.execute, logger, reader, checkpointer, codec=codec, data=data,
                rules=[rule.name for rule in Screen.read(patterns).rules], diverged=raise_if_diverged,
            )  # fmt: skip
            try:
                await runtime.play(experiment)
            finally:
                logger.close()

    asyncio.run(run())


def test_seeding_with_a_model_that_ignores_the_form_ends_after_three_rounds(tmp_path, capsys) -> None:
    saved: list[int] = []
    with pytest.raises(RunEnded, match="Over 80% of the proposer responses"):
        play(small(tmp_path), Engines(["what <|end|>"] * 6, half_right), saved)
    assert saved == []
    alarms = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ALARM")]
    assert [line.partition(" were")[0] for line in alarms] == [
        f"ALARM: 2 of 2 proposer responses of seeding round {number}" for number in (1, 2, 3)
    ]
    assert all("reads 'what <|end|>'" in line for line in alarms)


@pytest.mark.parametrize("stop", [True, False])
def test_three_steps_of_a_role_that_is_not_even_trained_on_end_the_run_with_the_last_one_saved(
    stop, tmp_path, capsys
) -> None:
    config = small(tmp_path, stop=stop)
    engines = Engines([proposal("a + 1"), proposal("a + 2"), *["<|program|>cut"] * 8], half_right)
    saved: list[int] = []
    with pytest.raises(RunEnded, match="in 3 rounds in a row") if stop else nullcontext():
        play(config, engines, saved)
    assert saved == ([3] if stop else [4])
    folder = tmp_path / "run"
    steps = runs.metrics(folder)
    assert [step["step"] for step in steps] == ([1, 2, 3] if stop else [1, 2, 3, 4])
    assert all(step["proposer/malformed"] == 1 and step["solver/malformed"] == 0 for step in steps)
    alarms = [line for line in capsys.readouterr().out.splitlines() if line.startswith("ALARM")]
    assert len(alarms) == len(steps) and "(2 cut off); one of them reads '<|program|>cut'" in alarms[0]
    where = folder / "rollouts" / "step_000001.jsonl.gz"
    assert f"all texts are in {where};" in alarms[0] and where.is_file()


def test_a_run_that_diverged_ends_with_its_last_step_saved(tmp_path: Path) -> None:
    def diverged() -> None:
        raise RunEnded("the last 5 optimizer steps were skipped")

    saved: list[int] = []
    with pytest.raises(RunEnded, match="skipped"):
        play(small(tmp_path), Engines([proposal(f"a + {n}") for n in range(10)], half_right), saved, diverged)
    assert saved == [1]


def test_a_run_on_rows_alone_neither_seeds_nor_proposes(tmp_path: Path) -> None:
    rows = [row for row in datasets.ROWS if row["grader"] in ("math", "choice")]
    data = DataConfig(path=str(write(tmp_path / "rows.jsonl", *rows)), prompts=1, samples=4)
    config = replace(small(tmp_path, stop=False), data=data)
    codec = datasets.chat_codec(config, tmp_path / "tokenizer")
    saved: list[int] = []
    play(config, Answering(codec), saved, codec=codec)
    assert saved == [4]
    folder = tmp_path / "run"
    order = RowOrder([row["id"] for row in rows], "digest", config.run.seed)
    for step, metrics in enumerate(runs.metrics(folder), 1):
        ((epoch, row),) = order.take(step, 1)
        records = runs.rollouts(folder, step)
        assert {record["group"] for record in records} == {f"data:{epoch}:{rows[row]['id']}"}
        verdicts = sorted(record["judgement"]["verdict"] for record in records)
        assert verdicts == ["malformed", "malformed", "right", "wrong"]
        assert metrics[f"{rows[row]['source']}/solver/accuracy"] == 0.25
        assert metrics["batch/trajectories"] == 4 and metrics["solver/malformed"] == 0.5
        assert not [name for name in metrics if "proposer" in name or name.startswith("buffer/")]
    assert (folder / "tasks.jsonl").read_text() == ""


@pytest.mark.parametrize("stop_at", [None, 2])
def test_flagged_responses_are_counted_recorded_and_end_a_run_that_asks_for_it(stop_at, tmp_path) -> None:
    (tmp_path / "rules.toml").write_text("[[rule]]\nname = 'sums'\npatterns = ['a \\+ [0-9]']\n")
    safety = SafetyConfig(patterns=str(tmp_path / "rules.toml"), stop_at=stop_at)
    config = replace(small(tmp_path, stop=False), safety=safety)
    saved: list[int] = []
    over = pytest.raises(RunEnded, match=r"step 2 were flagged, .* the rule sums, .* azr show .*run --flagged shows")
    bodies = ["a + 1", "a + 2", "a - 1", "a - 3", *[f"a + {n}" for n in range(3, 9)]]
    with over if stop_at else nullcontext():
        play(config, Engines([proposal(body) for body in bodies], half_right), saved)
    folder = tmp_path / "run"
    steps = runs.metrics(folder)
    assert saved == [len(steps)] == ([2] if stop_at else [4])
    for step in steps:
        flagged = [record for record in runs.rollouts(folder, step["step"]) if record["flags"]]
        assert step["safety/flagged"] == step["safety/sums"] == len(flagged) and step["safety/unscreened"] == 0
        for record in flagged:
            ((name, start, end),) = record["flags"]
            assert name == "sums" and record["response"][start:end].startswith("a + ")
        assert step["deduction/proposer/tokens/max"] >= step["deduction/proposer/tokens/p50"] > 0
