"""Network and ports that a cluster needs, and what a Ray cluster offers. Ray is imported only to join a cluster."""

from __future__ import annotations

import asyncio
import errno
import re
import socket
from collections.abc import Callable, Collection
from ctypes.util import find_library
from dataclasses import dataclass
from pathlib import Path

import psutil

from azr.config import ClusterConfig
from azr.doctor import Finding, FindingGroup, info, missing, ok, warning
from azr.errors import UserError
from azr.hardware import network_environment

HEAD_PORT = 6379
_PORTS = {
    HEAD_PORT: ("head", "--port"),
    8265: ("dashboard", "--dashboard-port"),
    10001: ("clients", "--ray-client-server-port"),
}
_GCS_PORT = re.compile(r"--gcs_server_port=(\d+)")


def network_section(infiniband: Path = Path("/sys/class/infiniband"), dev: Path = Path("/dev")) -> FindingGroup:
    """Address of this machine and its InfiniBand adapters, as several machines need them."""
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 1))  # sends nothing, as Ray does it
            address = probe.getsockname()[0]
        except OSError:
            address = "127.0.0.1"
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = "nothing"
    return FindingGroup(title="Network", findings=[_address(address, named), _adapters(infiniband, dev)])


def _address(address: str, named: str) -> Finding:
    interface = network_environment(address).get("GLOO_SOCKET_IFNAME", "no interface")
    if address.startswith("127."):
        return warning("address", "no route leads to other machines: for a cluster, ray start --node-ip-address")
    other = f"; the host's name means {named}, which trainers do not announce" if named != address else ""
    return ok("address", f"{address} on {interface}{other}")


def _adapters(infiniband: Path, dev: Path) -> Finding:
    names = ", ".join(sorted(each.name for each in infiniband.glob("*")))
    if not names:
        return info("InfiniBand", "no adapter, so machines would talk by TCP")
    if not (dev / "infiniband").is_dir():
        remedy = "start the container with --device /dev/infiniband --cap-add IPC_LOCK"
        return warning("InfiniBand", f"{names}, and no /dev/infiniband, so NCCL takes TCP: {remedy}")
    if find_library("ibverbs") is None:
        remedy = "apt-get install libibverbs1 ibverbs-providers rdma-core"
        return warning("InfiniBand", f"{names}, and no libibverbs, so NCCL takes TCP: {remedy}")
    return ok("InfiniBand", names)


def is_free(port: int) -> bool:
    """Whether nothing listens there, at whichever address of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


def ray_heads() -> set[int]:
    """Ports of the Ray clusters whose head runs here, of those that were started with a port of the user's choice."""
    heads = [each.info for each in psutil.process_iter(["name", "cmdline"]) if each.info["name"] == "gcs_server"]
    return {int(port) for head in heads for port in _GCS_PORT.findall(" ".join(head["cmdline"] or ()))} - {0}


def ports_section(heads: Collection[int], free: Callable[[int], bool] = is_free) -> FindingGroup:
    """`heads`: ports of the Ray heads of this machine. A run that starts a cluster of its own needs none of these."""
    return FindingGroup(title="Ports of a Ray head", findings=[_port(port, heads, free(port)) for port in _PORTS])


def _port(port: int, heads: Collection[int], free: bool) -> Finding:
    purpose, option = _PORTS[port]
    name = f"{port} {purpose}"
    if port in heads:
        return ok(name, "a Ray cluster answers: --cluster.address auto joins it, azr doctor --cluster auto looks at it")
    if free:
        return ok(name, "free")
    if heads:
        return ok(name, "taken, as a Ray head runs here")
    return warning(name, f"taken by another program: ray start --head {option} PORT takes another one")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    address: str
    alive: bool
    cpus: float
    """CPU slots."""
    gpus: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    nodes: tuple[Node, ...]
    free_cpus: float
    free_gpus: float


def query(address: str) -> Cluster:
    """Joins the cluster and leaves it again. Raises UserError when none answers there."""
    import ray

    from azr.cluster.placement import start_ray

    assert not ray.is_initialized(), "it would leave a cluster that is in use"
    asyncio.run(start_ray(ClusterConfig(address=address)))
    try:
        free = ray.available_resources()
        nodes = tuple(
            Node(
                address=node["NodeManagerAddress"],
                alive=node["Alive"],
                cpus=node["Resources"].get("CPU", 0.0),
                gpus=node["Resources"].get("GPU", 0.0),
            )
            for node in ray.nodes()
        )
    finally:
        ray.shutdown()
    return Cluster(nodes=nodes, free_cpus=free.get("CPU", 0.0), free_gpus=free.get("GPU", 0.0))


def cluster_section(address: str, bundles: int = 0, device: str = "auto") -> FindingGroup:
    """`bundles`: places a recipe asks for, each with a CPU slot and on `cuda` a GPU; 0 for no recipe."""
    try:
        findings = evaluate(query(address), bundles, device)
    except UserError as error:
        findings = [missing("head", str(error))]
    return FindingGroup(title=f"Ray cluster at {address}", findings=findings)


def evaluate(cluster: Cluster, bundles: int, device: str) -> list[Finding]:
    findings = [_node(node) for node in cluster.nodes]
    if not bundles:
        return findings
    alive = [node for node in cluster.nodes if node.alive]
    needs_gpus = device == "cuda" or (device == "auto" and any(node.gpus for node in alive))
    what = f"{bundles} GPUs and as many CPU slots" if needs_gpus else f"{bundles} CPU slots"
    room = sum(int(min(node.cpus, node.gpus) if needs_gpus else node.cpus) for node in alive)
    if room < bundles:
        verdict = missing(
            "the recipe",
            f"the nodes together have room for {room} of the {what} that it asks for: lower train.data_parallel and "
            "rollout.engines, join more nodes, or give a node more slots with ray start --num-cpus",
        )
    elif cluster.free_cpus < bundles or (needs_gpus and cluster.free_gpus < bundles):
        verdict = warning(
            "the recipe",
            f"other jobs have taken so much that fewer than {what} are free: ray status tells how much; the run waits "
            "for timeout.start_s",
        )
    else:
        verdict = ok("the recipe", f"{what} are there")
    return [*findings, verdict]


def _node(node: Node) -> Finding:
    if not node.alive:
        return warning(node.address, "it has left the cluster: if it should be in it, ray start --address there again")
    return info(node.address, f"{node.gpus:g} GPUs, {node.cpus:g} CPU slots")
