"""What becomes of an engine's GPUs when the node they were on dies: a Ray cluster of its own, which declares GPUs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.long

PROGRAM = """
import asyncio, json, sys
import ray
from ray.cluster_utils import Cluster
from azr.cluster.placement import place
from azr.config import Config, RolloutConfig, TimeoutConfig, TrainConfig

taken, nodes = json.loads(sys.argv[1])
config = Config(
    train=TrainConfig(data_parallel=2, device="cuda"),
    rollout=RolloutConfig(tensor_parallel=2),
    timeout=TimeoutConfig(start_s=60),
)
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
first = cluster.add_node(num_cpus=2, num_gpus=2, include_dashboard=False)
ray.init(address=cluster.address, log_to_driver=False)


@ray.remote
class Tenant:
    def gpus(self):
        return [int(gpu) for gpu in ray.get_gpu_ids()]


async def main():
    placement = await place(config)
    (engine,) = placement.engines
    before = await placement.gpus(engine)
    alone = await placement.gpus(engine[:1])
    for gpus in nodes:
        cluster.add_node(num_cpus=4, num_gpus=gpus, resources={"new": 1}, include_dashboard=False)
    tenants = [Tenant.options(num_gpus=1, resources={"new": 1}).remote() for _ in range(taken)]
    assert [await tenant.gpus.remote() for tenant in tenants] == [[0]] * taken
    cluster.remove_node(first)
    try:
        after = await asyncio.wait_for(placement.gpus(engine), 120)
    except RuntimeError as error:
        after = str(error)
    return [before, alone, after]


try:
    print(json.dumps(asyncio.run(main())))
finally:
    ray.shutdown()
    cluster.shutdown()
"""


@pytest.mark.parametrize(
    ("nodes", "taken", "after"),
    [
        ([3], 1, {"1", "2"}),
        ([1, 1], 0, "Ray has moved the 2 GPUs of a rollout engine to different nodes: resume the run once "),
    ],
)
def test_the_gpus_of_moved_bundles_are_looked_up_again(nodes: list[int], taken: int, after: set[str] | str) -> None:
    command = [sys.executable, "-c", PROGRAM, json.dumps([taken, nodes])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-3000:]
    before, alone, found = json.loads(done.stdout.splitlines()[-1])
    assert (before, alone) == (["0", "1"], [])
    assert found.startswith(after) if isinstance(after, str) else set(found) == after
