"""Where the actors of a run live: one Ray cluster, one placement group, every role colocated in its bundles."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from dataclasses import dataclass
from typing import Literal

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from azr.config import ClusterConfig, Config, TrainConfig

Device = Literal["cpu", "cuda"]

SHARE = 0.2
"""What one actor takes of its bundle's CPU slot and GPU. Policy, critic, reference and engine fit in one bundle.
The share only steers Ray's scheduling; how much memory each of them takes is decided elsewhere."""
CPU_SLOTS = 8
"""CPU slots of a cluster started here: they are bookkeeping, and a machine of any size runs the same actors."""

CONNECT_S = 10.0


def start_ray(cluster: ClusterConfig) -> None:
    """Join the cluster at `cluster.address`, or start one on this machine. Does nothing when Ray already runs.

    Raises ValueError when no cluster answers at the address.
    """
    if ray.is_initialized():
        return
    # Every worker of a run is an actor with a process of its own; idle ones would only slow the start down.
    os.environ.update({"RAY_USAGE_STATS_ENABLED": "0", "RAY_prestart_worker_first_driver": "0"})
    # Says at every start that the cluster wants a token, which Ray makes and uses by itself.
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    quiet = {"logging_level": logging.WARNING, "log_to_driver": False}
    if cluster.address is None:
        slots = cluster.cpus or CPU_SLOTS
        ray.init(address="local", num_cpus=slots, include_dashboard=False, **quiet)
        return
    try:
        _check_listening(cluster.address)
        ray.init(address=cluster.address, **quiet)
    except (ConnectionError, TimeoutError) as error:
        raise ValueError(
            f"no Ray cluster answers at {cluster.address!r}: run `ray start --head` there first, "
            "or leave cluster.address out to start one on this machine"
        ) from error


def _check_listening(address: str) -> None:
    """Ray itself would try for minutes."""
    if re.fullmatch(r"[^/]+:\d+", address):
        host, port = address.rsplit(":", 1)
        socket.create_connection((host, int(port)), timeout=CONNECT_S).close()


def resolve_device(train: TrainConfig) -> Device:
    """The device that trainers and engines run on: `auto` is cuda when the cluster has a GPU."""
    if train.device == "auto":
        return "cuda" if ray.cluster_resources().get("GPU", 0) > 0 else "cpu"
    return train.device


@dataclass(frozen=True, slots=True)
class Placement:
    """Reserved resources: rank i of every role, and engine i, live in bundle i."""

    group: PlacementGroup
    device: Device
    bundles: int

    def options(self, bundle: int) -> dict[str, object]:
        """Keyword arguments of `.options(...)` for an actor that lives in the given bundle."""
        assert 0 <= bundle < self.bundles, f"bundle {bundle} of {self.bundles}"
        return {
            "num_cpus": SHARE,
            "num_gpus": SHARE if self.device == "cuda" else 0,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                placement_group=self.group, placement_group_bundle_index=bundle
            ),
        }

    def remove(self) -> None:
        """Give the resources back; Ray ends the actors that still live in them."""
        remove_placement_group(self.group)


async def place(config: Config) -> Placement:
    """Reserve one bundle per data-parallel rank and engine GPU, all on one node: weights travel in its memory.

    Raises ValueError, naming what is missing, when the cluster has too little of a resource, or when it is not free
    within `cluster.placement_timeout_s` seconds.
    """
    device = resolve_device(config.train)
    bundle = {"CPU": 1.0, "GPU": 1.0} if device == "cuda" else {"CPU": 1.0}
    bundles = max(config.train.data_parallel, config.rollout.engines * config.rollout.tensor_parallel)
    wanted = {name: amount * bundles for name, amount in bundle.items()}
    if lack := _lack(wanted, ray.cluster_resources()):
        raise ValueError(
            f"the run needs {lack} in the whole cluster: lower train.data_parallel or rollout.engines, or {_more(lack)}"
        )
    group = placement_group([bundle] * bundles, strategy="STRICT_PACK")
    timeout_s = config.cluster.placement_timeout_s
    try:
        await asyncio.wait_for(_ready(group), timeout_s)
    except TimeoutError as error:
        lack = _lack(wanted, ray.available_resources()) or f"{bundles} bundles of {bundle} on one node"
        remove_placement_group(group)
        raise ValueError(
            f"the driver waited {timeout_s:.0f} s for Ray to reserve what the run needs, {lack} unused: "
            "end the other jobs of this cluster, or raise cluster.placement_timeout_s"
        ) from error
    return Placement(group, device, bundles)


async def _ready(group: PlacementGroup) -> None:
    await group.ready()


def _lack(wanted: dict[str, float], present: dict[str, float]) -> str:
    """`2 GPU but there are 1`, for every resource that is short; empty when none is."""
    short = [(name, need, present.get(name, 0.0)) for name, need in wanted.items() if present.get(name, 0.0) < need]
    return " and ".join(f"{need:g} {name} but there are {has:g}" for name, need, has in short)


def _more(lack: str) -> str:
    return "set train.device to cpu" if "GPU" in lack else "raise cluster.cpus (CPU slots are only bookkeeping)"
