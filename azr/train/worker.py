"""One rank of a role: a Ray actor whose process holds a part of the model and speaks to its sister ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import ray
import torch
import torch.distributed as dist
from torch import Tensor, nn

from azr.algorithms.attention import choose_attention
from azr.algorithms.losses import Sums, add_sums
from azr.algorithms.packing import PackedBatch
from azr.config import Config
from azr.hardware import Device
from azr.hashed_files import HashedFile
from azr.train.state import load_state, save_state
from azr.train.zero3 import backward, held_elements, load_partitioned, make_engine

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Address:
    """Where rank 0 keeps the store through which the ranks of a role find each other."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class RankReport:
    """What one rank holds right now."""

    pid: int
    parameters_held: int
    """Parameter elements in this rank's memory, padding included."""
    parameters_total: int
    """Parameter elements of the whole model."""
    optimizer_steps: int


@dataclass(frozen=True, slots=True)
class StepReport:
    """One optimizer step, as one rank saw it."""

    sums: Sums
    """Over this rank's tokens; add them over ranks."""
    grad_norm: float
    """Of the whole gradient, before clipping; the same on all ranks."""
    lr: float
    """Learning rate of this step."""
    outputs: list[Tensor]
    """Per micro-batch (R,), from before the step: logprobs of a policy, values of a critic."""


class RoleWorker:
    """Base of every role. The ranks of one role form a torch.distributed world of their own.

    Life of a rank: `host_store` (rank 0 only), `join`, `build`, then the role's own methods. A subclass implements
    `build`, which makes its DeepSpeed engine.
    """

    engine: Any

    def __init__(self, role: str, rank: int, world_size: int, device: Device, config: Config) -> None:
        self.role, self.rank, self.world_size, self.config = role, rank, world_size, config
        # Ray shows a process only the GPU it was given, so that is always the first.
        self.device = torch.device("cuda", 0) if device == "cuda" else torch.device("cpu")
        self.dtype: torch.dtype = getattr(torch, config.train.dtype)
        self._store: dist.TCPStore | None = None
        # Roles of a colocated run take turns, so each may use all cores of its node; its sister ranks may be there.
        cores = len(os.sched_getaffinity(0)) // world_size
        torch.set_num_threads(max(1, cores))

    def host_store(self) -> Address:
        """Open the store at a port that the system picks while binding it, so nobody can take it in between."""
        host = ray.util.get_node_ip_address()
        self._store = dist.TCPStore(
            host, 0, is_master=True, wait_for_workers=False, timeout=self._deadline(self.config.timeout.start_s)
        )
        return Address(host, self._store.port)

    def join(self, address: Address) -> None:
        """Form the role's world; a collective that outlasts `timeout.train_s` fails."""
        # DeepSpeed looks for these, and would look for MPI without them.
        os.environ |= {
            "MASTER_ADDR": address.host,
            "MASTER_PORT": str(address.port),
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": "0",
        }
        if self._store is None:
            wait = self._deadline(self.config.timeout.start_s)
            self._store = dist.TCPStore(address.host, address.port, is_master=False, timeout=wait)
        dist.init_process_group(
            "nccl" if self.device.type == "cuda" else "gloo",
            store=self._store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=self._deadline(self.config.timeout.train_s),
            device_id=self.device if self.device.type == "cuda" else None,
        )

    def build(self) -> None:
        """Load the model and make its engine, `self.engine`."""
        raise NotImplementedError

    def ping(self) -> None:
        """Answers while the process lives."""

    def report(self) -> RankReport:
        """Parameters this rank holds between steps: with ZeRO-3 about 1/ranks of the model."""
        held, total = held_elements(self.engine.module)
        return RankReport(os.getpid(), held, total, self.engine.global_steps)

    def save_checkpoint(self, folder: str) -> HashedFile:
        """Writes the role's whole training state below `folder`, which must exist; roles may share it. Collective.

        Returns this rank's file. Ranks on several nodes must see the same folder. Only for roles that learn.
        On return all of it is on disk, and after an error no rank writes any more. Raises OSError on every rank when
        one could not write, such as to a full disk; the role stays usable, and what it has written is of no use.
        """
        place = Path(folder, self.role)
        return self._write_together(lambda: save_state(self.engine, place, self.rank, self.world_size), folder)

    def _write_together(self, write: Callable[[], T], folder: str) -> T:
        """What `write` returns; OSError on all ranks when it raised that on one. Collective."""
        failure = None
        try:
            written = write()
        except OSError as error:
            failure = f"{self.role} rank {self.rank} cannot write its checkpoint to {folder}: {error}"
        failures: list[str | None] = [None] * self.world_size
        dist.all_gather_object(failures, failure)
        for text in failures:
            if text is not None:
                raise OSError(text)
        return written

    def load_checkpoint(self, folder: str) -> None:
        """Continue from `save_checkpoint` of any number of ranks, bit for bit when of as many.

        Raises UserError, with the role as it was, when a file is missing, damaged or of another model.
        """
        load_state(self.engine, Path(folder, self.role), self.rank)

    def _make_engine(self, load: Callable[..., nn.Module], path: str, lr: float | None) -> Any:
        """Engine around `load(path, dtype=..., attention=..., ...)`; without an optimizer when `lr` is None."""
        train = self.config.train
        attention = choose_attention(self.device, self.dtype)
        torch.manual_seed(self.config.run.seed)  # for what the folder does not hold, such as a new critic's head
        try:
            model = load_partitioned(lambda: load(path, dtype=self.dtype, attention=attention), train, self.device)
        except OSError as error:
            raise ValueError(
                f"cannot load the {self.role} model from {path!r}: give a folder with a Hugging Face model or the "
                f"name of one on the hub ({str(error).splitlines()[0]})"
            ) from error
        return make_engine(model, train, self.device, lr)

    def _score(self, batches: Sequence[PackedBatch], forward: Callable[[PackedBatch], Tensor]) -> list[Tensor]:
        """CPU tensors that `forward` makes of each micro-batch, without gradients."""
        self.engine.eval()
        with torch.no_grad():
            return [forward(batch.to(self.device)).cpu() for batch in batches]

    def _step(
        self, batches: Sequence[PackedBatch], loss_of: Callable[[PackedBatch], tuple[Tensor, Sums, Tensor]]
    ) -> StepReport:
        """One optimizer step on the sum of all losses of all ranks, which bring as many micro-batches each.

        `loss_of` gives a micro-batch's loss, its sums, and the network's outputs that the loss was made of.
        """
        self.engine.train()
        lr = self.engine.get_lr()[0]
        total: Sums = {}
        outputs: list[Tensor] = []
        for number, batch in enumerate(batches, start=1):
            loss, sums, output_R = loss_of(batch.to(self.device))
            total = add_sums(total, sums)
            outputs.append(output_R.detach().cpu())
            backward(self.engine, loss, last=number == len(batches))
        self.engine.step()
        sums = {name: value.cpu() for name, value in total.items()}
        return StepReport(sums, float(self.engine.get_global_grad_norm()), lr, outputs)

    @staticmethod
    def _deadline(seconds: float) -> timedelta:
        return timedelta(seconds=seconds)
