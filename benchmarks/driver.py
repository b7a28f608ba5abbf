"""What the driver's own process spends on a trajectory, with engine and executor scripted and everything else real.

    python -m benchmarks.driver [--trajectories 10000] [--tokens 500] [--ranks 8] [--profile]

One step of self-play in chat form: one Ray actor stands where an engine stands and answers with arrays of that many
tokens, accepted proposals and solutions that are right half of the time, and another where the executor's sandboxes
are. Prompts, calls, parsing, rewards, the buffer, packing for the ranks, advantages, metrics and rollout records are
those of a run. CPU seconds are of all threads of this process, Ray's among them. The goal is 0.4 ms a trajectory.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import pstats
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import ray

from azr.algorithms.advantages import estimate_advantages
from azr.algorithms.batch import Batch
from azr.cluster import executor_actor
from azr.cluster.executor_actor import RemoteExecutor
from azr.cluster.supervisor import TakesSharedCalls
from azr.config import TRRPP, Config, ModelConfig, RolloutConfig, SelfPlayConfig
from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.prompts.codec import PromptCodec
from azr.records import Completion
from azr.rollout import engine_group
from azr.rollout.engine_group import EngineGroup, EnginePlacement
from azr.runs.metrics import step_metrics
from azr.runs.sample_file import write_samples
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.journal import Journal
from azr.selfplay.play import SelfPlayStep
from azr.tasks.base import Section
from azr.tasks.registry import KINDS
from azr.train.train_batch import TrainBatch

KIND, GROUP, STORED, MODEL = "deduction", 8, 200, "data/azr_14m_base"
TOKENS_PER_MICRO_BATCH = 200_000


class ScriptedEngine(TakesSharedCalls):
    """Answers a prompt by what it is: a proposal, or a solution of the first number in its program."""

    def __init__(self, config: Config, **_: object) -> None:
        """As `azr.rollout.engine.RolloutEngine`."""
        super().__init__()
        kind, self._tokens = KINDS[KIND], config.rollout.max_response_tokens
        self._codec = PromptCodec.load(config_of(config.model.path, self._tokens))
        proposal = self._codec.proposal_ids(kind, [kind.seed()])
        solution = self._codec.solver_prompt(kind, kind.seed())
        pairs = zip(proposal, solution, strict=False)
        self._role_at = next(i for i, (proposes, solves) in enumerate(pairs) if proposes != solves)
        self._proposes = proposal[self._role_at]
        self._thought = self._codec.encode("so the value grows by one with every step of the loop, and " * self._tokens)
        self._count = 0

    async def load_code(self) -> None: ...

    async def start(self) -> None: ...

    async def ping(self) -> bool:
        return True

    async def shutdown(self) -> None: ...

    async def generate(self, prompt_ids: npt.NDArray[np.int32], *, n: int, **_: object) -> list[Completion]:
        """As `azr.rollout.engine.RolloutEngine`."""
        prompt, answers = np.array(prompt_ids, np.int32), []
        prompt.flags.writeable = False
        for _ in range(n):
            self._count += 1
            if prompt[self._role_at] == self._proposes:
                program = f"def f(a):\n    total = {self._count}\n    return [total, a]"
                answers.append([Section("program", program), Section("input", "1")])
            else:
                answers.append([Section("output", f"[{self._count % 2}, 1]")])
        return [self._completion(prompt, sections) for sections in answers]

    def _completion(self, prompt: npt.NDArray[np.int32], sections: Sequence[Section]) -> Completion:
        stated = self._codec.encode(self._codec._format.response(sections))
        ids = np.array([*self._thought[: self._tokens - len(stated)], *stated], np.int32)
        return Completion(
            prompt_ids=prompt,
            response_ids=ids,
            logprobs=np.full(len(ids), -1.0, np.float32),
            finish_reason="stop",
            weight_versions=np.zeros(len(ids), np.int32),
            text=self._codec.decode(ids),
        )


@ray.remote(num_cpus=0, max_concurrency=4096)
class ScriptedPool(TakesSharedCalls):
    """Every program returns the same, at once."""

    linger_s = 0.002

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    async def start(self) -> str:
        return "nothing"

    async def ping(self) -> bool:
        return True

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        """As `azr.cluster.executor_actor.ExecutorPool`."""
        output = CallResult(status=CallStatus.OK, value="[0, 1]")
        return ExecutionResult(outputs=(output,) * len(request.inputs), deterministic=True)


def stored_program(index: int) -> str:
    """Of a task that is shown to proposers."""
    return f"def f(a):\n    total = {index}\n    for i in range({index % 7}):\n        total += i * a\n    return total"


def config_of(model_path: str, tokens: int, prompts: int = 1) -> Config:
    """A step with so many prompts of each role."""
    return Config(
        model=ModelConfig(path=model_path, prompt_format="chat"),
        selfplay=SelfPlayConfig(
            kinds=(KIND,),
            proposer_prompts=prompts,
            solver_prompts=prompts,
            references=6,
            group_size=GROUP,
            train_on_estimates=True,
        ),
        rollout=RolloutConfig(max_prompt_tokens=6144, max_response_tokens=tokens),
    )


class Cpu:
    """CPU seconds of this process, by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        started = time.process_time()
        try:
            yield
        finally:
            self.seconds[name] = time.process_time() - started


async def step(config: Config, codec: PromptCodec, ranks: int, folder: Path, cpu: Cpu) -> int:
    """Everything that the driver does for a step, but for waiting; returns how many trajectories there were."""
    engines = EngineGroup(config, codec.stops, [EnginePlacement({"num_cpus": 0.5})])
    await engines.start()
    executor = RemoteExecutor(config.executor, 60.0)
    await executor.start()
    kind = KINDS[KIND]
    await engines.generate(codec.solver_prompt(kind, kind.seed()), n=1, max_tokens=8)
    buffer = TaskBuffer(config.selfplay.kinds)
    for index in range(STORED):
        buffer.add(replace(kind.seed(), id=f"stored-{index}", program=stored_program(index), fingerprint=str(index)))
    play = SelfPlayStep(
        config=config,
        step=1,
        name="000001",
        buffer=buffer,
        codec=codec,
        execute=executor.execute,
        journal=Journal(engines.generate, 1.0),
        phase=lambda name: nullcontext(),
    )
    with cpu.part("play"):
        played = await play.play()
    trajectories = [sample for sample in played.samples if sample.used == "trained"]
    with cpu.part("pack"):
        members = [list(range(len(trajectories)))]
        TrainBatch.build([t.completion for t in trajectories], members, ranks, TOKENS_PER_MICRO_BATCH)
    with cpu.part("advantages"):
        estimate_advantages(Batch.from_samples(trajectories), TRRPP())
    with cpu.part("metrics"):
        step_metrics(trajectories, config.kinds, GROUP, {})
    with cpu.part("records"):
        write_samples(folder / "rollouts.jsonl.gz", 1, trajectories, codec.decode)
    return len(trajectories)  # not the trajectories: asyncio.run writes out what it returns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument("--tokens", type=int, default=500, help="of each response")
    parser.add_argument("--ranks", type=int, default=8, help="that the batch is packed for")
    parser.add_argument("--profile", action="store_true", help="print where this thread's time goes")
    parser.add_argument("--json", type=Path, help="also write the numbers into this file")
    options = parser.parse_args()
    config = config_of(MODEL, options.tokens, max(1, options.trajectories // (2 + GROUP)))
    engine_group.RolloutEngine, executor_actor.ExecutorPool = ScriptedEngine, ScriptedPool  # type: ignore[misc, assignment]
    codec = PromptCodec.load(config)
    ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="ERROR")
    cpu, profile = Cpu(), cProfile.Profile()
    gc.collect()
    gc.freeze()  # as `azr.runtime` does
    with tempfile.TemporaryDirectory() as folder, profile if options.profile else nullcontext():
        count = asyncio.run(step(config, codec, options.ranks, Path(folder), cpu))
    print(f"{count} trajectories of {options.tokens} tokens: CPU ms of the driver for each")
    milliseconds = {part: 1e3 * seconds / count for part, seconds in cpu.seconds.items()}
    milliseconds["all"] = sum(milliseconds.values())
    for part, value in milliseconds.items():
        print(f"{part:<12}{value:8.3f}")
    if options.json is not None:
        options.json.write_text(json.dumps({"trajectories": count, "ms": milliseconds}, indent=1) + "\n")
    if options.profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    ray.shutdown()


if __name__ == "__main__":
    main()
