"""Weights go from a sender in this process to small engines, which die, lie and are replaced on the way."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
import ray
import torch

from azr.cluster.supervisor import ActorLost, SupervisedActor
from azr.cluster.weight_buckets import Receiver
from azr.cluster.weight_sync import WeightSync, send_weights
from azr.cluster.weight_transfers import HostOutbox
from tests.cluster.receiving_engine import GlooOutbox, ipc_outbox, start_receiver

LIMIT_S = 60.0


class Policy:
    """Its weights are constants, three to a bucket of which there are several."""

    def __init__(self, transfer: str) -> None:
        self.value = 0.0
        self.error: Exception | None = None
        self.outbox = {"ipc": lambda: ipc_outbox("GPU-0"), "nccl": GlooOutbox, "host": HostOutbox}[transfer]()

    async def call(self, method: str, *args: Any, timeout_s: float, to: str) -> list[Any]:
        assert method == "send_weights" and timeout_s > LIMIT_S
        if self.error is not None:
            raise self.error
        return [await asyncio.to_thread(self._send, *args), None]

    def _send(self, version: int, receivers: Sequence[Receiver], timeout_s: float) -> object:
        group = [(f"w{index}", torch.full((300,), self.value)) for index in range(9)]
        return send_weights(self.outbox, version, iter([group]), 1 << 12, receivers, timeout_s)


class Parts:
    """Two engines that serve a policy's weights."""

    def __init__(self, transfer: str) -> None:
        self.policy = Policy(transfer)
        self.engines: list[SupervisedActor] = []

    async def start(self) -> None:
        self.engines += [await start_receiver(index, self.resync) for index in range(2)]
        self.sync = WeightSync(self.policy, self.engines, LIMIT_S)

    async def resync(self, engine: SupervisedActor) -> None:
        await self.sync.resync(engine)

    async def lose(self, engine: SupervisedActor) -> None:
        ray.kill(engine.actor)
        await engine.restart(ActorLost(f"{engine.name} was killed", engine.actor))

    async def served(self, engine: SupervisedActor) -> tuple[int, float]:
        """Version and value of the weights."""
        weights = await engine.call("received", timeout_s=LIMIT_S, to="show its weights")
        (value,) = {float(value) for tensor in weights.values() for value in tensor}
        return await engine.call("ping", timeout_s=LIMIT_S, to="answer"), value


@pytest_asyncio.fixture(params=["host"])
async def parts(request: pytest.FixtureRequest, ray_cluster: None) -> AsyncIterator[Parts]:
    parts = Parts(request.param)
    await parts.start()
    yield parts
    for engine in parts.engines:
        ray.kill(engine.actor)


@pytest.mark.parametrize(
    "parts", ["host", *(pytest.param(name, marks=pytest.mark.long) for name in ("ipc", "nccl"))], indirect=True
)
async def test_every_engine_serves_what_was_pushed_and_so_does_one_that_replaces_it(parts: Parts) -> None:
    for version in (1, 2):
        parts.policy.value = float(version)
        report = await parts.sync.push(version)
        assert (report.version, report.nbytes) == (version, 9 * 300 * 4)
        assert [await parts.served(engine) for engine in parts.engines] == [(version, float(version))] * 2
    await parts.lose(parts.engines[0])
    assert await parts.served(parts.engines[0]) == (2, 2.0)


@pytest.mark.long
async def test_an_engine_replaced_while_the_policy_moves_waits_for_the_next_push(parts: Parts) -> None:
    await parts.lose(parts.engines[1])
    assert await parts.engines[1].call("ping", timeout_s=LIMIT_S, to="answer") == 0
    await parts.sync.push(5)
    parts.sync.policy_moves()
    await parts.lose(parts.engines[0])
    assert await parts.engines[0].call("updating", timeout_s=LIMIT_S, to="answer") == 6
    parts.policy.value = 6.0
    await parts.sync.push(6)
    assert [await parts.served(engine) for engine in parts.engines] == [(6, 6.0)] * 2


@pytest.mark.parametrize(
    "parts", ["host", *(pytest.param(name, marks=pytest.mark.long) for name in ("ipc", "nccl"))], indirect=True
)
async def test_an_engine_that_dies_over_its_weights_is_replaced_and_sent_them_again(parts: Parts) -> None:
    parts.policy.value = 3.0
    await parts.engines[1].call("misbehave", "die", timeout_s=LIMIT_S, to="misbehave")
    await parts.sync.push(3)
    assert [engine.restarts for engine in parts.engines] == [0, 1]
    assert [await parts.served(engine) for engine in parts.engines] == [(3, 3.0)] * 2


async def test_what_living_engines_or_the_policy_refuse_is_raised(parts: Parts) -> None:
    await parts.engines[0].call("misbehave", "lie", timeout_s=LIMIT_S, to="misbehave")
    with pytest.raises(RuntimeError, match="rollout engine 0 was sent weight version 1 and serves 0"):
        await parts.sync.push(1)
    await parts.engines[0].call("misbehave", "fail", timeout_s=LIMIT_S, to="misbehave")
    with pytest.raises(ValueError, match="no room"):
        await parts.sync.push(2)
    parts.policy.error = RuntimeError("policy rank 1 died")
    with pytest.raises(RuntimeError, match="policy rank 1 died"):
        await parts.sync.push(3)
    assert [engine.restarts for engine in parts.engines] == [0, 0]
