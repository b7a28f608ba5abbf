"""Engines are killed for real during generation, sleep and a push: nothing is lost but time."""

import asyncio
import logging
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
import torch
from ray.actor import ActorHandle

from azr.cluster import supervisor
from azr.cluster.gpu_turns import GpuTurns, shares_gpus
from azr.cluster.supervisor import TakesSharedCalls
from azr.cluster.weight_sync import PushReport, WeightSync
from azr.config import ClusterConfig, Config, ModelConfig, RolloutConfig, TrainConfig
from azr.records import Completion, Stops
from azr.rollout import engine_group
from azr.rollout.engine_group import EngineGroup, EnginePlacement
from azr.train.learner import score
from azr.train.policy import PolicyWorker
from azr.train.worker_group import WorkerGroup
from tests.train.conftest import one_step, rollout_logprobs, update_policy

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.long]
MODEL = Path(__file__).parents[2] / "data" / "azr_14m_base"
TOKENS = 96
CONFIG = Config(
    model=ModelConfig(path=str(MODEL)),
    rollout=RolloutConfig(engines=2, max_prompt_tokens=64, max_response_tokens=TOKENS, max_concurrent=16),
    train=TrainConfig(device="cpu", dtype="float32", policy_lr=1e-3, tokens_per_micro_batch=2048),
    cluster=ClusterConfig(push="host"),
)


@dataclass
class Parts:
    """Two engines and the policy whose weights they serve."""

    engines: EngineGroup
    policy: WorkerGroup
    weights: WeightSync
    version: int = 0

    async def learn(self) -> None:
        """Move the policy far enough to tell its weights from those on disk."""
        completions = [c for answer in await asyncio.gather(*self.ask(4)) for c in answer]
        tokens = sum(len(c.response_ids) for c in completions)
        columns = {
            "rollout_logprobs": rollout_logprobs(completions),
            "advantages": torch.randn(tokens, generator=torch.Generator().manual_seed(self.version)),
        }
        await update_policy(self.policy, one_step(completions, self.policy, CONFIG), columns, CONFIG.timeout.train_s)

    async def push(self) -> PushReport:
        self.version += 1
        return await self.weights.push(self.version)

    def ask(self, requests: int) -> list[asyncio.Task[list[Completion]]]:
        dice = random.Random(requests)
        prompts = [[dice.randrange(20, 200) for _ in range(32)] for _ in range(requests)]
        return [asyncio.create_task(self.engines.generate(p, n=2, max_tokens=TOKENS)) for p in prompts]

    async def check(self) -> None:
        """Both engines serve the policy's own weights and say so."""
        for actor in self.engines.actors:
            answer = await actor.generate.remote(list(range(30, 60)), n=4, max_tokens=16, temperature=1.0)
            assert {int(v) for c in answer for v in c.weight_versions} == {self.version} == {await actor.ping.remote()}
            batch = one_step(answer, self.policy, CONFIG)
            scores = await score(self.policy, "logprobs", batch, CONFIG.timeout.train_s)
            assert float((scores - rollout_logprobs(answer)).abs().mean()) < 1e-3


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def parts(ray_cluster: None) -> AsyncIterator[Parts]:
    options = {"num_cpus": 0.2}
    engines = EngineGroup(CONFIG, Stops(), [EnginePlacement(options)] * 2)
    starting = WorkerGroup.start("policy", PolicyWorker, [options], CONFIG, "cpu")
    _, policy = await asyncio.gather(engines.start(), starting)
    engines.weights = WeightSync(policy, engines.slots, CONFIG.timeout.train_s)
    yield Parts(engines, policy, engines.weights)
    await asyncio.gather(engines.shutdown(), policy.shutdown())


async def processes(actor: ActorHandle) -> dict[str, psutil.Process]:
    """The actor's own and that of its core."""
    process = psutil.Process(await actor.__ray_call__.remote(lambda _: os.getpid()))
    children: list[psutil.Process] = []
    for _ in range(100):
        children = process.children()
        # It does not always take vLLM's name; multiprocessing's resource tracker is the other child.
        cores = [child for child in children if re.search("EngineCore|spawn_main", " ".join(child.cmdline()))]
        if len(cores) == 1:
            return {"actor": process, "core": cores[0]}
        await asyncio.sleep(0.3)
    raise AssertionError(f"an engine has one core among its children, not {children}")


async def answered(requests: Sequence[asyncio.Task[list[Completion]]], version: int) -> float:
    """Seconds until all were answered, by engines with these weights."""
    began = time.monotonic()
    answers = await asyncio.wait_for(asyncio.gather(*requests), 500)
    assert [len(answer) for answer in answers] == [2] * len(requests)
    assert {int(v) for answer in answers for c in answer for v in c.weight_versions} == {version}
    return time.monotonic() - began


async def gone(*dead: psutil.Process) -> bool:
    _, alive = await asyncio.to_thread(psutil.wait_procs, dead, 30)
    return not alive


def deaths(caplog: pytest.LogCaptureFixture) -> list[str]:
    messages = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    caplog.clear()
    return messages


async def test_an_actor_killed_during_generation(parts: Parts, caplog: pytest.LogCaptureFixture) -> None:
    await parts.learn()
    await parts.push()
    # As while engines play on GPUs that they share; the new engine is sent the weights all the same.
    await parts.policy.call("offload", True, timeout_s=CONFIG.timeout.train_s)
    first, second = parts.engines.actors
    dead = await processes(first)
    requests = parts.ask(40)
    await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
    dead["actor"].send_signal(signal.SIGKILL)
    print(f"\n40 requests answered {await answered(requests, parts.version):.1f} s after an actor's death")
    assert parts.engines.restarts == 1
    assert parts.engines.actors[0] != first and parts.engines.actors[1] == second
    assert await gone(*dead.values())
    (said,) = deaths(caplog)
    assert said.startswith("rollout engine 0 died when it was to generate") and "\n" not in said
    await parts.policy.call("reload", timeout_s=CONFIG.timeout.train_s)
    await parts.check()


async def test_engines_apart_play_through_the_trainers_turn(parts: Parts) -> None:
    config = replace(CONFIG, cluster=ClusterConfig(colocate=False))
    shared = {"engines": parts.engines, "weights": parts.weights, "policy": parts.policy, "others": ()}
    turns = GpuTurns(**shared, shares_gpus=shares_gpus(config, "cpu"), timeout_s=config.timeout.train_s)
    early = parts.ask(8)
    await turns.offload_engines_onload_trainers(lambda name: nullcontext())
    await answered([*early, *parts.ask(2)], parts.version)
    await parts.learn()
    parts.version += 1
    pushed = await turns.sync_and_onload_engines(parts.version, lambda name: nullcontext())
    assert pushed.version == parts.version
    await parts.check()


async def test_a_killed_and_a_silent_core_during_generation(parts, caplog, monkeypatch):
    monkeypatch.setattr(supervisor, "HEALTH_CHECK_S", 2.0)
    monkeypatch.setattr(supervisor, "PING_S", 15.0)
    before = parts.engines.restarts
    dead = [await processes(actor) for actor in parts.engines.actors]
    requests = parts.ask(40)
    await asyncio.wait(requests, return_when=asyncio.FIRST_COMPLETED)
    dead[0]["core"].send_signal(signal.SIGKILL)
    dead[1]["core"].send_signal(signal.SIGSTOP)
    print(f"\n40 requests answered {await answered(requests, parts.version):.1f} s after the end of both cores")
    assert parts.engines.restarts == before + 2
    assert await gone(*dead[0].values(), *dead[1].values())
    assert sorted(said[:16] for said in deaths(caplog)) == ["rollout engine 0", "rollout engine 1"]
    await parts.check()


async def test_an_actor_killed_in_sleep_and_a_core_during_the_push(parts: Parts, caplog: pytest.LogCaptureFixture):
    await parts.learn()
    await parts.push()
    before = parts.engines.restarts
    sleeper, pushed = [await processes(actor) for actor in parts.engines.actors]
    sleeper["actor"].send_signal(signal.SIGKILL)
    parts.engines.weights.policy_moves()
    await parts.engines.sleep()
    assert parts.engines.restarts == before
    began = time.monotonic()
    await parts.engines.wake("weights")
    print(f"\nawake {time.monotonic() - began:.1f} s after wake() found an engine dead")
    assert parts.engines.restarts == before + 1
    # It has not got the others' weights, and serves no older ones.
    early = asyncio.ensure_future(parts.engines.actors[0].generate.remote([40], n=1, max_tokens=1, temperature=1.0))
    done, _ = await asyncio.wait([early], timeout=1)
    assert not done

    async def kill_the_core_that_is_updating() -> None:
        actor = parts.engines.actors[1]
        while await actor.__ray_call__.remote(lambda engine: engine._updating) != parts.version:
            await asyncio.sleep(0.01)
        pushed["core"].send_signal(signal.SIGKILL)

    began = time.monotonic()
    killing = asyncio.create_task(kill_the_core_that_is_updating())
    report = await parts.push()
    await killing
    await parts.engines.wake("kv_cache")
    print(f"pushed {time.monotonic() - began:.1f} s after a push began that a core did not survive")
    assert report.version == parts.version
    assert parts.engines.restarts == before + 2
    ((late,),) = [await early]
    assert set(late.weight_versions) == {parts.version}
    assert await gone(*sleeper.values(), *pushed.values())
    assert [said[:16] for said in deaths(caplog)] == ["rollout engine 0", "rollout engine 1"]
    await parts.check()


async def test_no_engine_starts_as_another_one_did() -> None:
    """Neither its neighbours, nor the one that it replaces, nor its own first life before a run was resumed."""
    lives = list(product((1, 2), (0, 1), (0, 3), (0, 1)))
    seeds = {engine_group.engine_seed(*life) for life in lives}
    assert len(seeds) == len(lives) and all(0 <= seed < 2**32 for seed in seeds)


class Mortal(TakesSharedCalls):
    """An engine that dies of what the test says, so that many deaths take little time."""

    def __init__(self, config: Config, seed: int, **_: object) -> None:
        super().__init__()
        self.dies_of, self.seed = Path(config.model.path), seed

    async def _act(self, name: str) -> None:
        if name in self.dies_of.read_text().split():
            os._exit(1)

    async def load_code(self) -> None:
        pass

    async def start(self) -> None:
        await self._act("start")

    async def ping(self) -> int:
        return 0

    async def generate(self, prompt_ids: list[int], **_: object) -> list[int]:
        await self._act("generate")
        if prompt_ids == [0]:
            raise ValueError("no prompt")
        return prompt_ids

    async def shutdown(self) -> None:
        pass


async def test_deaths_without_end_are_an_error_and_hundreds_of_requests_one_death(ray_cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(engine_group, "RolloutEngine", Mortal)
    dies_of = tmp_path / "dies_of"
    dies_of.write_text("")
    group = EngineGroup(Config(model=ModelConfig(path=str(dies_of))), Stops(), [EnginePlacement({"num_cpus": 0.1})])
    await group.start()
    ask = partial(group.generate, n=1, max_tokens=1)
    assert await ask([1]) == [1]
    with pytest.raises(ValueError, match="no prompt"):
        await ask([0])
    assert group.restarts == 0

    async def seeds() -> list[int]:
        return [await actor.__ray_call__.remote(lambda engine: engine.seed) for actor in group.actors]

    first = await seeds()
    dies_of.write_text("generate")
    crowd = [asyncio.create_task(ask([7, index])) for index in range(300)]
    while group.restarts == 0:
        await asyncio.sleep(0.01)
    dies_of.write_text("")
    assert await asyncio.gather(*crowd) == [[7, index] for index in range(300)]
    assert group.restarts <= 2
    assert await seeds() == [engine_group.engine_seed(1, 0, 0, group.restarts)] != first, "it repeats no noise"

    dies_of.write_text("generate")
    with pytest.raises(
        RuntimeError, match=r"request \d+ \(3 prompt tokens, 1 samples\) is given up.* 3 engines.*engine 0"
    ):
        await ask([1, 2, 3])
    dies_of.write_text("start")
    with pytest.raises(RuntimeError, match="engine 0 was lost 3 times and answered nothing in between"):
        await asyncio.gather(*(ask([1]) for _ in range(50)))
    await group.shutdown()
