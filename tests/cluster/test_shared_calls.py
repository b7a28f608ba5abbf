from __future__ import annotations

import asyncio
import os
import threading
import time

import pytest
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from azr.cluster.supervisor import ActorLost, SharedCalls, SupervisedActor, TakesSharedCalls


class Clerk(TakesSharedCalls):
    """Counts what it is sent."""

    def __init__(self) -> None:
        self._messages = 0

    async def exchange(self, calls):
        self._messages += 1
        return await super().exchange(calls)

    async def start(self) -> None: ...

    async def ping(self) -> bool:
        return True

    async def messages(self) -> int:
        return self._messages

    async def add(self, a: int, b: int = 0) -> int:
        return a + b

    async def nap(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async def fail(self, message: str) -> None:
        raise ValueError(message)

    async def die(self) -> None:
        os._exit(1)


def clerk() -> ActorHandle:
    return ray.remote(Clerk).options(num_cpus=0, max_concurrency=1000).remote()


async def test_many_calls_are_few_messages_and_each_gets_its_own_answer(ray_cluster: None) -> None:
    actor = clerk()
    calls = SharedCalls(actor)
    answers = await asyncio.gather(*(calls.call("add", i, b=2) for i in range(1000)))
    assert answers == [i + 2 for i in range(1000)]
    assert await actor.messages.remote() <= 2 * 1000 / 64 + 2
    before = await actor.messages.remote()
    for i in range(5):
        assert await calls.call("add", i) == i
    assert await actor.messages.remote() == before + 5, "one after the other, each is one message"


async def test_nobody_waits_for_what_takes_long(ray_cluster: None) -> None:
    calls = SharedCalls(clerk())
    await calls.call("add", 1)
    began = time.monotonic()
    slow = calls.call("nap", 3.0)
    quick = [calls.call("nap", 0.3 * i) for i in range(4)]
    order = [await each for each in asyncio.as_completed(quick)]
    assert order == [0.3 * i for i in range(4)]
    assert await calls.call("add", 1) == 1
    assert time.monotonic() - began < 2.5 and not slow.done()
    assert await slow == 3.0


async def test_what_one_call_raises_is_no_other_calls_matter(ray_cluster: None) -> None:
    calls = SharedCalls(clerk())
    results = await asyncio.gather(
        calls.call("add", 1), calls.call("fail", "no such form"), calls.call("absent"), calls.call("add", 2),
        return_exceptions=True,
    )  # fmt: skip
    assert results[0] == 1 and results[3] == 2
    assert isinstance(results[1], ValueError) and isinstance(results[1], RayTaskError)
    assert "no such form" in str(results[1]) and isinstance(results[2], AttributeError)


async def test_what_cannot_be_sent_is_said_to_those_who_sent_it(ray_cluster: None) -> None:
    calls = SharedCalls(clerk())
    with pytest.raises(TypeError, match="serialize"):
        await asyncio.wait_for(calls.call("add", threading.Lock()), 20)
    assert await calls.call("add", 1) == 1


async def test_a_call_that_was_given_up_holds_up_no_other(ray_cluster: None) -> None:
    calls = SharedCalls(clerk())
    given_up = calls.call("nap", 0.3)
    given_up.cancel()
    assert await asyncio.gather(*(calls.call("add", i) for i in range(3))) == [0, 1, 2]
    await asyncio.sleep(0.6)
    assert await calls.call("add", 4) == 4


async def test_a_loop_that_closes_sends_nothing_more(ray_cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = SharedCalls(clerk())
    await calls.call("add", 1)
    waiting = calls.call("nap", 60.0)
    await asyncio.sleep(0.1)
    monkeypatch.setattr(calls, "actor", None)  # whoever sends to it now raises
    for message in list(calls._messages):
        message.cancel()
    await asyncio.sleep(0.1)
    assert not waiting.done()


async def test_an_actors_death_is_said_to_all_that_wait(ray_cluster: None) -> None:
    calls = SharedCalls(clerk())
    waiting = [calls.call("nap", 60) for _ in range(100)]
    await asyncio.sleep(0)
    ending = calls.call("die")
    failures = await asyncio.wait_for(asyncio.gather(*waiting, ending, return_exceptions=True), 60)
    assert all(isinstance(failure, RayActorError) for failure in failures)


async def test_a_supervised_actors_shared_calls_go_to_the_one_that_replaced_it(ray_cluster: None) -> None:
    async def create() -> ActorHandle:
        return clerk()

    supervised = SupervisedActor("the clerk", create, start_timeout_s=60, max_restarts=2)
    await supervised.start()
    with pytest.raises(ActorLost, match="the clerk died when it was to die") as lost:
        await supervised.call_together("die", timeout_s=60, to="die")
    await supervised.restart(lost.value)
    assert await supervised.call_together("add", 1, timeout_s=60, to="add") == 1
    with pytest.raises(ValueError, match=r"^no$"):
        await supervised.call_together("fail", "no", timeout_s=60, to="fail")
    with pytest.raises(TimeoutError, match=r"^the driver waited 0.2 s for the clerk to nap$"):
        await supervised.call_together("nap", 30, timeout_s=0.2, to="nap")
