"""A small actor under supervision: what its calls say, what a death costs, and how many calls share a message."""

import asyncio
import logging
import os
import threading
import time
from pathlib import Path

import pytest
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayTaskError

from azr.cluster.supervisor import ActorLost, SharedCalls, SupervisedActor, TakesSharedCalls
from azr.errors import UserError


class Clerk(TakesSharedCalls):
    """Does what it is told, counts its messages, and dies at its start when the file says so."""

    def __init__(self, orders: Path) -> None:
        super().__init__()
        self._orders, self._messages, self._released = orders, 0, asyncio.Event()

    async def exchange(self, calls):
        self._messages += 1
        return await super().exchange(calls)

    async def start(self) -> str:
        order = self._orders.read_text()
        if order == "die":
            os._exit(1)
        if order == "refuse":
            raise UserError("the office is closed: open it")
        return "open"

    async def ping(self) -> bool:
        return True

    async def messages(self) -> int:
        return self._messages

    async def add(self, a: int, b: int = 0) -> int:
        return a + b

    async def nap(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    async def hold(self) -> str:
        await self._released.wait()
        return "released"

    async def release(self) -> None:
        self._released.set()

    async def fail(self, kind: type[Exception]) -> None:
        raise kind("this knob is wrong: turn it")

    async def die(self) -> None:
        os._exit(1)


def hire(orders: Path) -> ActorHandle:
    return ray.remote(Clerk).options(num_cpus=0, max_concurrency=1000).remote(orders)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders"
    path.write_text("")
    return path


def supervised(orders: Path, **options: object) -> SupervisedActor:
    async def create() -> ActorHandle:
        return hire(orders)

    return SupervisedActor("the clerk", create, start_timeout_s=60, max_restarts=2, **options)


async def start(orders: Path, **options: object) -> SupervisedActor:
    clerk = supervised(orders, **options)
    await clerk.start()
    return clerk


@pytest.fixture
def calls(ray_cluster: None, orders: Path) -> SharedCalls:
    return SharedCalls(hire(orders))


async def lose(clerk: SupervisedActor) -> ActorLost:
    with pytest.raises(ActorLost, match="the clerk died when it was to die") as lost:
        await clerk.call("die", timeout_s=60, to="die")
    return lost.value


async def test_the_actor_is_there_before_it_may_start(ray_cluster: None, orders: Path) -> None:
    clerk = supervised(orders)
    when: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    starting = asyncio.create_task(clerk.start(when))
    while clerk.actor is None:
        await asyncio.sleep(0.01)
    assert await clerk.call("add", 1, timeout_s=60, to="add") == 1
    assert not starting.done() and clerk.start_report is None
    when.set_result(None)
    await starting
    assert clerk.start_report == "open"


@pytest.mark.parametrize("way", ["call", "call_together"])
async def test_a_call_answers_or_says_what_was_waited_for(ray_cluster: None, orders: Path, way: str) -> None:
    clerk = await start(orders)
    assert clerk.start_report == "open"
    call = getattr(clerk, way)
    assert await call("add", 2, b=3, timeout_s=60, to="add") == 5
    with pytest.raises(TimeoutError, match=r"^the driver waited 0.2 s for the clerk to nap$"):
        await call("nap", 30, timeout_s=0.2, to="nap")
    for kind in (UserError, ValueError, TimeoutError, OSError):
        with pytest.raises(kind, match=r"^this knob is wrong: turn it$") as refusal:
            await call("fail", kind, timeout_s=60, to="fail")
        assert type(refusal.value) is kind
    with pytest.raises(RayTaskError, match="in fail"):  # what is not a sentence keeps the traceback of the actor
        await call("fail", RuntimeError, timeout_s=60, to="fail")


async def test_a_lost_actor_is_replaced_once_and_brought_up_to_date(ray_cluster, orders, caplog):
    visits: list[ActorHandle | None] = []

    async def visit() -> None:
        visits.append(clerk.actor)

    clerk = await start(orders, bring_up_to_date=visit)
    first = clerk.actor
    lost = await lose(clerk)
    await asyncio.gather(*(clerk.restart(lost) for _ in range(5)))
    assert clerk.restarts == 1 and clerk.actor != first and visits == [clerk.actor]
    (message,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert message.startswith("the clerk died when it was to die (") and message.endswith("started in its place")
    assert await clerk.call("add", 1, timeout_s=60, to="add") == 1


async def test_restarts_without_a_success_are_bounded(ray_cluster: None, orders: Path) -> None:
    clerk = await start(orders)
    for _ in range(4):
        await clerk.restart(await lose(clerk))
        clerk.succeeded()
    orders.write_text("die")
    with pytest.raises(ActorLost, match="the clerk died when it was to start"):
        await start(orders)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="the clerk was lost 3 times and answered nothing in between; the last time"):
        await clerk.restart(await lose(clerk))
    assert time.monotonic() - began < 60 and clerk.restarts == 4


async def test_a_users_mistake_and_a_cluster_without_nodes_are_not_tried_again(ray_cluster, orders, monkeypatch):
    clerk = await start(orders)
    orders.write_text("refuse")
    with pytest.raises(UserError, match=r"^the office is closed: open it$"):
        await clerk.restart(await lose(clerk))
    with pytest.raises(UserError, match=r"^the office is closed: open it$"):
        await start(orders)
    orders.write_text("")
    clerk = await start(orders)
    lost = await lose(clerk)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": False}])
    with pytest.raises(UserError, match=r"the clerk died .* no node left .* then continue with --resume"):
        await clerk.restart(lost)


async def test_a_silent_actor_is_lost(ray_cluster: None, orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("azr.cluster.supervisor.HEALTH_CHECK_S", 0.2)
    monkeypatch.setattr("azr.cluster.supervisor.PING_S", 0.5)
    clerk = await start(orders)
    clerk.actor.__ray_call__.remote(lambda _: time.sleep(30))
    with pytest.raises(ActorLost, match=r"the clerk was silent for 0.5 s when it was to add"):
        await clerk.call("add", 1, timeout_s=60, to="add")
    ray.kill(clerk.actor)


async def test_many_calls_are_few_messages_and_each_gets_its_own_answer(calls: SharedCalls) -> None:
    actor = calls.actor
    answers = await asyncio.gather(*(calls.call("add", i, b=2) for i in range(1000)))
    assert answers == [i + 2 for i in range(1000)]
    assert await actor.messages.remote() <= 2 * 1000 / 64 + 2
    before = await actor.messages.remote()
    for i in range(5):
        assert await calls.call("add", i) == i
    assert await actor.messages.remote() == before + 5, "one after the other, each is one message"


async def test_nobody_waits_for_what_takes_long(calls: SharedCalls) -> None:
    await calls.call("add", 1)
    slow = calls.call("hold")
    quick = [calls.call("nap", 0.3 * i) for i in range(4)]
    order = [await each for each in asyncio.as_completed(quick)]
    assert order == [0.3 * i for i in range(4)]
    assert await calls.call("add", 1) == 1
    assert not slow.done()
    await calls.call("release")
    assert await slow == "released"


async def test_what_one_call_raises_is_no_other_calls_matter(calls: SharedCalls) -> None:
    results = await asyncio.gather(
        calls.call("add", 1), calls.call("fail", ValueError), calls.call("absent"), calls.call("add", 2),
        return_exceptions=True,
    )  # fmt: skip
    assert results[0] == 1 and results[3] == 2
    assert isinstance(results[1], ValueError) and isinstance(results[1], RayTaskError)
    assert "turn it" in str(results[1]) and isinstance(results[2], AttributeError)
    with pytest.raises(TypeError, match="serialize"):
        await asyncio.wait_for(calls.call("add", threading.Lock()), 20)
    assert await calls.call("add", 1) == 1


async def test_a_call_that_was_given_up_holds_up_no_other_and_a_loop_that_closes_sends_nothing_more(calls, monkeypatch):
    given_up = calls.call("nap", 0.3)
    given_up.cancel()
    assert await asyncio.gather(*(calls.call("add", i) for i in range(3))) == [0, 1, 2]
    await asyncio.sleep(0.6)
    assert await calls.call("add", 4) == 4
    waiting = calls.call("nap", 60.0)
    await asyncio.sleep(0.1)
    monkeypatch.setattr(calls, "actor", None)  # whoever sends to it now raises
    for message in list(calls._messages):
        message.cancel()
    await asyncio.sleep(0.1)
    assert not waiting.done()


async def test_an_actors_death_is_said_to_all_that_wait(calls: SharedCalls) -> None:
    waiting = [calls.call("nap", 60) for _ in range(100)]
    await asyncio.sleep(0)
    ending = calls.call("die")
    failures = await asyncio.wait_for(asyncio.gather(*waiting, ending, return_exceptions=True), 60)
    assert all(isinstance(failure, RayActorError) for failure in failures)


async def test_a_supervised_actors_shared_calls_go_to_the_one_that_replaced_it(ray_cluster: None, orders: Path) -> None:
    clerk = await start(orders)
    with pytest.raises(ActorLost, match="the clerk died when it was to die") as lost:
        await clerk.call_together("die", timeout_s=60, to="die")
    await clerk.restart(lost.value)
    assert await clerk.call_together("add", 1, timeout_s=60, to="add") == 1
