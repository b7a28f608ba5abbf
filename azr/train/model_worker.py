"""One rank of a model: a Ray actor whose process holds a part of the model and talks to its peer ranks."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ray
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _set_pg_timeout, _world
from transformers import AutoConfig

from azr.algorithms.attention import choose_attention
from azr.algorithms.kernels import choose_kernels
from azr.algorithms.losses import Sums, add_sums
from azr.algorithms.packing import PackedBatch, to_device
from azr.cluster.placement import take_gpus
from azr.cluster.supervisor import end_with_raylet
from azr.config import Config
from azr.errors import UserError
from azr.files import HashedFile
from azr.hardware import Device, hpz_partition_size, keep_kernels, network_environment
from azr.text import first_line
from azr.train import zero3
from azr.train.adapter_files import hash_weights, weights_folder
from azr.train.offload import GpuMemory, OffloadedTensors, trim
from azr.train.state import load_state, save_state
from azr.train.train_batch import RankBatch

T = TypeVar("T")
COLLECTIVE_SHARE = 0.8
"""Share of the driver's deadline, `timeout.train_s`, after which a collective fails."""
LOOK_GROUP = "look"
"""Concurrency group of what a rank answers while it works."""


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What a rank is doing."""

    collectives: int
    """Number that it has begun in all its groups; equal on all ranks but those that are late."""
    stack: str
    """Python's stack, innermost last."""
    place: str
    """The innermost frame, as ``at shards.py:12 in read``."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step, as one rank saw it."""

    sums: Sums
    """Over this rank's tokens; add them over ranks."""
    grad_norm: float
    """Norm of the whole gradient before clipping; the same on all ranks."""
    lr: float
    """Learning rate of this step."""
    skipped_in_a_row: int
    """0 when the step was taken. Else its loss or its gradient was not finite, which may hold for `sums` as well: it
    has changed nothing, and so have that many steps up to this one."""


LossFn = Callable[[PackedBatch, dict[str, Tensor], float], tuple[Tensor, Sums]]
"""From a micro-batch, its columns by name, such as ``advantages_R``, and the normalizer to the loss and its sums."""


def all_reduce_speed(device: torch.device) -> float:
    """Return the bus bandwidth of an all-reduce in GB/s, as nccl-tests define it. Collective.

    It is the speed of the slowest link between two ranks, however many there are.
    """
    data = torch.zeros((256 if device.type == "cuda" else 16) << 18, device=device)
    seconds = 0.0
    for _ in range(2):  # the first one connects
        started = time.perf_counter()
        dist.all_reduce(data)
        float(data[0])  # waits for the GPU
        seconds = time.perf_counter() - started
    ranks = dist.get_world_size()
    return 2 * (ranks - 1) / ranks * data.nbytes / seconds / 1e9


class ModelWorker:
    """Base of policy, critic and reference. The ranks of one model form a torch.distributed world of their own.

    Life of a rank: `create_store` (rank 0 only), `init_process_group`, `build`, then the methods of its model role. A
    subclass implements `build`, which makes its engine.
    """

    engine: Any
    control: dist.ProcessGroup
    """All ranks, for what is on the host: NCCL would spin a kernel on a GPU where an engine decodes meanwhile."""
    hpz: int
    """See `azr.hardware.hpz_partition_size`."""
    base_files: dict[str, str]
    """Digests of the model's weight files if only adapters are trained; else empty."""
    _away: OffloadedTensors

    def __init__(self, model_role: str, rank: int, world_size: int, device: Device, config: Config) -> None:
        end_with_raylet()
        self.model_role, self.rank, self.world_size, self.config = model_role, rank, world_size, config
        keep_kernels()
        if device == "cuda":
            take_gpus()
        # A process sees only the GPU it was given, so that is always the first.
        self.device = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
        self.dtype: torch.dtype = getattr(torch, config.train.dtype)
        self._store: dist.TCPStore | None = None
        self._start_limit = timedelta(seconds=config.timeout.start_s)  # ranks may start far apart
        self._thread = 0
        """The thread that all calls but those of `LOOK_GROUP` run in."""
        self._skipped_in_a_row = 0
        self._computes_with = self._network = ""

    def create_store(self) -> tuple[str, int]:
        """Open the store through which the ranks find each other, on one interface, at a port that the system picks
        while binding it. Returns its address."""
        # The store asks for no token. By itself it would listen on every interface of the node.
        host, limit = self._own_address(), self._start_limit
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        port = listener.getsockname()[1]
        self._store = dist.TCPStore(
            host, port, is_master=True, wait_for_workers=False, timeout=limit, master_listen_fd=listener.detach()
        )
        return host, port

    def _own_address(self) -> str:
        return "127.0.0.1" if self.config.cluster.address is None else ray.util.get_node_ip_address()

    def init_process_group(self, address: tuple[str, int]) -> str:
        """Form the world of this model's ranks; a collective that outlasts its share of `timeout.train_s` fails.

        Returns the name of this rank's device.
        """
        self._thread = threading.get_ident()
        # DeepSpeed looks for these, and would look for MPI without them.
        os.environ |= {
            "MASTER_ADDR": address[0],
            "MASTER_PORT": str(address[1]),
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": "0",
        }
        host = self._own_address()
        os.environ |= network_environment(host) | os.environ
        if self._store is None:
            self._store = dist.TCPStore(*address, is_master=False, timeout=self._start_limit)
        dist.init_process_group(
            "nccl" if self.device.type == "cuda" else "gloo",
            store=self._store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=self._start_limit,
            device_id=self.device if self.device.type == "cuda" else None,
        )
        self.control = dist.new_group(backend="gloo", timeout=self._start_limit)
        nodes: list[str] = [""] * self.world_size
        here = ray.get_runtime_context().get_node_id() if ray.is_initialized() else host
        dist.all_gather_object(nodes, here, group=self.control)
        self.hpz = hpz_partition_size(nodes)
        # Models of a colocated run take turns, so each may use all cores of its node but for its peer ranks there.
        cores = len(os.sched_getaffinity(0)) // nodes.count(nodes[self.rank])
        torch.set_num_threads(max(1, cores))
        if len(set(nodes)) > 1:
            self._network = f"; {len(set(nodes))} nodes exchange {all_reduce_speed(self.device):.2f} GB/s"
        self._limit_collectives()
        return f"GPU {os.environ.get('CUDA_VISIBLE_DEVICES', 0)} of {host}" if self.device.type == "cuda" else host

    def _limit_collectives(self) -> None:
        for group in list(_world.pg_map):
            _set_pg_timeout(timedelta(seconds=COLLECTIVE_SHARE * self.config.timeout.train_s), group)

    def build(self) -> None:
        """Load the model and make its engine, `self.engine`."""
        raise NotImplementedError

    def ping(self) -> None:
        """Answers while the process lives."""

    @ray.method(concurrency_group=LOOK_GROUP)
    def whereabouts(self) -> Whereabouts:
        """Return what this rank is doing; answers while it works."""
        frames = traceback.extract_stack(sys._current_frames()[self._thread])
        innermost = frames[-1]
        return Whereabouts(
            collectives=sum(group._get_sequence_number_for_group() for group in list(_world.pg_map)),  # type: ignore[attr-defined]
            stack="".join(traceback.format_list(frames)),
            place=f"at {Path(innermost.filename).name}:{innermost.lineno} in {innermost.name}",
        )

    def computes_with(self) -> str:
        """Return kernels and attention of the model's layers, and why these, and the nodes' network; for people."""
        return self._computes_with + self._network

    def offload(self, parameters: bool) -> GpuMemory | None:
        """Leaves the device but for the `parameters`, unless those go as well; what was gathered of them is released.

        Scoring and updates need `reload` before; checkpoints are saved from the host. May be called again for what
        stayed. Returns what the GPU holds now, None on a CPU.
        """
        parts, state, scratch = zero3.engine_tensors(self.engine)
        self._away.offload(state + parts if parameters else state, drop=scratch)
        return trim(self.device)

    def reload(self, training: bool = True) -> None:
        """Undoes `offload`, bit for bit; without `training` for the parameters only, which is enough to score."""
        self._away.reload(None if training else zero3.parameter_parts(self.engine))

    @contextmanager
    def _parameters_on_device(self) -> Iterator[None]:
        """Onload the parameters for the context if they are away, as when an engine died while it played and was
        replaced."""
        returning = any(map(self._away.is_away, zero3.parameter_parts(self.engine)))
        if returning:
            self.reload(training=False)
        try:
            yield
        finally:
            if returning:
                self.offload(parameters=True)

    def gpu_memory(self) -> GpuMemory | None:
        """Return the memory in use on this rank's GPU; None on a CPU."""
        return trim(self.device)

    def save_checkpoint(self, folder: str) -> HashedFile:
        """Writes the whole training state below `folder`, which must exist; other models may share it. Collective.

        Returns this rank's file. Ranks on several nodes must see the same folder. Only for models that are trained.
        On return all of it is on disk, and after an error no rank writes any more. Raises OSError on every rank when
        one could not write, such as to a full disk; the model stays usable, and what was written is of no use.
        """

        def write() -> HashedFile:
            place = Path(folder, self.model_role)
            return save_state(self.engine, place, self.rank, self.world_size, self._away.on_host, self.base_files)

        return self._write_together(write, folder)

    def check_folder(self, folder: str) -> None:
        """Raise OSError on every rank if one cannot write into `folder`, which the driver has made. Collective."""
        self._write_together(Path(folder, f"{self.model_role}_{self.rank}").touch, folder)

    def _write_together(self, write: Callable[[], T], folder: str) -> T:
        """Return the result of `write`. Raises OSError on all ranks if one raised it. Collective."""
        failure = None
        try:
            written = write()
        except OSError as error:
            failure = f"{self.model_role} rank {self.rank} cannot write its checkpoint to {folder}: {error}"
        failures: list[str | None] = [None] * self.world_size
        dist.all_gather_object(failures, failure, group=self.control)
        for text in failures:
            if text is not None:
                raise OSError(text)
        return written

    def load_checkpoint(self, folder: str) -> None:
        """Continue from `save_checkpoint` of any number of ranks, bit for bit when of as many.

        Raises UserError, with the model as it was, when a file is missing, damaged or of another model.
        """
        self.reload()
        load_state(self.engine, Path(folder, self.model_role), self.rank, self.base_files)

    def _make_engine(self, load: Callable[..., nn.Module], lr: float | None, mini_batches: int) -> Any:
        """Make the engine around `load(path, dtype=..., attention=..., kernels=...)`; without an optimizer if `lr` is
        None. `mini_batches`: optimizer steps per training step."""
        train, path = self.config.train, self.config.model.path
        zero = zero3.engine_config(train, self.device, self.hpz)
        # The choice may import FlashAttention 4 in a process of its own, which one rank does for all.
        chosen = [choose_attention(self.device, self.dtype, train.attention) if self.rank == 0 else ("", "")]
        dist.broadcast_object_list(chosen, src=0, group=self.control)
        ((attention, because),) = chosen
        torch.manual_seed(self.config.run.seed)  # for what the folder does not hold, such as a new critic's head
        try:
            family = AutoConfig.from_pretrained(path).model_type
            kernels, why = choose_kernels(train.kernels, self.device.type, family)
            self._computes_with = f"{kernels} kernels ({why}), attention {attention} ({because})"
            loading = partial(load, path, dtype=self.dtype, attention=attention, kernels=kernels)
            model = zero3.load_partitioned(loading, zero) if train.is_sharded else loading()
            # Of files that all ranks have just read, rank 0 computes the digests.
            digests = [hash_weights(weights_folder(path)) if train.lora.rank and self.rank == 0 else {}]
            if train.lora.rank:
                dist.broadcast_object_list(digests, src=0, group=self.control)
            (self.base_files,) = digests
        except OSError as error:
            raise UserError(
                f"cannot load the {self.model_role} model from {path!r}: give a folder with a Hugging Face model or "
                f"the name of one on the hub ({first_line(error)})"
            ) from error
        self._away = OffloadedTensors(self.device)
        if not train.is_sharded:
            return zero3.make_whole_engine(model, train, self.device, lr, mini_batches)
        engine = zero3.make_engine(model, train, zero, family, lr, mini_batches)
        self._limit_collectives()  # DeepSpeed's own would fail after ten minutes, NCCL's default
        return engine

    def _score(self, batch: RankBatch, forward: Callable[[PackedBatch], Tensor]) -> Tensor:
        """Apply `forward` to each micro-batch without gradients; returns one CPU tensor (R_k). Collective."""
        self.engine.eval()
        with torch.no_grad():
            # Copied back at once: the CPU prepares the next micro-batch while the device computes this one.
            return torch.cat([forward(micro) for mini in batch for micro in mini]).cpu()

    def _take_steps(
        self, batch: RankBatch, normalizers: Sequence[float], columns: Mapping[str, Tensor], loss_fn: LossFn
    ) -> list[StepReport]:
        """Take one optimizer step per mini-batch, on the summed loss of its micro-batches on all ranks. Collective.

        A step whose loss or gradient is not finite is skipped on all ranks.
        `normalizers` as in `TrainBatch`; `columns` are arrays (R_k) over the rank's response tokens.
        """
        self.engine.train()
        lengths = [len(micro.target_R) for mini in batch for micro in mini]
        pieces = zip(*(column.split(lengths) for column in columns.values()), strict=True)
        of_micros = (dict(zip(columns, piece, strict=True)) for piece in pieces)
        return [self._take_step(*each, of_micros, loss_fn) for each in zip(batch, normalizers, strict=True)]

    def _take_step(
        self, mini: Sequence[PackedBatch], normalizer: float, columns: Iterator[dict[str, Tensor]], loss_fn: LossFn
    ) -> StepReport:
        lr = self.engine.get_lr()[0]
        total: Sums = {}
        for micro in mini:
            arrays = {f"{name}_R": to_device(column_R, self.device) for name, column_R in next(columns).items()}
            loss, sums = loss_fn(micro, arrays, normalizer)
            total = add_sums(total, sums)
            zero3.backward(self.engine, loss, last=micro is mini[-1])
        sums = dict(zip(total, torch.stack([*total.values()]).cpu().unbind(), strict=True))
        taken = zero3.step(self.engine, sound=all(value.isfinite() for value in sums.values()))
        self._skipped_in_a_row = 0 if taken else self._skipped_in_a_row + 1
        return StepReport(sums, float(self.engine.get_global_grad_norm()), lr, self._skipped_in_a_row)
