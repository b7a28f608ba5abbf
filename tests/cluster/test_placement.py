"""Placement on a real cluster: what is reserved, and what is said when it cannot be."""

from dataclasses import replace

import pytest
import ray

from azr.cluster.placement import SHARE, Bundle, assign_engines, place, resolve_device
from azr.config import Config, RolloutConfig, TimeoutConfig, TrainConfig
from azr.errors import UserError


def config(ranks: int, engines: int = 1, device: str = "cpu", timeout_s: float = 30.0) -> Config:
    train, rollout = TrainConfig(data_parallel=ranks, device=device), RolloutConfig(engines=engines)
    return Config(train=train, rollout=rollout, timeout=TimeoutConfig(start_s=timeout_s))


@ray.remote
class Resident:
    def placement(self) -> str:
        return ray.get_runtime_context().get_placement_group_id()


async def test_four_roles_share_a_bundle_and_engines_apart_have_their_own(ray_cluster: None) -> None:
    placement = await place(config(ranks=1, engines=2))
    assert [bundle.index for (bundle,) in placement.engines] == [0, 1]
    assert placement.trainers == placement.engines[0]
    assert 4 * SHARE <= 1
    residents = [
        Resident.options(**placement.options(bundle)).remote() for (bundle,) in placement.engines for _ in range(4)
    ]
    assert {await r.placement.remote() for r in residents} == {placement.group.id.hex()}
    placement.remove()
    with pytest.raises(ray.exceptions.RayActorError):
        for _ in range(1000):
            await residents[0].placement.remote()
    apart = config(ranks=2, engines=2)
    placement = await place(replace(apart, cluster=replace(apart.cluster, colocate=False)))
    bundles = [*placement.trainers, *(bundle for bundles in placement.engines for bundle in bundles)]
    assert sorted(bundle.index for bundle in bundles) == [0, 1, 2, 3]
    placement.remove()


def test_an_engine_gets_gpus_of_one_node() -> None:
    def bundles(*nodes: str) -> list[Bundle]:
        return [Bundle(index, node, str(index)) for index, node in enumerate(nodes)]

    def indices(engines: tuple[tuple[Bundle, ...], ...]) -> list[list[int]]:
        return [[bundle.index for bundle in bundles] for bundles in engines]

    assert indices(assign_engines(bundles(*"aaaabbbb"), 4, 2)) == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert indices(assign_engines(bundles(*"aaabbb"), 2, 2)) == [[0, 1], [3, 4]]
    with pytest.raises(UserError, match="the engines need 3 times 2 GPUs of one node, but Ray could reserve only 2"):
        assign_engines(bundles(*"aaabbb"), 3, 2)


async def test_more_than_the_cluster_has_is_refused_at_once_and_what_is_busy_when_the_deadline_passes(ray_cluster):
    with pytest.raises(UserError, match=r"needs 9 CPU but there are 8 in the whole .* start Ray with more --num-cpus"):
        await place(config(ranks=9, timeout_s=1000))
    with pytest.raises(UserError, match=r"needs 2 GPU but there are 0 .* set train.device to cpu"):
        await place(config(ranks=2, device="cuda", timeout_s=1000))
    placement = await place(config(ranks=5))
    with pytest.raises(UserError, match=r"Ray did not reserve what the run needs within 1 s \(5 CPU but there are 3"):
        await place(config(ranks=5, timeout_s=1))
    placement.remove()
    again = await place(config(ranks=5))
    again.remove()
    assert resolve_device(TrainConfig(device="auto")) == "cpu"
    assert resolve_device(TrainConfig(device="cuda")) == "cuda"
