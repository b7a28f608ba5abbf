"""The order in which engines and trainers give and take the GPUs, and what moves where nothing is shared."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from azr.cluster.gpu_turns import GpuTurns, shares_gpus
from azr.cluster.weight_sync import PushReport
from azr.config import ClusterConfig, Config
from azr.train.offload import GpuMemory

REPORT = PushReport(version=3, nbytes=1, seconds=1.0)


class Recorded:
    """Engines, weights and roles of two ranks that write down what is asked of them, and in which phase."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.phases: list[str] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.phases.append(name)
        yield
        self.phases.append("")

    def note(self, call: str) -> None:
        self.calls.append(f"{self.phases[-1] if self.phases else ''}: {call}")

    async def sleep(self) -> None:
        self.note("engines sleep")

    async def wake(self, part: str) -> None:
        self.note(f"engines wake {part}")

    def policy_moves(self) -> None:
        self.note("policy moves")

    async def push(self, version: int) -> PushReport:
        self.note(f"push {version}")
        return REPORT

    def turns(self, *, shared: bool, alone: bool = False) -> GpuTurns:
        others = [] if alone else [RecordedRole(self, "critic"), RecordedRole(self, "reference")]
        policy: Any = RecordedRole(self, "policy")
        parts: Any = self
        return GpuTurns(engines=parts, weights=parts, policy=policy, others=others, shares_gpus=shared, timeout_s=1.0)


class RecordedRole:
    def __init__(self, recorded: Recorded, name: str) -> None:
        self.recorded, self.name = recorded, name

    async def call(self, method: str, *args: object, timeout_s: float, to: str) -> list[Any]:
        self.recorded.note(" ".join([self.name, method, *map(str, args)]))
        used = 30 if self.name == "policy" else 50
        return [GpuMemory(allocated=1 * 10**9, reserved=(2 + rank) * 10**9, used=used * 10**9) for rank in (0, 1)]


async def test_memory_is_free_before_the_other_side_takes_it_and_a_policy_without_others_returns_at_once() -> None:
    recorded = Recorded()
    turns = recorded.turns(shared=True)
    await turns.offload_engines_onload_trainers(recorded.phase)
    assert recorded.calls == [": policy moves", "sleep: engines sleep", ": policy gpu_memory"]
    recorded.calls.clear()
    assert await turns.sync_and_onload_engines(3, recorded.phase) == REPORT
    assert recorded.calls == [
        "offload: critic offload True", "offload: reference offload True", "offload: policy offload False",
        "wake: engines wake weights", "push: push 3", "offload: policy offload True", "wake: engines wake kv_cache",
    ]  # fmt: skip
    assert turns.memory == {"all_asleep_gb": 30, "trainers_allocated_gb": 3, "trainers_reserved_gb": 9}
    recorded = Recorded()
    await recorded.turns(shared=True, alone=True).offload_engines_onload_trainers(recorded.phase)
    assert recorded.calls[1:] == ["sleep: engines sleep", ": policy gpu_memory", "reload: policy reload True"]


async def test_with_gpus_of_their_own_engines_play_on_and_nothing_moves() -> None:
    recorded = Recorded()
    turns = recorded.turns(shared=False)
    await turns.offload_engines_onload_trainers(recorded.phase)
    assert await turns.sync_and_onload_engines(3, recorded.phase) == REPORT
    assert recorded.calls == [": policy moves", "push: push 3"]
    assert turns.memory == {}
    together, apart = Config(), Config(cluster=ClusterConfig(colocate=False))
    assert shares_gpus(together, "cuda")
    assert not shares_gpus(together, "cpu") and not shares_gpus(apart, "cuda")
