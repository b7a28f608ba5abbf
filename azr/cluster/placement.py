"""Starts or joins Ray, and places actors: one placement group on one node or several, and the GPUs of each engine."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import groupby
from pathlib import Path
from subprocess import DEVNULL

import ray
from ray._private import services, utils
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from azr.config import ClusterConfig, Config, TrainConfig
from azr.errors import UserError
from azr.hardware import ComputeType, Device, compute_type
from azr.text import first_line

SHARE = 0.2
"""Share of a bundle's CPU slot and GPU that one actor reserves: policy, critic, reference and engine fit in one bundle.
It only steers Ray's scheduling and does not limit memory."""


def resolve_device(train: TrainConfig) -> Device:
    """Return the device of trainers and engines: `auto` is cuda if the cluster has a GPU."""
    if train.device == "auto":
        return "cuda" if ray.cluster_resources().get("GPU", 0) > 0 else "cpu"
    return train.device


@dataclass(frozen=True, slots=True)
class Bundle:
    """One CPU slot, and on `cuda` one GPU, where a rank of every role and a part of an engine may live."""

    index: int
    """Index in the placement group."""
    node: str
    """Ray's id of its node."""
    gpu: str | None
    """Name of the GPU on its node: an index, or an identifier such as ``GPU-5a6f…`` from CUDA_VISIBLE_DEVICES."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Reserved resources: rank i of every role lives in `trainers[i]`, engine i in the bundles `engines[i]`."""

    group: PlacementGroup
    device: Device
    dtype: ComputeType
    """Decided once, since trainers and engines must agree wherever they live."""
    trainers: tuple[Bundle, ...]
    engines: tuple[tuple[Bundle, ...], ...]
    """Bundles of each engine: one per tensor-parallel GPU, all on one node."""

    def options(self, bundle: Bundle) -> dict[str, object]:
        """Keyword arguments of `.options(...)` for an actor that lives in the given bundle."""
        return _options(self.group, bundle.index, bundle.gpu is not None)

    async def gpus(self, bundles: Sequence[Bundle]) -> tuple[str, ...]:
        """Return the present GPU names of several bundles: Ray moves bundles if their node dies.

        Empty for a single bundle, whose GPU Ray gives its actor, and on `cpu`. Raises RuntimeError if the bundles are
        no longer on one node.
        """
        if self.device == "cpu" or len(bundles) == 1:
            return ()
        locations = await _locations(self.group, [bundle.index for bundle in bundles], with_gpu=True)
        if len({node for node, _ in locations}) > 1:
            raise RuntimeError(
                f"Ray has moved the {len(bundles)} GPUs of a rollout engine to different nodes: resume the run once "
                "there is a node with room for all of them"
            )
        return tuple(gpu for _, gpu in locations if gpu is not None)

    def remove(self) -> None:
        """Give the resources back; Ray ends the actors that still live in them."""
        remove_placement_group(self.group)


def _options(group: PlacementGroup, index: int, with_gpu: bool) -> dict[str, object]:
    return {
        "num_cpus": SHARE,
        "num_gpus": SHARE if with_gpu else 0,
        "scheduling_strategy": PlacementGroupSchedulingStrategy(
            placement_group=group, placement_group_bundle_index=index
        ),
    }


async def place(config: Config) -> Placement:
    """Reserve a bundle per data-parallel rank and per engine GPU; the same ones for both when they are colocated.

    Ray takes as few nodes as it can. Raises UserError, naming what is missing, when the cluster has too little of a
    resource, when it is not free within `timeout.start_s` seconds, or when no node has room for all GPUs of
    an engine.
    """
    device = resolve_device(config.train)
    ranks, width, count = config.train.data_parallel, config.rollout.tensor_parallel, config.num_gpus
    shape = {"CPU": 1.0, "GPU": 1.0} if device == "cuda" else {"CPU": 1.0}
    wanted = {name: amount * count for name, amount in shape.items()}
    if missing := _missing_resources(wanted, ray.cluster_resources()):
        more_slots = "start Ray with more --num-cpus (CPU slots are only bookkeeping)"
        raise UserError(
            f"the run needs {missing} in the whole cluster: lower train.data_parallel or rollout.engines, or "
            f"{'set train.device to cpu' if 'GPU' in missing else more_slots}"
        )
    group = placement_group([shape] * count, strategy="PACK")
    try:
        bundles = await _reserve(group, count, device, config.timeout.start_s, wanted)
        engines = assign_engines(bundles if config.cluster.colocate else bundles[ranks:], config.rollout.engines, width)
    except BaseException:
        remove_placement_group(group)
        raise
    return Placement(group, device, compute_type(config.train.dtype, device), tuple(bundles[:ranks]), engines)


async def _reserve(
    group: PlacementGroup, count: int, device: Device, timeout_s: float, wanted: dict[str, float]
) -> list[Bundle]:
    """Wait for the bundles and return them, those of one node adjacent, this node's first."""
    try:
        async with asyncio.timeout(timeout_s):
            await group.ready()
            locations = await _locations(group, range(count), with_gpu=device == "cuda")
    except TimeoutError as error:
        missing = (
            _missing_resources(wanted, ray.available_resources()) or f"{count} free places for the bundles of a run"
        )
        raise UserError(
            f"Ray did not reserve what the run needs within {timeout_s:.0f} s ({missing} unused): end other jobs of "
            "this cluster, or raise timeout.start_s"
        ) from error
    bundles = [Bundle(index, node, gpu) for index, (node, gpu) in enumerate(locations)]
    home = ray.get_runtime_context().get_node_id()
    # GPUs by length and text: indices come by value, identifiers, which have equal lengths, by text.
    return sorted(bundles, key=lambda it: (it.node != home, it.node, len(it.gpu or ""), it.gpu or "", it.index))


async def _locations(group: PlacementGroup, indices: Iterable[int], with_gpu: bool) -> list[tuple[str, str | None]]:
    return await asyncio.gather(*(_locate.options(**_options(group, index, with_gpu)).remote() for index in indices))


@ray.remote(max_retries=3)
def _locate() -> tuple[str, str | None]:
    gpus = ray.get_gpu_ids()
    return ray.get_runtime_context().get_node_id(), str(gpus[0]) if gpus else None


def take_gpus(gpus: Sequence[object] = ()) -> None:
    """Let this process see only the named GPUs, or those that Ray gave its actor. To be called before CUDA is used.

    Ray itself does not where RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES is set.
    """
    if names := gpus or ray.get_gpu_ids():
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, names))


def assign_engines(bundles: Sequence[Bundle], engines: int, width: int) -> tuple[tuple[Bundle, ...], ...]:
    """Return `width` bundles of one node for each engine. In `bundles` those of a node are adjacent. Raises UserError
    if the nodes cannot hold that many engines."""
    sets = [
        tuple(on_node[start : start + width])
        for _, group in groupby(bundles, key=lambda bundle: bundle.node)
        for on_node in [list(group)]
        for start in range(0, len(on_node) - width + 1, width)
    ]
    if len(sets) < engines:
        raise UserError(
            f"the engines need {engines} times {width} GPUs of one node, but Ray could reserve only {len(sets)} such "
            "sets: lower rollout.tensor_parallel or rollout.engines"
        )
    return tuple(sets[:engines])


def _missing_resources(wanted: dict[str, float], present: dict[str, float]) -> str:
    """Return ``2 GPU but there are 1`` for every missing resource; empty if none is missing."""
    short = [(name, need, present.get(name, 0.0)) for name, need in wanted.items() if present.get(name, 0.0) < need]
    return " and ".join(f"{need:g} {name} but there are {has:g}" for name, need, has in short)


CPU_SLOTS = 8
"""CPU slots of a cluster started here. They are bookkeeping: a machine of any size runs the same actors."""
MAX_SOCKET_PATH = 107
"""Longest path of a Unix socket, bytes; `sockaddr_un` of Linux holds 108 with the null byte."""
_JOIN = "import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False)"
"""Program that tries to join a cluster: if it fails, Ray prints dozens of lines and may abort its process."""


async def start_ray(cluster: ClusterConfig, places: int = 1, timeout_s: float = 60.0) -> None:
    """Join the cluster at `cluster.address`, or start one on this machine. Does nothing if Ray already runs. Raises
    UserError if Ray does not start here, or no cluster takes this process in within `timeout_s` seconds."""
    if ray.is_initialized():
        return
    # Every worker of a run is an actor with a process of its own; idle ones would only slow the start down. A record of
    # every call, which is not read here, would grow with the run.
    off = ("RAY_USAGE_STATS_ENABLED", "RAY_prestart_worker_first_driver", "RAY_task_events_report_interval_ms")
    os.environ |= dict.fromkeys(off, "0")
    # Ray warns where its ports are open to all; where a token is used it says so at every start.
    tokens = logging.getLogger("ray._private.authentication.authentication_token_setup")
    tokens.addFilter(lambda record: "is disabled" in record.msg)
    start = partial(ray.init, logging_level=logging.WARNING, log_to_driver=False)
    if cluster.address is not None:
        await _check_cluster(cluster.address, timeout_s)
        with _signals_left_alone():
            start(address=cluster.address)
        return
    check_socket_paths()
    _keep_token_private()
    try:
        with _signals_left_alone():
            start(address="local", num_cpus=max(CPU_SLOTS, places), include_dashboard=False)
    except Exception as error:  # Ray raises this class when a daemon is not up in time
        raise UserError(
            f"Ray does not start ({first_line(error)}): read its logs in "
            "/tmp/ray/session_latest/logs, mend what they name, or start the run again when the machine is less busy."
        ) from error


def _keep_token_private() -> None:
    """Let nobody else read Ray's token: with it, others run code as this user. Ray would write it for all to read."""
    if {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys() or os.environ.get("RAY_AUTH_MODE") == "disabled":
        return
    token = Path.home() / ".ray" / "auth_token"
    try:
        token.parent.mkdir(exist_ok=True)
        token.touch(0o600)  # Ray writes a token into an empty file
        token.chmod(0o600)
    except OSError as error:
        raise UserError(
            f"Ray's token cannot be kept in {token} ({error.strerror}): set HOME to a folder of your own."
        ) from error


@contextmanager
def _signals_left_alone() -> Iterator[None]:
    """Keep Ray from answering signals to this process, and its daemons from getting them.

    Ctrl-C, `timeout` and a closed terminal signal the whole process group: this process then ends Ray in order.
    """
    popen, take_sigterm = services.ConsolePopen, utils.set_sigterm_handler
    services.ConsolePopen = partial(popen, start_new_session=True)
    utils.set_sigterm_handler = lambda handler: None
    try:
        yield
    finally:
        services.ConsolePopen, utils.set_sigterm_handler = popen, take_sigterm
        # Ray's C++ part has put a handler in front of Python's, which aborts the process three seconds later.
        if (handler := signal.getsignal(signal.SIGTERM)) is not None:
            signal.signal(signal.SIGTERM, handler)
            signal.siginterrupt(signal.SIGTERM, False)


async def _check_cluster(address: str, timeout_s: float) -> None:
    """Raise UserError unless a process can join the cluster at the address; says what is wrong."""
    problem = (
        f"no Ray cluster answers at {address!r}: run `ray start --head` there first, "
        "or leave cluster.address out to start one on this machine"
    )
    try:
        async with asyncio.timeout(timeout_s):
            if re.fullmatch(r"[^/]+:\d+", address):  # else Ray knows where it is
                host, port = address.rsplit(":", 1)
                (await asyncio.open_connection(host, int(port)))[1].close()
                problem = (
                    f"what listens at {address!r} does not take this process in: RAY_AUTH_MODE, the token "
                    "(RAY_AUTH_TOKEN or ~/.ray/auth_token) and the version of Ray must be those of the cluster's head"
                )
            await _join(address)
    except (OSError, RuntimeError) as error:
        late = f" (it was given {timeout_s:g} s, timeout.start_s)" if isinstance(error, TimeoutError) else ""
        raise UserError(problem + late) from error


async def _join(address: str) -> None:
    """Join a cluster in a process of its own, which then ends. Raises RuntimeError if it cannot."""
    command = (sys.executable, "-c", _JOIN, address)
    process = await asyncio.create_subprocess_exec(*command, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True)
    try:
        if await process.wait():
            raise RuntimeError("the process could not join")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def check_socket_paths() -> None:
    """Raise UserError when the folder of temporary files has so long a path that Ray cannot make its sockets in it."""
    # As ray._private.node names its session and, with the longest path of all sockets, that of its object store.
    variable = next((name for name in ("RAY_TMPDIR", "TMPDIR") if name in os.environ), None)
    folder = os.environ[variable] if variable else "/tmp"
    session = f"session_{datetime.now():%Y-%m-%d_%H-%M-%S_%f}_{os.getpid()}"
    excess = len(os.fsencode(os.path.join(folder, "ray", session, "sockets", "plasma_store"))) - MAX_SOCKET_PATH
    if excess > 0:
        raise UserError(
            f"{variable} is {folder}, which is too long a path for Ray's sockets: use at most "
            f"{len(os.fsencode(folder)) - excess} bytes, such as /tmp."
        )
