"""Runs that are killed with rollouts in flight and continue: every proposal of every step is there exactly once."""

import asyncio
import itertools
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from azr import runtime
from azr.config import Config
from azr.config_tree import override
from azr.launch import Run
from azr.monitoring.texts import DEFAULT, TextReader
from azr.records import Completion, Sample, Stops
from azr.runs.checkpoint_store import AsyncCheckpointer, CheckpointStore, RunState, Staging, find_checkpoint
from azr.runs.progress import Progress
from azr.runs.run_dir import RunDirectory
from azr.runs.run_logger import RunLogger
from azr.runs.sample_file import read_tasks
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.journal import Journal, write_journal
from tests.e2e import runs
from tests.runs.factory import write_checkpoint
from tests.selfplay.test_journal import Executor
from tests.selfplay.test_play import CODEC, CONFIG, completion, proposal
from tests.test_experiment import experiment_of

STEPS, PROPOSALS = 5, 10


class Engine:
    """Every fifth request is a straggler; the request of a given number kills the process."""

    restarts = given_up = 0

    def __init__(self, config: Config, first_body: int, kill_at: int | None) -> None:
        self._bodies, self._numbers, self._kill_at = itertools.count(first_body), itertools.count(), kill_at
        self._config, self.version, self.kill = config, 0, lambda: None

    async def generate(self, prompt_ids: list[int], *, n: int, **_: object) -> list[Completion]:
        number = next(self._numbers)
        if number == self._kill_at:
            self.kill()
        proposes = CODEC.decode(prompt_ids).startswith("<|propose|>")
        text = proposal(f"a + {next(self._bodies)}") if proposes else "<|output|>3<|end|>"
        await asyncio.sleep(0.5 if number % 5 == 0 else 0.002)
        answers = [completion(prompt_ids, text) for _ in range(n)]
        return [replace(each, weight_versions=np.int32(self.version)) for each in answers]

    async def stats(self) -> dict[str, float]:
        return {}


def play(config: Config, engine: Engine) -> None:
    """The rest of a run, in a process of its own as far as memory goes; a checkpoint after every step."""
    folder = RunDirectory.of(config.run)
    resume = find_checkpoint(folder, None) if folder.path.exists() else None
    done = resume.state.step if resume else 0
    engine.version = done

    async def learn(samples: list[Sample], step: int, *, critic_only: bool) -> dict[str, dict[str, float]]:
        await asyncio.sleep(0.05)
        return {"computed_tokens": {}}

    def pushed(version: int) -> None:
        engine.version = version

    async def run() -> None:
        main = asyncio.current_task()
        assert main is not None
        engine.kill = main.cancel
        if resume is None:
            logger = RunLogger.create(folder, config, Progress())
        else:
            logger = RunLogger.reopen(folder, config, Progress(), done, resume.state.offsets)
        store = CheckpointStore(folder.checkpoints, 2)
        journal = Journal(engine.generate, 1.0)
        journal.read(store.path(done), done)
        buffer = TaskBuffer(config.selfplay.kinds)
        buffer.restore(read_tasks(logger.run.tasks))

        async def write(step: int, staging: Staging) -> None:
            await logger.flush()
            write_checkpoint(staging.folder, RunState(step=step, elapsed_s=0.0, offsets=logger.offsets()), folder)
            await asyncio.to_thread(write_journal, staging.folder, journal.copy(step))

        reader = TextReader(DEFAULT)
        checkpointer = AsyncCheckpointer(store, 1, write, print, done)
        experiment = experiment_of(
            config, engine, Executor().execute, logger, reader, checkpointer, buffer=buffer, journal=journal,
            pushed=pushed, learn=learn,
        )  # fmt: skip
        try:
            async with reader:
                await runtime.play(experiment)
        finally:
            logger.close()

    asyncio.run(run())


@pytest.mark.parametrize("refill", [1, 2])
@pytest.mark.parametrize("colocate", [True, False])
def test_a_run_that_is_killed_again_and_again_has_every_proposal_once(colocate, refill, tmp_path) -> None:
    """Also where half of a step's proposals are asked because no other became a learnable task."""
    sizes = {"proposer_prompts": PROPOSALS // refill, "solver_prompts": 4, "group_size": 2, "seed_tasks": 3}
    values = {"run.root": str(tmp_path), "run.name": "run", "run.steps": STEPS, "cluster.colocate": colocate}
    values |= {"rollout.staleness": 3, "rollout.partial": True, "rollout.refill": refill}
    config = override(CONFIG, values | {f"selfplay.{name}": size for name, size in sizes.items()})
    kills = 0
    for attempt in itertools.count():
        engine = Engine(config, 1000 * attempt, kill_at=23 + 10 * attempt if attempt < 6 else None)
        try:
            play(config, engine)
            break
        except asyncio.CancelledError:
            kills += 1
    assert kills >= 3
    run = RunDirectory.of(config.run)
    metrics = runs.metrics(run.path)
    assert [step["step"] for step in metrics] == list(range(1, STEPS + 1))
    proposed = [step["deduction/proposer/funnel/proposed"] for step in metrics]
    ids, estimates, num_carried_over = Counter[str](), set[str](), 0
    for step in range(1, STEPS + 1):
        rows = runs.rollouts(run.path, step)
        ids.update(row["problem_id"] for row in rows if row["role"] == "proposer")
        num_carried_over += sum(int(row["group"].partition(":")[2][:6]) < step for row in rows)
        estimates |= {row["used"] for row in rows if row["group"].startswith("estimate:")}
    assert num_carried_over > 0
    assert sum(step["staleness/dropped"] for step in metrics) == 0
    assert all(step["staleness/max"] <= 3 for step in metrics)
    most = {f"{s:06d}-deduction-{i:04d}" for s in range(1, STEPS + 1) for i in range(PROPOSALS)}
    if refill == 1:
        assert set(ids) == most
    else:  # a step that ends early asks for nothing more in place of what it carries over
        assert set(ids) <= most and len(ids) > len(most) // refill
    assert set(ids.values()) == {1} and len(ids) == sum(proposed)
    assert estimates == {"trained" if refill == 1 else "unlearnable"}
    stored = Counter(task.id for task in read_tasks(run.tasks))
    assert set(stored.values()) == {1}


async def test_a_restart_after_a_trainers_death_is_no_command_of_the_user(tmp_path) -> None:
    config = replace(CONFIG, run=replace(CONFIG.run, root=str(tmp_path), name="run"))
    run = RunDirectory.of(config.run).create(config)
    resume = find_checkpoint(run, None)
    codec = SimpleNamespace(template=None, stops=Stops())
    driver = runtime.Driver(SimpleNamespace(run=Run(config=config, folder=run, resume=resume), codec=codec))
    for _ in range(3):
        async with driver._open_logger(Progress(), resume):
            commands = [line for line in run.config.read_text().splitlines() if line.startswith("# ")]
            assert len(commands) == 2, "that which began the run, and that which resumed it"
