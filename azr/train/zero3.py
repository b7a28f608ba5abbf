"""DeepSpeed ZeRO-3 in a few functions: make an engine, step it, gather its parameters.

Parameters, gradients and optimiser state are partitioned over the ranks. The loss is a sum over tokens divided by one
number that is the same on all ranks, so gradients must be added over ranks, while DeepSpeed takes their mean:
`backward` undoes that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from math import prod
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers.modeling_layers import GradientCheckpointingLayer

from azr.algorithms.architectures import CHECKED
from azr.algorithms.lora import adapters_of, is_four_bit, merge, unpack
from azr.config import REDUCE_BUCKET, TrainConfig
from azr.train.whole import WholeEngine

ADAM_BETA1 = 0.9


def load_partitioned(load: Callable[[], nn.Module], config: dict[str, Any]) -> nn.Module:
    """Run `load`, which makes a Hugging Face model; each parameter is partitioned as soon as it exists.

    DeepSpeed makes every tensor of a model in the parameters' type. Frequencies of rotary embeddings are made anew in
    their own: rounded to bfloat16 they turn some pairs by a radian too much or too little at position 1,000.

    `config`: from `engine_config`.
    """
    from transformers.integrations import HfDeepSpeedConfig

    _import_deepspeed()
    zero = HfDeepSpeedConfig(config)  # transformers looks for an instance while it loads
    model = load()
    del zero
    for module in model.modules():
        if any(name.endswith("inv_freq") for name in module._buffers):
            for name, buffer in type(module)(module.config).named_buffers():
                module.register_buffer(name, buffer.to(getattr(module, name).device), persistent=False)
    return model


def engine_config(train: TrainConfig, device: torch.device, hpz: int = 1) -> dict[str, Any]:
    """The DeepSpeed configuration of policy, critic and reference; `hpz` from `azr.hardware.hpz_partition_size`."""
    zero: dict[str, Any] = {
        "stage": 3,
        # Nothing is exempt from partitioning, however small.
        "stage3_param_persistence_threshold": 0,
        "reduce_bucket_size": REDUCE_BUCKET,
        "stage3_prefetch_bucket_size": REDUCE_BUCKET,
        "overlap_comm": device.type == "cuda",
        # A lone rank has nobody to share with: its gradients need not be laid out by rank in a second buffer.
        "reduce_scatter": train.data_parallel > 1,
        "zero_hpz_partition_size": hpz,
    }
    if train.offload_optimizer and device.type == "cuda":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": train.grad_clip,
        "bf16": {"enabled": train.dtype == "bfloat16"},
        "communication_data_type": "fp32",
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 2**31,
    }


def make_engine(
    model: nn.Module, train: TrainConfig, config: dict[str, Any], family: str, lr: float | None, mini_batches: int = 1
) -> Any:
    """Return the DeepSpeed engine of a model of a `model_type`, ``family``: with AdamW and the schedule of `lr_lambda`,
    or for inference if `lr` is None."""
    deepspeed = _import_deepspeed()
    if family in CHECKED:
        config = _by_layers(deepspeed, model, config)
    if lr is None:
        return deepspeed.initialize(model=model, config=config)[0]
    optimizer = _adam([parameter for parameter in model.parameters() if parameter.requires_grad], train, lr)
    schedule = _schedule(optimizer, train, mini_batches)
    return deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)[0]


def make_whole_engine(
    model: nn.Module, train: TrainConfig, device: torch.device, lr: float | None, mini_batches: int = 1
) -> WholeEngine:
    """Return the engine of a model that every rank holds whole; otherwise as `make_engine`."""
    make_adam = None if lr is None else partial(_adam, train=train, lr=lr)
    engine = WholeEngine(model, device, getattr(torch, train.dtype), make_adam, train.grad_clip)
    if engine.optimizer is not None:
        engine.lr_scheduler = _schedule(engine.optimizer.optimizer, train, mini_batches)
    return engine


def _adam(parameters: Sequence[torch.Tensor], train: TrainConfig, lr: float) -> torch.optim.AdamW:
    betas = ADAM_BETA1, train.adam_beta2
    return torch.optim.AdamW(parameters, lr=lr, betas=betas, weight_decay=train.weight_decay, fused=True)


def _schedule(optimizer: torch.optim.Optimizer, train: TrainConfig, mini_batches: int) -> LRScheduler:
    return LambdaLR(optimizer, partial(lr_lambda, train=train, mini_batches=mini_batches))


def _by_layers(deepspeed: ModuleType, model: nn.Module, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration under which each of the model's layers is gathered, and its gradients are reduced, as one.

    The dozen modules of a layer have no hooks of their own then, which took a third of a pass's CPU time, and several
    GPUs send fewer, larger messages. What is gathered ahead must hold a layer, or its rest would have to be waited for.
    Only for families of which tests compare gradients: of other layers, such as recurrent ones, parts may get none.
    """
    layers = deepspeed.utils.set_z3_leaf_modules(model, [GradientCheckpointingLayer], raise_if_not_found=False)
    # Adapters are not partitioned yet.
    is_partitioned = deepspeed.runtime.zero.utils.is_zero_param
    largest = max(
        (sum(p.ds_numel if is_partitioned(p) else p.numel() for p in layer.parameters()) for layer in layers), default=0
    )
    ahead = {"stage3_prefetch_bucket_size": max(REDUCE_BUCKET, largest)}
    return config | {"zero_optimization": config["zero_optimization"] | ahead}


def lr_lambda(step: int, train: TrainConfig, mini_batches: int) -> float:
    """Factor of a model's learning rate in its optimizer step `step`, from 0: linear warm-up, then linear decay.

    `warmup_steps` counts optimizer steps, as Adam's moments do. `decay_steps` counts training steps, in each of which
    the model takes `mini_batches` optimizer steps, so the rates of policy and critic fall alike. Neither counts
    optimizer steps that were skipped, or training steps in which the model learned nothing: the rate is 0 late, not
    early.
    """
    if step < train.warmup_steps:
        return (step + 1) / train.warmup_steps
    if not train.decay_steps:
        return 1.0
    return max(0.0, 1.0 - (step - train.warmup_steps) / (train.decay_steps * mini_batches))


def backward(engine: Any, loss: torch.Tensor, *, last: bool) -> None:
    """Add the loss's gradient, summed over ranks, to what `engine.step()` will use after the `last` one. Collective."""
    engine.set_gradient_accumulation_boundary(last)
    engine.backward(loss * dist.get_world_size(), scale_wrt_gas=False)


def step(engine: Any, *, sound: bool) -> bool:
    """Take an optimizer step, and say whether it was taken. Collective.

    It is skipped on all ranks when `sound` is false on one, or the gradient's norm is not finite: weights, optimizer
    state and schedule stay as they are, and the gradient is forgotten.
    """
    unsound = torch.tensor(float(not sound), device=engine.device)
    dist.all_reduce(unsound, op=dist.ReduceOp.MAX)
    skipped = engine.skipped_steps
    if unsound:
        # DeepSpeed skips a step by itself when the norm is not finite, in every type and with the state offloaded; and
        # a gradient may be finite although its loss is not.
        engine.optimizer._get_norm_groups = lambda: [torch.tensor(torch.nan)]
    try:
        engine.step()
    finally:
        if unsound:
            del engine.optimizer._get_norm_groups
    return bool(engine.skipped_steps == skipped)


def engine_tensors(engine: Any) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Release what was gathered of the parameters, and return the tensors on the device between two calls.

    First this rank's parts of the parameters; then master weights and the optimizer's state; then gradients and the
    buffer in which they are reduced, of no use after a step, but zero where nothing is written. A model that is not
    trained has the first alone. They may share memory; small ones are left out.
    """
    optimizer, parameters = engine.optimizer, parameter_parts(engine)
    if not isinstance(engine, WholeEngine):
        optimizer.empty_partition_cache()
        forget_node_copies(engine)
    masters = getattr(optimizer, "fp32_partitioned_groups_flat", None)
    if masters is None:  # of a model that is not trained
        return parameters, [], []
    moments = [value for state in optimizer.optimizer.state.values() for value in state.values() if value.dim()]
    shared = {parameter.untyped_storage() for parameter in parameters}  # in float32 the weights are the master weights
    state = [tensor for tensor in (*masters, *moments) if tensor.untyped_storage() not in shared]
    buckets = [bucket.buffer for bucket in optimizer.ipg_buckets.values() if bucket.buffer is not None]
    return parameters, state, [optimizer.grad_partitions_flat_buffer, *buckets]


def parameter_parts(engine: Any) -> list[torch.Tensor]:
    """This rank's parts of the parameters."""
    return [_part(parameter) for parameter in engine.module.parameters()]


def forget_node_copies(engine: Any) -> None:
    """The copies of the weights that each node keeps for itself are made again when they are needed."""
    for parameter in engine.module.parameters():
        parameter.ds_secondary_tensor = None


def iter_full_params(
    engine: Any, named: Sequence[tuple[str, nn.Parameter]], bucket_bytes: int, dtype: torch.dtype
) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Whole parameters in order, about `bucket_bytes` of them gathered at a time, which are valid until the next are.

    Adapters are merged into them. Collective: every rank must consume the iterator to its end.
    """
    adapters = adapters_of(engine.module)

    def merged(parameter: nn.Parameter) -> torch.Tensor:
        weight, adapter = unpack(parameter), adapters.get(parameter)
        if adapter is not None:
            weight = merge(weight, *adapter.parameters, adapter.scale)
        return weight.detach().to(dtype)

    gathered = nullcontext if isinstance(engine, WholeEngine) else _import_deepspeed().zero.GatheredParameters
    for bucket in _buckets(named, bucket_bytes):
        # A tied parameter has two names and is gathered once.
        whole = dict.fromkeys(parameter for _, parameter in bucket)
        parts = [part for parameter in whole if parameter in adapters for part in adapters[parameter].parameters]
        with gathered([*whole, *parts]), torch.no_grad():
            yield [(name, merged(parameter)) for name, parameter in bucket]


def gather_on_host(
    named: Sequence[tuple[str, nn.Parameter]],
    bucket_bytes: int,
    dtype: torch.dtype,
    on_host: Callable[[torch.Tensor], torch.Tensor],
    group: dist.ProcessGroup | None,
    is_whole: bool = False,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Gather as `iter_full_params`, but through host memory, on rank 0 only, and of each parameter a tensor of its own.

    `on_host`: this rank's part of a parameter; `group`: all ranks, with a backend for CPU tensors; `is_whole`: every
    rank holds all of it. The other ranks get nothing, and must consume the iterator as well.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if is_whole and rank:
        return
    for bucket in _buckets(named, bucket_bytes):
        unique = list(dict.fromkeys(parameter for _, parameter in bucket))
        part = torch.cat([on_host(_part(parameter)).cpu().view(torch.uint8) for parameter in unique])
        parts: list[torch.Tensor] | None = [part]
        if not is_whole:
            parts = [torch.empty_like(part) for _ in range(ranks)] if rank == 0 else None
            dist.gather(part, parts, dst=0, group=group)
        if parts is None:
            continue
        sizes = [_part(parameter).nbytes for parameter in unique]
        pieces = zip(*(each.split(sizes) for each in parts), strict=True)
        whole = {
            parameter: torch.cat(piece).view(parameter.dtype)[: prod(shape)].view(shape).to(dtype)
            for parameter, piece in zip(unique, pieces, strict=True)
            for shape in [whole_shape(parameter)]
        }
        for name, parameter in bucket:
            yield name, whole[parameter]


def _part(parameter: Any) -> torch.Tensor:
    part: torch.Tensor = parameter.ds_tensor
    return part


def whole_shape(parameter: Any) -> tuple[int, ...]:
    """Shape of the weight of which this rank may hold only a part."""
    return tuple(parameter.quant_state.shape if is_four_bit(parameter) else parameter.ds_shape)


def _import_deepspeed() -> ModuleType:
    """DeepSpeed binds itself to a device when it is imported, so only a worker, whose device is known, may do that."""
    import deepspeed

    # An empty table of extras that it may compile: it would otherwise build its shared-memory collective on first use.
    deepspeed.ops.__compatible_ops__ = {}
    return deepspeed


def _buckets(named: Sequence[tuple[str, nn.Parameter]], bucket_bytes: int) -> Iterator[list[tuple[str, nn.Parameter]]]:
    bucket: list[tuple[str, nn.Parameter]] = []
    size = 0
    for name, parameter in named:
        nbytes = prod(whole_shape(parameter)) * parameter.element_size()
        if bucket and size + nbytes > bucket_bytes:
            yield bucket
            bucket, size = [], 0
        bucket.append((name, parameter))
        size += nbytes
    if bucket:
        yield bucket
