"""The training state of a DeepSpeed ZeRO-3 engine on disk, independent of the number of ranks.

DeepSpeed's own checkpoint is not used: only as many ranks as wrote it can load it without an offline conversion, which
writes everything twice more; and a rank that fails to write leaves the others waiting at a barrier.

Each rank writes its part: of every trained parameter the float32 master weights and Adam's two moments, by name. The
weights in the compute type are the rounded master weights. What is not trained, such as buffers, the model's folder
has; where only adapters are trained, the digests of that folder's weights are written too. Beside them: step counters,
the learning rate's schedule, and the states of torch's random generators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from azr.files import HashedFile
from azr.train.adapter_files import check_base
from azr.train.shards import ShardReader, write_shard
from azr.train.whole import WholeEngine
from azr.train.zero3 import forget_node_copies

MASTER = "master"
MOMENTS = ("exp_avg", "exp_avg_sq")
COUNTERS = ("global_steps", "global_samples", "micro_steps", "skipped_steps")


@dataclass(frozen=True, slots=True)
class _Part:
    """Where this rank's part of a parameter lies in its group's flat tensors."""

    name: str
    start: int
    """First element of the whole parameter that is this rank's."""
    offset: int
    """Where the part begins in the flat tensors."""
    numel: int
    """Elements without padding; 0 when the parameter has fewer elements than ranks."""
    total: int
    """Elements of the whole parameter."""

    def of(self, flat: Tensor) -> Tensor:
        return flat.narrow(0, self.offset, self.numel)


def save_state(
    engine: Any,
    folder: Path,
    rank: int,
    ranks: int,
    on_host: Callable[[Tensor], Tensor],
    base_files: Mapping[str, str],
) -> HashedFile:
    """Writes this rank's part; it is on disk on return. No rank waits for another. Raises OSError.

    `on_host`: where the values of a tensor are whose memory was offloaded. `base_files`: of a model of which not all is
    trained, the digests of the files with the rest.
    """
    adam = engine.optimizer.optimizer.state
    pieces, steps = [], []
    for flat, parts in _groups(engine, rank):
        # Adam makes its state in its first step.
        tensors = {MASTER: flat} | {key: adam[flat][key] for key in MOMENTS if flat in adam}
        values = {key: on_host(tensor) for key, tensor in tensors.items()}
        pieces += [(f"{key}/{part.name}", part.of(value)) for key, value in values.items() for part in parts]
        steps.append(float(adam[flat]["step"]) if flat in adam else 0.0)
    assert len(set(steps)) == 1, f"one number of steps for all parameters, not {steps}"
    meta = {
        "ranks": ranks,
        "steps": steps[0],
        "counters": {name: int(getattr(engine, name)) for name in COUNTERS},
        "schedule": {name: engine.lr_scheduler.state_dict()[name] for name in ("last_epoch", "_step_count")},
        "random": random_state(engine.device),
        "base_files": dict(base_files),
    }
    return write_shard(folder, rank, meta, pieces)


@torch.no_grad()
def load_state(engine: Any, folder: Path, rank: int, base_files: Mapping[str, str]) -> None:
    """Continue from what `save_state` of any number of ranks wrote; rank r takes the random state of r modulo that.

    Learning rate and its warm-up are those of the engine at the saved step, so they may differ from the saved run's.
    Raises UserError, before anything is changed, when a file is missing, damaged or of another model.
    """
    reader = ShardReader(folder)
    meta = reader.metas[rank % reader.ranks]
    check_base(meta["base_files"], base_files, f"The checkpoint {folder.parent.parent}")
    # Where every rank holds everything, each reads it all; rank 0 wrote it.
    groups = list(_groups(engine, 0 if isinstance(engine, WholeEngine) else rank))
    keys = (MASTER, *MOMENTS) if meta["steps"] else (MASTER,)
    reader.check({f"{key}/{part.name}": part.total for _, parts in groups for part in parts for key in keys})
    engine.optimizer.checkpoint_event_prologue()  # no parameter is whole while its parts are written
    engine.optimizer.optimizer.state.clear()
    for group, (flat, parts) in enumerate(groups):
        tensors = {MASTER: flat}
        if meta["steps"]:
            moments = {key: torch.zeros_like(flat) for key in MOMENTS}  # padding stays 0
            steps = torch.tensor(meta["steps"], dtype=torch.float32, device=flat.device)
            engine.optimizer.optimizer.state[flat] = {"step": steps, **moments}
            tensors |= moments
        for key, tensor in tensors.items():
            for part in parts:
                reader.read(f"{key}/{part.name}", part.start, part.of(tensor))
        engine.optimizer.fp16_partitioned_groups_flat[group].copy_(flat)
    forget_node_copies(engine)
    for name, value in meta["counters"].items():
        setattr(engine, name, value)
    scheduler, schedule = engine.lr_scheduler, meta["schedule"]
    factors = zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    rates = [base * factor(schedule["last_epoch"]) for base, factor in factors]
    scheduler.load_state_dict(scheduler.state_dict() | schedule | {"_last_lr": rates})
    for param_group, rate in zip(engine.optimizer.param_groups, rates, strict=True):
        param_group["lr"] = rate
    restore_random_state(meta["random"], engine.device)


def _groups(engine: Any, rank: int) -> Iterator[tuple[Tensor, list[_Part]]]:
    """Per optimizer group the flat master weights and where the parameters' parts lie in them."""
    names = {parameter: name for name, parameter in engine.module.named_parameters() if parameter.requires_grad}
    optimizer = engine.optimizer
    for flat, parameters in zip(optimizer.fp32_partitioned_groups_flat, optimizer.fp16_groups, strict=True):
        parts, offset = [], 0
        for parameter in parameters:
            share = parameter.ds_tensor.ds_numel  # with padding: as much on every rank
            start = min(rank * share, parameter.ds_numel)
            numel = min(share, parameter.ds_numel - start)
            parts.append(_Part(names.pop(parameter), start, offset, numel, parameter.ds_numel))
            offset += share
        assert offset == flat.numel(), f"{offset} elements of parameters, {flat.numel()} of master weights"
        yield flat, parts
    assert not names, f"every parameter is trained, but not {sorted(names.values())}"


def random_state(device: torch.device) -> dict[str, Any]:
    """State of torch's generator, which alone is used and seeded, and of the GPU's when `device` is one."""
    states = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {name: state.numpy().tobytes().hex() for name, state in states.items()}


def restore_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Undo `random_state`. A run that moves from CPU to GPU starts the GPU's generator from its seed."""
    states = {name: torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8) for name, text in state.items()}
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
