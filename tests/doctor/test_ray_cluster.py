"""Ports of a Ray head, on real sockets, and what a cluster offers a recipe; that it is asked rightly, on a real one."""

import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from azr.doctor import Finding, Mark, ray_cluster
from azr.doctor.ray_cluster import Cluster, Node


def test_a_port_is_taken_while_somebody_listens():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        assert not ray_cluster.is_free(port)
    assert ray_cluster.is_free(port)


def test_adapters_that_nccl_cannot_use_are_named_with_the_remedy(tmp_path, monkeypatch):
    infiniband, dev = tmp_path / "infiniband", tmp_path / "dev"

    def found() -> Finding:
        address, adapters = ray_cluster.network_section(infiniband, dev).findings
        assert address.mark is not Mark.MISSING
        return adapters

    assert found().mark is Mark.INFO
    (infiniband / "mlx5_0").mkdir(parents=True)
    assert found().mark is Mark.WARNING and "--device /dev/infiniband" in found().message
    (dev / "infiniband").mkdir(parents=True)
    for library, mark in ((None, Mark.WARNING), ("libibverbs.so.1", Mark.OK)):
        monkeypatch.setattr(ray_cluster, "find_library", lambda name, library=library: library)
        assert found().mark is mark and "mlx5_0" in found().message


def test_a_name_that_means_the_machine_itself_is_said_and_no_route_is_a_warning():
    name, address = next(
        (name, each.address) for name, held in psutil.net_if_addrs().items() for each in held
        if each.family is socket.AF_INET and not each.address.startswith("127.")
    )  # fmt: skip
    found = ray_cluster._address(address, "127.0.1.1")
    assert found.mark is Mark.OK
    assert found.message == f"{address} on {name}; the host's name means 127.0.1.1, which trainers do not announce"
    assert ray_cluster._address("127.0.0.1", "127.0.1.1").mark is Mark.WARNING


def test_heads_are_found_by_their_process(tmp_path):
    shutil.copy("/bin/sleep", tmp_path / "gcs_server")
    places = [(tmp_path / "gcs_server", port) for port in (6379, 0)] + [("/bin/sleep", 7000)]
    script = 'exec -a "$0 --gcs_server_port=$1" "$0" 60'
    started = [subprocess.Popen(["bash", "-c", script, str(place), str(port)]) for place, port in places]
    try:
        # While a process becomes another program, it has no command line.
        while not all("--gcs" in " ".join(psutil.Process(each.pid).cmdline()[:1]) for each in started):
            time.sleep(0.01)
        heads = ray_cluster.ray_heads()
        assert 6379 in heads and not heads & {0, 7000}
    finally:
        for each in started:
            each.kill()
            each.wait()


def marks(clusters, free) -> list[tuple[Mark, str]]:
    return [(each.mark, each.message) for each in ray_cluster.ports_section(clusters, free).findings]


def test_what_is_said_of_each_port():
    assert {mark for mark, _ in marks(set(), lambda port: True)} == {Mark.OK}
    (head, message), *others = marks({6379}, lambda port: False)
    assert head is Mark.OK and "--cluster.address auto" in message
    assert {mark for mark, _ in others} == {Mark.OK}
    strangers = marks(set(), lambda port: port != 8265)
    assert [mark for mark, _ in strangers] == [Mark.OK, Mark.WARNING, Mark.OK]
    assert "--dashboard-port PORT" in strangers[1][1]
    assert ray_cluster.ports_section(set(), lambda port: False).ok


ROOT = Path(__file__).parents[2]


def node(address: str, gpus: float = 8, cpus: float = 96, alive: bool = True) -> Node:
    return Node(address=address, alive=alive, cpus=cpus, gpus=gpus)


def verdict(*nodes: Node, device: str = "auto", **free: float) -> Finding:
    free = {"free_cpus": 1000, "free_gpus": 1000, **free}
    return ray_cluster.evaluate(Cluster(nodes=nodes, **free), 8, device)[-1]


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
    cluster = Cluster(nodes=(node("a"), node("b", alive=False)), free_cpus=0, free_gpus=0)
    listed = ray_cluster.evaluate(cluster, 0, "auto")
    assert [(each.name, each.mark) for each in listed] == [("a", Mark.INFO), ("b", Mark.WARNING)]
    assert listed[0].message == "8 GPUs, 96 CPU slots"


REAL = """
from ray.cluster_utils import Cluster
from azr.doctor import ray_cluster

nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "num_gpus": 2, "include_dashboard": False})
found = ray_cluster.query(nodes.address)
assert [(each.alive, each.cpus, each.gpus) for each in found.nodes] == [(True, 3, 2)], found
assert (found.free_cpus, found.free_gpus) == (3, 2), found
nodes.shutdown()

section = ray_cluster.cluster_section("127.0.0.1:1")
assert not section.ok and "no Ray cluster answers at '127.0.0.1:1'" in section.findings[0].message, section
"""


def test_a_real_cluster_is_described_as_it_is():
    """In a process of its own, because this one may have joined another cluster."""
    done = subprocess.run([sys.executable, "-c", REAL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
