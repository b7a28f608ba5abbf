"""The order in which a run's actors start, with stand-ins for the actors: on GPUs that engines and trainers share."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from azr import system
from azr.config import GAE, AlgorithmConfig, ClusterConfig, Config, KLConfig
from azr.records import Stops
from azr.system import System
from azr.train import worker_group
from azr.train.model_worker import ModelWorker
from azr.train.worker_group import WorkerGroup

CONFIG = Config(algorithm=AlgorithmConfig(estimator=GAE(), kl=KLConfig(coef=0.1)))
ROLES = {"start policy", "start critic", "start reference"}


async def order(monkeypatch: pytest.MonkeyPatch, config: Config, device: str) -> list[str]:
    """Names of phases as they begin, and ``-name`` as they end."""
    events: list[str] = []

    @contextmanager
    def phase(name: str) -> Iterator[None]:
        events.append(name)
        yield
        events.append(f"-{name}")

    async def start(*args: object, **kwargs: object) -> Any:
        await asyncio.sleep(0.02)
        return SimpleNamespace(slots=[], weights=None)

    async def start_engines(engines: object, when: asyncio.Future[None]) -> None:
        events.append("engines' actors")
        await when

    monkeypatch.setattr(system.WorkerGroup, "start", start)
    monkeypatch.setattr(system.EngineGroup, "start", start_engines)
    monkeypatch.setattr(system.RemoteExecutor, "start", start)

    async def start_ray(*args: object) -> None:
        events.append("Ray")

    async def place(config: Config) -> Any:
        return SimpleNamespace(device=device, dtype="bfloat16", trainers=[], engines=[])

    monkeypatch.setattr(system, "start_ray", start_ray)
    monkeypatch.setattr(system, "place", place)
    await System.start(config, Stops(), phase)
    assert events[:5] == ["start Ray", "Ray", "-start Ray", "reserve resources", "-reserve resources"]
    return events[5:]


async def test_engines_wait_for_the_roles_whose_gpus_they_share(monkeypatch: pytest.MonkeyPatch) -> None:
    events = await order(monkeypatch, CONFIG, "cuda")
    begun = events.index("start engines")
    assert {event for event in events[:begun] if event.startswith("-")} >= {f"-{role}" for role in ROLES}
    assert events.index("start executor") < events.index("-start policy"), "the executor waits for nobody"
    assert events.index("engines' actors") < events.index("-start policy"), "nor does the code that engines load"


@pytest.mark.parametrize("device, colocate", [("cpu", True), ("cuda", False)])
async def test_elsewhere_everything_starts_at_once(monkeypatch, device, colocate) -> None:
    events = await order(monkeypatch, replace(CONFIG, cluster=ClusterConfig(colocate=colocate)), device)
    first_end = min(index for index, event in enumerate(events) if event.startswith("-"))
    assert {*events[:first_end]} == {*ROLES, "engines' actors", "start engines", "start executor"}


class Role:
    """A model that visits the GPU, and writes down how many models are there after each call."""

    visits_gpu = True

    def __init__(self, name: str, there: list[set[str]]) -> None:
        self.name, self.there = name, there

    async def call(self, method: str, *args: object, timeout_s: float, to: str) -> list[None]:
        now = self.there[-1] if self.there else set()
        self.there.append(now - {self.name} if method == "offload" else now | {self.name})
        await asyncio.sleep(0)
        return [None]


async def test_of_models_that_share_gpus_one_is_loaded_at_a_time_and_the_policy_stays(tmp_path) -> None:
    there: list[set[str]] = []
    policy, critic = Role("policy", there), Role("critic", there)
    rest = dict.fromkeys(("placement", "engines", "executor", "reference", "turns"))
    started: Any = System(policy=policy, critic=critic, **rest)  # type: ignore[arg-type]
    await started.load(tmp_path, 1.0)
    assert there == [{"critic"}, set(), {"policy"}]


async def test_of_models_that_share_gpus_one_is_built_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[set[str]] = []

    async def call(self: WorkerGroup, method: str, *args: object, **how: Any) -> list[None]:
        if method == "init_process_group":
            return [None]
        return await Role(self.model_role, there).call(method, *args, **how)

    async def wait(self: WorkerGroup, *args: object) -> list[object]:
        return ["address"]

    monkeypatch.setattr(WorkerGroup, "call", call)
    monkeypatch.setattr(WorkerGroup, "_wait", wait)
    monkeypatch.setattr(worker_group.ray, "remote", MagicMock())
    gpus = asyncio.Lock()
    names = ("policy", "critic", "reference")
    await asyncio.gather(*(WorkerGroup.start(name, ModelWorker, [{}], CONFIG, "cuda", gpus) for name in names))
    assert len(there) == 6 and max(map(len, there)) == 1 and not there[-1]
