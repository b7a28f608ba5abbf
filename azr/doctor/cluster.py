"""What a Ray cluster offers. Nothing else in `azr doctor` needs Ray, so it is imported only when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from azr.config import ClusterConfig
from azr.doctor.findings import Finding, Section, fact, missing, ok, warning


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


def look(address: str) -> Cluster:
    """Joins the cluster and leaves it again. Raises ValueError when none answers there."""
    import ray

    from azr.cluster.ray_start import start_ray

    assert not ray.is_initialized(), "it would leave a cluster that somebody uses"
    start_ray(ClusterConfig(address=address))
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


def check(address: str, bundles: int = 0, device: str = "auto") -> Section:
    """`bundles`: places a recipe asks for, each with a CPU slot and on `cuda` a GPU; 0 for no recipe."""
    title = f"Ray cluster at {address}"
    try:
        cluster = look(address)
    except ValueError as error:
        return Section(title=title, findings=[missing("head", str(error))])
    return Section(title=title, findings=judge(cluster, bundles, device))


def judge(cluster: Cluster, bundles: int, device: str) -> list[Finding]:
    findings = [_node(node) for node in cluster.nodes]
    if bundles:
        alive = [node for node in cluster.nodes if node.alive]
        needs_gpus = device == "cuda" or (device == "auto" and any(node.gpus for node in alive))
        findings.append(_place(cluster, alive, bundles, needs_gpus))
    return findings


def _node(node: Node) -> Finding:
    if not node.alive:
        return warning(node.address, "it has left the cluster: if it should be in it, ray start --address there again")
    return fact(node.address, f"{node.gpus:g} GPUs, {node.cpus:g} CPU slots")


def _place(cluster: Cluster, nodes: Sequence[Node], bundles: int, needs_gpus: bool) -> Finding:
    what = f"{bundles} GPUs and as many CPU slots" if needs_gpus else f"{bundles} CPU slots"
    room = sum(int(min(node.cpus, node.gpus) if needs_gpus else node.cpus) for node in nodes)
    if room < bundles:
        return missing(
            "the recipe",
            f"the nodes together have room for {room} of the {what} that it asks for: lower train.data_parallel and "
            "rollout.engines, join more nodes, or give a node more slots with ray start --num-cpus",
        )
    if cluster.free_cpus < bundles or (needs_gpus and cluster.free_gpus < bundles):
        return warning(
            "the recipe",
            f"other jobs have taken so much that fewer than {what} are free: ray status tells how much; the run waits "
            "for timeout.start_s",
        )
    return ok("the recipe", f"{what} are there")
