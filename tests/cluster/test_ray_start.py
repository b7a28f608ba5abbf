"""A Ray cluster is started, joined or left alone, and one that cannot be joined is one sentence."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import ray

from azr.cluster.placement import start_ray
from azr.config import ClusterConfig

JOIN = """
import sys
from azr.cluster.placement import start_ray
from azr.config import ClusterConfig
start_ray(ClusterConfig(address=sys.argv[1]))
"""
HEAD = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


def join(address: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", JOIN, address]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:6379"])
def test_an_address_without_a_cluster_is_one_sentence(address: str) -> None:
    message = f"UserError: no Ray cluster answers at {address!r}: run `ray start --head` there first"
    assert message in join(address).stderr


@pytest.mark.long
@pytest.mark.long
def test_a_cluster_that_asks_for_another_token_is_one_sentence() -> None:
    def token(letter: str) -> dict[str, str]:
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": 32 * letter}

    command, pipe = [sys.executable, "-c", HEAD], subprocess.PIPE
    with subprocess.Popen(command, env=os.environ | token("a"), stdin=pipe, stdout=pipe, text=True) as head:
        assert head.stdout is not None
        address = head.stdout.readline().strip()
        assert (
            f"UserError: what listens at {address!r} does not take this process in: RAY_AUTH_MODE"
            in join(address, **token("b")).stderr
        )
        assert join(address, **token("a")).returncode == 0


def test_start_ray_starts_a_cluster_with_slots_to_spare() -> None:
    program = """
import ray
from azr.cluster.placement import CPU_SLOTS, start_ray
from azr.config import ClusterConfig
start_ray(ClusterConfig(), places=3)
assert ray.cluster_resources()["CPU"] == CPU_SLOTS
ray.shutdown()
start_ray(ClusterConfig(), places=CPU_SLOTS + 1)
assert ray.cluster_resources()["CPU"] == CPU_SLOTS + 1
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_start_ray_leaves_a_running_cluster_alone(ray_cluster: None) -> None:
    before = ray.cluster_resources()["CPU"]
    start_ray(ClusterConfig(), places=3 * int(before))
    assert ray.cluster_resources()["CPU"] == before
