"""Between the driver's completions and the ranks' packed micro-batches: what goes where, and back in order.

Everything per token crosses this file as flat float32 tensors over all response tokens of all completions, in the
order of the completions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from azr.algorithms.losses import Sums, add_sums, mismatch_metrics, policy_metrics, value_metrics
from azr.algorithms.packing import PackedBatch, pack, plan_micro_batches, share_prompts, stream_length, unpack
from azr.config import Config
from azr.records import Completion
from azr.train.worker_group import WorkerGroup


@dataclass(frozen=True, slots=True)
class Scores:
    """What a policy says about every response token."""

    logprobs: Tensor
    """Natural log, at the rollout temperature."""
    entropy: Tensor
    """Nats."""


async def logprobs(group: WorkerGroup, completions: Sequence[Completion], config: Config) -> Scores:
    """Score all responses with the policy or the reference."""
    flat = await _score(group, "logprobs", completions, config)
    return Scores(flat[:, 0], flat[:, 1])


async def values(group: WorkerGroup, completions: Sequence[Completion], config: Config) -> Tensor:
    """The critic's value before each response token."""
    return await _score(group, "values", completions, config)


async def update_policy(
    group: WorkerGroup, completions: Sequence[Completion], columns: Mapping[str, Tensor], config: Config
) -> dict[str, float]:
    """One optimizer step of the policy; `columns` as in `azr.algorithms.packing.pack`, with `advantages` at least.

    Returns means per token, `grad_norm`, `lr`, `micro_batches` (per rank), `packing` (tokens of all completions per
    token computed: fillers lower it, shared prompts raise it above 1), and as `mismatch_…` how far the engines'
    logprobs were from the policy's own before its first step.
    """
    sums, step, before_R = await _update(group, completions, columns, config)
    sampled_R = torch.tensor([x for c in completions for x in c.logprobs])
    mismatch = mismatch_metrics(columns.get("old_logprobs", before_R), sampled_R)
    return policy_metrics(sums) | step | {f"mismatch_{name}": value for name, value in mismatch.items()}


async def update_critic(
    group: WorkerGroup, completions: Sequence[Completion], columns: Mapping[str, Tensor], config: Config
) -> dict[str, float]:
    """One optimizer step of the critic; `columns` must hold `values` and `returns`. Returns as `update_policy`."""
    sums, step, _ = await _update(group, completions, columns, config)
    return value_metrics(sums) | step


def split(
    completions: Sequence[Completion],
    ranks: int,
    tokens_per_micro_batch: int,
    columns: Mapping[str, Tensor] | None = None,
) -> list[list[PackedBatch]]:
    """Micro-batches per rank: every completion is in exactly one, and every rank has as many of them.

    Completions of one prompt share a micro-batch, and that prompt's tokens, unless there are fewer prompts than ranks.

    Raises ValueError for fewer completions than ranks or one longer than a micro-batch.
    """
    bundles = share_prompts(completions, tokens_per_micro_batch)
    if len(bundles) < ranks:
        bundles = [[number] for number in range(len(completions))]
    lengths = [stream_length([completions[i] for i in bundle]) for bundle in bundles]
    plan = plan_micro_batches(lengths, ranks, tokens_per_micro_batch)
    return [[pack(completions, _members(bundles, chosen), columns) for chosen in micros] for micros in plan]


def _members(bundles: Sequence[Sequence[int]], chosen: Sequence[int]) -> list[int]:
    return sorted(number for bundle in chosen for number in bundles[bundle])


async def _score(group: WorkerGroup, method: str, completions: Sequence[Completion], config: Config) -> Tensor:
    batches = split(completions, group.size, config.train.tokens_per_micro_batch)
    outputs = await group.scatter(
        method, [(own,) for own in batches], timeout_s=config.timeout.train_s, to=f"compute {method}"
    )
    return _in_order(completions, batches, outputs)


def _in_order(
    completions: Sequence[Completion], batches: Sequence[Sequence[PackedBatch]], outputs: Sequence[Sequence[Tensor]]
) -> Tensor:
    return unpack(
        [batch.indices for own in batches for batch in own],
        [output for own in outputs for output in own],
        [len(c.response_ids) for c in completions],
    )


async def _update(
    group: WorkerGroup, completions: Sequence[Completion], columns: Mapping[str, Tensor], config: Config
) -> tuple[Sums, dict[str, float], Tensor]:
    batches = split(completions, group.size, config.train.tokens_per_micro_batch, columns)
    tokens = float(sum(len(c.response_ids) for c in completions))
    reports = await group.scatter(
        "update", [(own, tokens) for own in batches], timeout_s=config.timeout.train_s, to="take an optimizer step"
    )
    sums: Sums = {}
    for report in reports:
        sums = add_sums(sums, report.sums)
    real = sum(len(c.prompt_ids) + len(c.response_ids) for c in completions)
    step = {
        "grad_norm": reports[0].grad_norm,
        "lr": reports[0].lr,
        "micro_batches": float(len(batches[0])),
        "packing": real / sum(len(batch.token_ids_T) for own in batches for batch in own),
    }
    return sums, step, _in_order(completions, batches, [report.outputs for report in reports])
