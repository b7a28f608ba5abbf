"""What a Ray cluster description a recipe; that it is asked rightly, on a real one."""

import subprocess
import sys
from pathlib import Path

import pytest

from azr.doctor import cluster
from azr.doctor.cluster import Cluster, Node
from azr.doctor.findings import Finding, Mark

ROOT = Path(__file__).parents[2]


def node(address: str, gpus: float = 8, cpus: float = 96, alive: bool = True) -> Node:
    return Node(address=address, alive=alive, cpus=cpus, gpus=gpus)


def verdict(*nodes: Node, device: str = "auto", **free: float) -> Finding:
    free = {"free_cpus": 1000, "free_gpus": 1000, **free}
    return cluster.judge(Cluster(nodes=nodes, **free), 8, device)[-1]


@pytest.mark.parametrize(
    "nodes, device, mark",
    [
        ([node("a")], "auto", Mark.OK),
        ([node("a", gpus=4), node("b", gpus=4)], "auto", Mark.OK),
        ([node("a", gpus=4), node("b", gpus=3)], "auto", Mark.MISSING),
        ([node("a", gpus=8, cpus=7), node("b", gpus=0)], "cuda", Mark.MISSING),
        ([node("a", gpus=0, cpus=4), node("b")], "cuda", Mark.OK),
        ([node("a", cpus=4)], "auto", Mark.MISSING),
        ([node("a", alive=False), node("b", gpus=1)], "cuda", Mark.MISSING),
        ([node("a", gpus=0)], "auto", Mark.OK),
        ([node("a", gpus=0)], "cuda", Mark.MISSING),
        ([node("a", gpus=1)], "cpu", Mark.OK),
    ],
)
def test_the_nodes_together_must_have_room(nodes, device, mark):
    assert verdict(*nodes, device=device).mark is mark


def test_what_others_hold_is_a_warning():
    assert verdict(node("a"), free_gpus=7).mark is Mark.WARNING
    assert verdict(node("a"), free_cpus=7).mark is Mark.WARNING
    assert verdict(node("a", gpus=0), free_gpus=0).mark is Mark.OK


def test_nodes_are_listed_and_those_that_left_too():
    listed = cluster.judge(Cluster(nodes=(node("a"), node("b", alive=False)), free_cpus=0, free_gpus=0), 0, "auto")
    assert [(each.name, each.mark) for each in listed] == [("a", Mark.FACT), ("b", Mark.WARNING)]
    assert listed[0].says == "8 GPUs, 96 CPU slots"


REAL = """
from ray.cluster_utils import Cluster
from azr.doctor import cluster

nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "num_gpus": 2, "include_dashboard": False})
found = cluster.look(nodes.address)
assert [(each.alive, each.cpus, each.gpus) for each in found.nodes] == [(True, 3, 2)], found
assert (found.free_cpus, found.free_gpus) == (3, 2), found
nodes.shutdown()

section = cluster.check("127.0.0.1:1")
assert not section.ok and "no Ray cluster answers at '127.0.0.1:1'" in section.findings[0].says, section
"""


def test_a_real_cluster_is_described_as_it_is():
    """In a process of its own, because this one may have joined another cluster."""
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
