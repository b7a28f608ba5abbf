"""Expected seconds of a step, phase by phase: what must be computed or moved, over the assumed rates."""

from __future__ import annotations

import math
from collections.abc import Sequence

from azr.config import Config, TrainConfig
from azr.plan.assumptions import Assumptions, Machine
from azr.plan.batch import Batch
from azr.plan.memory import EngineMemory, Role, element_bytes
from azr.plan.shapes import ModelShape

GIGA = 1e9
STEP_TRAFFIC = 28
"""Bytes per parameter that Adam moves: reads master copy, two moments and gradient, writes all but the last."""


def forward_flops(role: Role, batch: Batch) -> float:
    """Of one forward over the trained trajectories: two per parameter and token, and causal attention.

    The output head only sees response tokens.
    """
    shape, length = role.shape, batch.mean_prompt + batch.mean_response
    per_token = 2 * shape.layers * shape.layer + 2 * shape.layers * shape.query * length
    head = 2 * shape.embedding * batch.trained * batch.mean_response * role.has_head
    return per_token * batch.trained_tokens + head


def rollout(config: Config, shape: ModelShape, engine: EngineMemory, batch: Batch, assumed: Assumptions) -> float:
    """Prompts are computed, then responses decoded at the speed of memory.

    At least the time of two responses of full length, one after the other: a proposal's estimate waits for it.
    """
    settings = config.rollout
    length = batch.mean_prompt + batch.mean_response
    fits = engine.kv_tokens / length
    at_once = max(1.0, min(settings.max_concurrent, batch.trajectories / settings.engines, fits))
    rate = at_once / token_seconds(engine, at_once * length, assumed)
    decoding = batch.trajectories * batch.mean_response / settings.engines / rate
    gpus = settings.engines * settings.tensor_parallel
    prefill = 2 * shape.parameters * batch.prompts * batch.mean_prompt
    longest = 2 * settings.max_response_tokens * token_seconds(engine, batch.longest, assumed)
    return max(decoding + prefill / (gpus * assumed.peak_tflops * 1e12 * assumed.score_mfu), longest)


def token_seconds(engine: EngineMemory, cached_tokens: float, assumed: Assumptions) -> float:
    """One token for every sequence decoded at once: weights and their KV cache are read once."""
    read = engine.weights + cached_tokens * engine.kv_token
    return read / (assumed.memory_gb_s * GIGA * assumed.decode_efficiency) + assumed.decode_overhead_ms / 1e3


def score(found: Sequence[Role], config: Config, batch: Batch, machine: Machine, assumed: Assumptions) -> float:
    """Critic values, reference logprobs and, where the algorithm asks for them, the policy's own; in turn."""
    algorithm, train = config.algorithm, config.train
    own = algorithm.policy_mini_batches > 1
    scorers = [role for role in found if own or role.name != "policy"]
    peak = train.data_parallel * assumed.peak_tflops * 1e12 * assumed.score_mfu
    moved = element_bytes(train)
    return sum(
        max(forward_flops(role, batch) / peak, _collectives(role, moved, train, batch, machine, assumed))
        for role in scorers
    )


def train(role: Role, updates: int, config: Config, batch: Batch, machine: Machine, assumed: Assumptions) -> float:
    """Forward, backward (twice a forward), with checkpointing another forward; then `updates` optimizer steps."""
    settings = config.train
    passes = 4 if settings.gradient_checkpointing else 3
    peak = settings.data_parallel * assumed.peak_tflops * 1e12 * assumed.train_mfu
    # Parameters are gathered for the forward and again for the backward; float32 gradients are reduced.
    moved = 2 * element_bytes(settings) + 4
    passing = max(
        passes * forward_flops(role, batch) / peak, _collectives(role, moved, settings, batch, machine, assumed)
    )
    return passing + _optimizer(role, updates, settings, batch, machine, assumed)


def push(policy: Role, config: Config, assumed: Assumptions) -> float:
    """All weights to host memory, digested, read by all engines at once, digested again."""
    nbytes = element_bytes(config.train) * (policy.parameters + policy.shape.embedding * policy.shape.tied)
    return nbytes * 2 * (1 / assumed.pcie_gb_s + 1 / assumed.digest_gb_s) / GIGA


def micro_batches(train: TrainConfig, batch: Batch) -> int:
    """Of one rank, at expected lengths."""
    return max(1, math.ceil(batch.trained_tokens / train.data_parallel / train.tokens_per_micro_batch))


def _collectives(
    role: Role, moved: float, train: TrainConfig, batch: Batch, machine: Machine, assumed: Assumptions
) -> float:
    """`moved` bytes per parameter and micro-batch through the links of one rank."""
    if train.data_parallel == 1:
        return 0.0
    rate = assumed.link_gb_s if train.data_parallel <= machine.gpus else assumed.network_gb_s
    return micro_batches(train, batch) * moved * role.parameters / (rate * GIGA)


def _optimizer(
    role: Role, updates: int, train: TrainConfig, batch: Batch, machine: Machine, assumed: Assumptions
) -> float:
    ranks = train.data_parallel
    if not train.offload_optimizer:
        return updates * STEP_TRAFFIC * role.parameters / ranks / (assumed.memory_gb_s * GIGA)
    share = role.parameters / ranks
    # Each micro-batch's gradients go to the host, where they are kept, and back and forth to be added up.
    traffic = 3 * 4 * micro_batches(train, batch) + updates * (4 + element_bytes(train))
    stepping = updates * STEP_TRAFFIC * share * min(ranks, machine.gpus) / (assumed.host_gb_s * GIGA)
    return traffic * share / (assumed.pcie_gb_s * GIGA) + stepping
