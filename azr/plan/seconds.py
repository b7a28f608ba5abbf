"""Expected seconds of a step, phase by phase: what must be computed or moved, over the assumed rates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from azr.config import Config
from azr.plan.inputs import Assumptions, ClusterSpec, Workload
from azr.plan.memory import EngineMemory, ModelRole, element_bytes

GIGA, TERA = 1e9, 1e12
STEP_TRAFFIC = 28
"""Bytes per parameter that Adam moves: reads master copy, two moments and gradient, writes all but the last."""


def forward_flops(role: ModelRole, load: Workload) -> float:
    """Of one forward over the trained trajectories: two per parameter and token, and causal attention.

    The output head only sees response tokens.
    """
    shape = role.shape
    per_token = 2 * shape.layers * shape.layer + 2 * shape.layers * shape.query * load.mean_length
    head = 2 * shape.embedding * load.trained * load.mean_response * role.has_head
    return per_token * load.trained_tokens + head


def token_seconds(engine: EngineMemory, cached_tokens: float, assumed: Assumptions) -> float:
    """One token for every sequence decoded at once: weights and their KV cache are read once."""
    read = engine.weights + cached_tokens * engine.kv_token
    return read / (assumed.memory_gb_s * GIGA * assumed.decode_efficiency) + assumed.decode_overhead_ms / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """What the phases of a step take, seconds each."""

    config: Config
    load: Workload
    nodes: ClusterSpec
    assumed: Assumptions

    def by_phase(self, roles: Sequence[ModelRole], engine: EngineMemory) -> dict[str, float]:
        """In the order of a step; `roles` has the policy first."""
        algorithm = self.config.algorithm
        times = {"rollout": self.rollout(roles[0], engine), "score": self.score(roles)}
        for role in roles:
            if role.trains:
                updates = algorithm.policy_mini_batches if role.name == "policy" else algorithm.critic_mini_batches
                times[f"train {role.name}"] = self.train(role, updates)
        return times | {"push": self.push(roles[0])}

    def rollout(self, policy: ModelRole, engine: EngineMemory) -> float:
        """Prompts are computed, then responses decoded at the speed of memory.

        At least the time of two responses of full length, one after the other: a proposal's estimate waits for it.
        """
        rollout, load, assumed = self.config.rollout, self.load, self.assumed
        room = engine.kv_tokens / load.mean_length
        at_once = max(1.0, min(rollout.max_concurrent, load.trajectories / rollout.engines, room))
        rate = at_once / token_seconds(engine, at_once * load.mean_length, assumed)
        decoding = load.trajectories * load.mean_response / rollout.engines / rate
        gpus = rollout.engines * rollout.tensor_parallel
        prefill = 2 * policy.shape.parameters * load.prompts * load.mean_prompt
        full = token_seconds(engine, self.config.max_trajectory_tokens, assumed)
        longest = 2 * rollout.max_response_tokens * full
        return max(decoding + prefill / (gpus * assumed.peak_tflops * TERA * assumed.score_mfu), longest)

    def score(self, roles: Sequence[ModelRole]) -> float:
        """Critic values, reference logprobs and, where there are several mini-batches, the policy's own; in turn."""
        own = self.config.algorithm.policy_mini_batches > 1
        moved = element_bytes(self.config.train)
        scorers = [role for role in roles if own or role.name != "policy"]
        return sum(self._passing(role, 1, self.assumed.score_mfu, moved) for role in scorers)

    def train(self, role: ModelRole, updates: int) -> float:
        """Forward, backward (twice a forward), what checkpointing computes again; then `updates` optimizer steps."""
        train = self.config.train
        # Parameters are gathered for the forward and again for the backward; float32 gradients are reduced.
        moved = 2 * element_bytes(train) + 4
        passes = {"full": 4.0, "selective": 3.5, "none": 3.0}[train.gradient_checkpointing]
        return self._passing(role, passes, self.assumed.train_mfu, moved) + self._optimizer(role, updates)

    def push(self, policy: ModelRole) -> float:
        """All weights to host memory, digested, read by all engines at once, digested again."""
        parameters = policy.parameters + policy.shape.embedding * policy.shape.tied
        nbytes = element_bytes(self.config.train) * parameters
        return nbytes * 2 * (1 / self.assumed.pcie_gb_s + 1 / self.assumed.digest_gb_s) / GIGA

    def _passing(self, role: ModelRole, passes: float, mfu: float, moved: int) -> float:
        """The slower of arithmetic and of `moved` bytes per parameter and micro-batch through one rank's links."""
        ranks, assumed = self.config.train.data_parallel, self.assumed
        computing = passes * forward_flops(role, self.load) / (ranks * assumed.peak_tflops * TERA * mfu)
        if ranks == 1:
            return computing
        rate = assumed.link_gb_s if ranks <= self.nodes.gpus else assumed.network_gb_s
        return max(computing, self._micro_batches * moved * role.parameters / (rate * GIGA))

    def _optimizer(self, role: ModelRole, updates: int) -> float:
        train, assumed = self.config.train, self.assumed
        share = role.parameters / train.data_parallel
        if not train.offload_optimizer:
            return updates * STEP_TRAFFIC * share / (assumed.memory_gb_s * GIGA)
        # Each micro-batch's gradients go to the host, where they are kept, and back and forth to be added up.
        traffic = 3 * 4 * self._micro_batches + updates * (4 + element_bytes(train))
        ranks_per_node = min(train.data_parallel, self.nodes.gpus)
        stepping = updates * STEP_TRAFFIC * share * ranks_per_node / (assumed.host_gb_s * GIGA)
        return traffic * share / (assumed.pcie_gb_s * GIGA) + stepping

    @property
    def _micro_batches(self) -> int:
        """Of one rank, at expected lengths."""
        train = self.config.train
        return max(1, math.ceil(self.load.trained_tokens / train.data_parallel / train.tokens_per_micro_batch))
