"""A model that every rank holds whole, in place of DeepSpeed's ZeRO-3: a plain module, float32 master weights, AdamW.

It has those attributes of a DeepSpeed engine and its optimizer that this package uses, under their names, as a rank has
them that shares with nobody: the same tensors in the same order, so that on one rank both take the same steps to the
last bit, and write the same checkpoint. Without hooks around each module the CPU spends less time on a pass, and
gradients of several ranks are added up once per optimizer step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class WholeOptimizer:
    """AdamW on all trained parameters as one flat float32 tensor."""

    def __init__(self, trained: list[Any], make_adam: Callable[[list[Tensor]], torch.optim.Optimizer]) -> None:
        weights = torch.cat([parameter.detach().reshape(-1) for parameter in trained])
        for parameter, part in zip(trained, _parts(weights, trained), strict=True):
            parameter.data = part
        self.masters = nn.Parameter(weights.float())  # the same memory in float32
        self.fp16_groups, self.fp16_partitioned_groups_flat = [trained], [weights]
        self.fp32_partitioned_groups_flat = [self.masters]
        self.grad_partitions_flat_buffer, self.ipg_buckets = torch.zeros_like(self.masters), dict[int, Any]()
        self._gradients = list(_parts(self.grad_partitions_flat_buffer, trained))
        for parameter, part in zip(trained, self._gradients, strict=True):
            parameter.register_post_accumulate_grad_hook(partial(_move, part))
        self.optimizer = make_adam([self.masters])
        self.param_groups = self.optimizer.param_groups

    def checkpoint_event_prologue(self) -> None:
        """Nothing is gathered that a checkpoint's weights would not reach."""

    def _get_norm_groups(self) -> list[Tensor]:
        norms = torch.stack([part.double().norm(2.0) for part in self._gradients])
        return [torch.sum(torch.pow(norms, 2.0)) ** 0.5]

    @torch.no_grad()
    def step(self, grad_clip: float) -> float | None:
        """Add up the ranks' gradients and take a step; return the gradient's norm, None if the step was skipped."""
        gradient = self.grad_partitions_flat_buffer
        dist.all_reduce(gradient)
        gradient /= dist.get_world_size()
        norm = torch.linalg.vector_norm(torch.stack(self._get_norm_groups()))
        is_finite = bool(norm.isfinite())
        if is_finite:
            if grad_clip:
                gradient *= 1.0 / torch.clamp((norm + 1e-6) / grad_clip, min=1.0)
            self.masters.grad = gradient
            self.optimizer.step()
            self.masters.grad = None
            (weights,) = self.fp16_partitioned_groups_flat
            weights.copy_(self.masters)
        gradient.zero_()
        return float(norm) if is_finite else None


def _parts(flat: Tensor, parameters: list[Any]) -> Iterator[Tensor]:
    for part, parameter in zip(flat.split([p.numel() for p in parameters]), parameters, strict=True):
        yield part.view(parameter.shape)


def _move(part: Tensor, parameter: Tensor) -> None:
    """Add the parameter's gradient to `part` and forget it."""
    assert parameter.grad is not None
    part.add_(parameter.grad)
    parameter.grad = None


class WholeEngine:
    """The part of a DeepSpeed engine that this package uses."""

    optimizer: WholeOptimizer | None = None
    lr_scheduler: torch.optim.lr_scheduler.LRScheduler | None = None

    def __init__(
        self,
        module: nn.Module,
        device: torch.device,
        dtype: torch.dtype,
        make_adam: Callable[[list[Tensor]], torch.optim.Optimizer] | None,
        grad_clip: float,
    ) -> None:
        """`make_adam`: None for a model that is not trained."""
        self.module, self.device, self._grad_clip = module.to(device), device, grad_clip
        self.train, self.eval = module.train, module.eval
        for parameter in module.parameters():
            # Some families keep a few in float32, and one flat tensor has one type. A mapped file cannot be offloaded.
            if parameter.dtype != dtype or not parameter.untyped_storage().resizable():
                parameter.data = parameter.data.to(dtype, copy=True)
        self.global_steps = self.global_samples = self.micro_steps = self.skipped_steps = 0
        self._norm = 0.0
        if make_adam is not None:
            self.optimizer = WholeOptimizer([p for p in module.parameters() if p.requires_grad], make_adam)
        for parameter in module.parameters():
            whole: Any = parameter  # this rank's part of it is all of it
            whole.ds_tensor = parameter.detach().view(-1)
            whole.ds_shape, whole.ds_numel = parameter.shape, parameter.numel()
            whole.ds_tensor.ds_numel = prod(parameter.shape)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def set_gradient_accumulation_boundary(self, last: bool) -> None:
        """All micro-batches are alike here: the optimizer's step adds up the ranks."""

    def backward(self, loss: Tensor, *, scale_wrt_gas: bool) -> None:
        assert not scale_wrt_gas
        loss.backward()

    def step(self) -> None:
        assert self.optimizer is not None and self.lr_scheduler is not None
        norm = self.optimizer.step(self._grad_clip)
        self._norm = float("inf") if norm is None else norm
        if norm is None:
            self.skipped_steps += 1
        else:
            self.lr_scheduler.step()
        self.global_steps += 1
        self.micro_steps += 1
        self.global_samples += dist.get_world_size()

    def get_lr(self) -> list[float]:
        assert self.optimizer is not None
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_global_grad_norm(self) -> float:
        return self._norm
