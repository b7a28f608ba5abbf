"""A small actor under supervision: what its calls say, what a death costs, and when it is one death too many."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from pathlib import Path

import pytest
import ray
from ray.actor import ActorHandle
from ray.exceptions import RayTaskError

from azr.cluster.supervisor import ActorLost, SupervisedActor
from azr.errors import UserError


@ray.remote(num_cpus=0, max_concurrency=100)
class Clerk:
    """Does what it is told; dies at its start when the file says so."""

    def __init__(self, orders: Path) -> None:
        self._orders = orders

    async def start(self) -> str:
        order = self._orders.read_text()
        if order == "die":
            os._exit(1)
        if order == "refuse":
            raise UserError("the office is closed: open it")
        return "open"

    async def ping(self) -> bool:
        return True

    async def add(self, a: int, b: int = 0) -> int:
        return a + b

    async def nap(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def fail(self, kind: type[Exception]) -> None:
        raise kind("this knob is wrong: turn it")

    async def die(self) -> None:
        os._exit(1)


@pytest.fixture
def orders(tmp_path: Path) -> Path:
    path = tmp_path / "orders"
    path.write_text("")
    return path


async def start(orders: Path, **options: object) -> SupervisedActor:
    async def create() -> ActorHandle:
        return Clerk.remote(orders)

    clerk = SupervisedActor("the clerk", create, start_timeout_s=60, max_restarts=2, **options)
    await clerk.start()
    return clerk


async def lose(clerk: SupervisedActor) -> ActorLost:
    with pytest.raises(ActorLost, match="the clerk died when it was to die") as lost:
        await clerk.call("die", timeout_s=60, to="die")
    return lost.value


async def test_the_actor_is_there_before_it_may_start(ray_cluster: None, orders: Path) -> None:
    async def create() -> ActorHandle:
        return Clerk.remote(orders)

    clerk = SupervisedActor("the clerk", create, start_timeout_s=60, max_restarts=2)
    when: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    starting = asyncio.create_task(clerk.start(when))
    while clerk.actor is None:
        await asyncio.sleep(0.01)
    assert await clerk.call("add", 1, timeout_s=60, to="add") == 1
    assert not starting.done() and clerk.start_report is None
    when.set_result(None)
    await starting
    assert clerk.start_report == "open"


async def test_a_call_answers_or_says_what_was_waited_for(ray_cluster: None, orders: Path) -> None:
    clerk = await start(orders)
    assert clerk.start_report == "open"
    assert await clerk.call("add", 2, b=3, timeout_s=60, to="add") == 5
    with pytest.raises(TimeoutError, match=r"^the driver waited 0.2 s for the clerk to nap$"):
        await clerk.call("nap", 30, timeout_s=0.2, to="nap")
    for kind in (UserError, ValueError, TimeoutError, OSError):
        with pytest.raises(kind, match=r"^this knob is wrong: turn it$") as refusal:
            await clerk.call("fail", kind, timeout_s=60, to="fail")
        assert type(refusal.value) is kind
    with pytest.raises(RayTaskError, match="in fail"):  # what is no sentence keeps the traceback of the actor
        await clerk.call("fail", RuntimeError, timeout_s=60, to="fail")


async def test_a_lost_actor_is_replaced_once_and_brought_up_to_date(
    ray_cluster: None, orders: Path, caplog: pytest.LogCaptureFixture
) -> None:
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


async def test_a_users_mistake_is_not_tried_again(ray_cluster: None, orders: Path) -> None:
    clerk = await start(orders)
    orders.write_text("refuse")
    with pytest.raises(UserError, match=r"^the office is closed: open it$"):
        await clerk.restart(await lose(clerk))
    with pytest.raises(UserError, match=r"^the office is closed: open it$"):
        await start(orders)


async def test_a_silent_actor_is_lost(ray_cluster: None, orders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("azr.cluster.supervisor.HEALTH_CHECK_S", 0.2)
    monkeypatch.setattr("azr.cluster.supervisor.PING_S", 0.5)
    clerk = await start(orders)
    assert clerk.actor is not None
    clerk.actor.__ray_call__.remote(lambda _: time.sleep(30))
    with pytest.raises(ActorLost, match=r"the clerk was silent for 0.5 s when it was to add"):
        await clerk.call("add", 1, timeout_s=60, to="add")
    ray.kill(clerk.actor)


async def test_an_actor_of_a_cluster_without_nodes_is_not_started_again(
    ray_cluster: None, orders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clerk = await start(orders)
    lost = await lose(clerk)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": False}])
    with pytest.raises(UserError, match=r"the clerk died .* no node left .* then continue with --resume"):
        await clerk.restart(lost)
