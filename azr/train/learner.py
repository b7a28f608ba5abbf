"""From graded trajectories to updated weights: pack them once, score, estimate advantages, train critic and policy.

Legend: R response tokens of all trajectories of a step, in their order.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from azr.algorithms.advantages import (
    OWN_ESTIMATORS,
    AdvantageInputs,
    Advantages,
    constant_weights,
    estimate_advantages,
    loss_weights,
    weighting_of,
)
from azr.algorithms.losses import Sums, add_sums, mismatch_metrics, policy_metrics, value_metrics
from azr.algorithms.packing import split_mini_batches
from azr.cluster.gpu_turns import leave_gpu, return_to_gpu
from azr.concurrency import Phase
from azr.config import Config, PluginEstimator
from azr.errors import RunEnded
from azr.records import Learned, Sample
from azr.train.model_worker import StepReport
from azr.train.policy import PolicyUpdate
from azr.train.traces import gradient_factor, sampled_tokens, trace_mask
from azr.train.train_batch import PerToken, TrainBatch
from azr.train.trajectories import drop_zero_advantage, learned_of, shuffle_rewards, without_cut_off
from azr.train.worker_group import WorkerGroup

log = logging.getLogger(__name__)

MAX_SKIPPED_STEPS = 5
"""Optimizer steps of one model in a row that may be skipped; more will not help."""


class Learner:
    """Decides what policy, critic and reference do, and in which order; their ranks hold the models."""

    def __init__(
        self,
        config: Config,
        policy: WorkerGroup,
        critic: WorkerGroup | None,
        reference: WorkerGroup | None,
        phase: Phase,
    ) -> None:
        self._config, self._phase = config, phase
        self._policy, self._critic, self._reference = policy, critic, reference
        self._skipped: dict[str, float] = {}
        """Optimizer steps that were skipped since the last that was taken, by model."""
        self.learned: list[Learned | None] = []
        """Of the last `learn`, one for each of its trajectories; None for one that took no part."""

    async def learn(
        self, trajectories: Sequence[Sample], seed: int, *, critic_only: bool = False
    ) -> dict[str, dict[str, float]]:
        """One training step; metrics as `{"policy": …, "critic": …}`, the latter where there is a critic.

        ``critic_only``: the policy stays as it is.

        With ``reward.overlong`` mask, trajectories that were cut off take no part in any of it, and ``policy/masked``
        counts them. Nothing is learned in a step that has too few trajectories, say because most could not be graded,
        or over whose advantages a plug-in's estimator fails.

        An optimizer step whose loss or gradient is not finite is skipped; see `raise_if_diverged`.
        """
        if self._config.reward.overlong == "mask":
            finished = without_cut_off(trajectories)
            masked: dict[str, float] = {"masked": len(trajectories) - len(finished)}
            learned = await self._learn(finished, seed, critic_only)
            outcomes = dict(zip(map(id, finished), self.learned, strict=True))
            self.learned = [outcomes.get(id(each)) for each in trajectories]
            return learned | {"policy": learned.get("policy", {}) | masked}
        return await self._learn(trajectories, seed, critic_only)

    def _least_trajectories(self) -> int:
        """So few that every rank gets one in every optimizer step."""
        algorithm = self._config.algorithm
        return self._policy.size * max(algorithm.policy_mini_batches, algorithm.critic_mini_batches)

    async def _learn(self, trajectories: Sequence[Sample], seed: int, critic_only: bool) -> dict[str, dict[str, float]]:
        algorithm, timeout_s = self._config.algorithm, self._config.timeout.train_s
        if len(trajectories) < self._least_trajectories():
            log.warning("nothing is learned in this step, which has only %d trajectories", len(trajectories))
            self.learned = [None] * len(trajectories)
            return {"policy": {}}
        is_trace_R, of_plugin = trace_mask(trajectories), None
        if isinstance(algorithm.estimator, PluginEstimator):  # first, for it may fail
            of_plugin = await self._estimate_by_plugin(algorithm.estimator, trajectories, is_trace_R, seed)
            if of_plugin is None:
                self.learned = [None] * len(trajectories)
                return {"policy": {}}
        mini_batches = self._mini_batches(trajectories, algorithm.policy_mini_batches, seed)
        rollout_R = np.concatenate([t.completion.logprobs for t in trajectories])
        per_token = {"rollout_logprobs": torch.from_numpy(rollout_R)}
        if is_trace_R is not None:
            per_token["is_trace"] = is_trace_R
        values_R = critic_parts = critic_batch = None
        if self._critic is not None:
            critic_parts = mini_batches
            if algorithm.critic_mini_batches != algorithm.policy_mini_batches:
                critic_parts = self._mini_batches(trajectories, algorithm.critic_mini_batches, seed)
            critic_batch = self._pack(trajectories, critic_parts)
            async with self._work(self._critic, "critic values"):
                values_R = await score(self._critic, "values", critic_batch, timeout_s)
        inputs = self._advantage_inputs(trajectories, values_R, seed)
        estimate = of_plugin or self._estimate(trajectories, inputs, is_trace_R, seed)
        per_token["advantages"] = estimate.advantages_R

        metrics: dict[str, dict[str, float]] = {}
        # Traces tell the critic nothing of what the policy earns.
        if self._critic is not None and (is_trace_R is None or not is_trace_R.all()):
            assert critic_batch is not None and values_R is not None
            async with self._work(self._critic, "train critic", training=True):
                columns = {"old_values": values_R, "returns": estimate.returns_R}
                if is_trace_R is not None:
                    columns["is_trace"] = is_trace_R
                metrics["critic"] = await update_critic(self._critic, critic_batch, columns, timeout_s)
        if critic_only:
            async with self._work(self._policy, "train policy", training=True):
                self.learned = [None] * len(trajectories)
                self._skipped = {model: values["skipped_in_a_row"] for model, values in metrics.items()}
                return metrics
        kept: Sequence[Sequence[int]] = mini_batches
        if algorithm.drop_zero_advantage:
            factor_R = gradient_factor(estimate.advantages_R, is_trace_R, algorithm)
            factors = factor_R.split(list(inputs.response_lengths))
            kept = drop_zero_advantage(mini_batches, factors, self._policy.size)
        # One packing does for both where the critic takes its optimizer steps on the same mini-batches.
        batch = (critic_batch if kept is critic_parts else None) or self._pack(trajectories, kept)
        if (weights_R := self._loss_weights(inputs, mini_batches, kept)) is not None:
            per_token["loss_weights"] = weights_R
        per_token |= await self._fixed_logprobs(batch, len(rollout_R))
        async with self._work(self._policy, "train policy", training=True):
            metrics["policy"], trainer_R = await _update_policy(self._policy, batch, per_token, timeout_s)
        self.learned = learned_of(
            inputs.response_lengths, estimate.advantages_R, batch.index_R, trainer_R, rollout_R, is_trace_R
        )
        self._skipped = {model: values["skipped_in_a_row"] for model, values in metrics.items()}
        return metrics

    async def _fixed_logprobs(self, batch: TrainBatch, num_tokens: int) -> dict[str, Tensor]:
        """What the update compares the policy with, (R) by name; 0 for tokens that are not in the batch."""
        algorithm, timeout_s = self._config.algorithm, self._config.timeout.train_s
        logprobs: dict[str, Tensor] = {}
        if self._reference is not None:
            async with self._work(self._reference, "reference logprobs"):
                logprobs["reference_logprobs"] = await score(self._reference, "logprobs", batch, timeout_s)
        elif algorithm.needs_reference:
            async with self._work(self._policy, "reference logprobs"):
                logprobs["reference_logprobs"] = await score(self._policy, "reference_logprobs", batch, timeout_s)
        if algorithm.policy_mini_batches > 1:  # a single step starts from the policy as it is
            async with self._work(self._policy, "policy logprobs"):
                logprobs["old_logprobs"] = await score(self._policy, "logprobs", batch, timeout_s)
        return {name: batch.spread(values, num_tokens) for name, values in logprobs.items()}

    @asynccontextmanager
    async def _work(self, group: WorkerGroup, phase: str, training: bool = False) -> AsyncIterator[None]:
        """A phase in which this model works. Where it visits the GPU, none of its others is there then.

        The policy stays after its training, for its weights are pushed next.
        """
        timeout_s = self._config.timeout.train_s
        if group.visits_gpu:
            await return_to_gpu(group, self._phase, timeout_s, training=training)
        with self._phase(phase):
            yield
        is_alone = self._critic is None and self._reference is None
        if group.visits_gpu and not is_alone and not (group is self._policy and training):
            with self._phase("offload"):
                await leave_gpu(group, timeout_s)

    def raise_if_diverged(self) -> None:
        """Raises RunEnded after `MAX_SKIPPED_STEPS` optimizer steps of one model in a row that had to be skipped."""
        for model, skipped in self._skipped.items():
            if skipped >= MAX_SKIPPED_STEPS:
                raise RunEnded(
                    f"The last {skipped:.0f} optimizer steps of the {model} had a loss or gradient that is not finite "
                    "and were skipped, so the run ends here with the weights from before them: go on with a lower "
                    f"train.{model}_lr or train.grad_clip, or with train.dtype=float32."
                )

    def _mini_batches(self, trajectories: Sequence[Sample], count: int, seed: int) -> list[list[int]]:
        return split_mini_batches([(t.kind, t.role, t.origin) for t in trajectories], count, seed)

    def _loss_weights(
        self, inputs: AdvantageInputs, mini_batches: Sequence[Sequence[int]], kept: Sequence[Sequence[int]]
    ) -> Tensor | None:
        weighting = weighting_of(self._config.algorithm)
        if weighting != "constant":
            return loss_weights(inputs, weighting)
        max_tokens = self._config.rollout.max_response_tokens
        return constant_weights(inputs.response_lengths, mini_batches, kept, max_tokens)

    def _pack(self, trajectories: Sequence[Sample], mini_batches: Sequence[Sequence[int]]) -> TrainBatch:
        tokens = self._config.train.tokens_per_micro_batch
        return TrainBatch.build([t.completion for t in trajectories], mini_batches, self._policy.size, tokens)

    def _estimate(
        self, trajectories: Sequence[Sample], inputs: AdvantageInputs, is_trace_R: Tensor | None, seed: int
    ) -> Advantages:
        """Over all trajectories together. Where traces are imitated whatever they earned, whole ones are in no
        baseline, only sampled tokens count of the others, and tokens of traces get 0.
        """
        estimator = self._config.algorithm.estimator
        if is_trace_R is None or self._config.algorithm.off_policy.loss != "sft":
            return estimate_advantages(inputs, estimator)
        values_R = None if inputs.values_R is None else inputs.values_R[~is_trace_R]
        return estimate_advantages(self._sampled_inputs(trajectories, values_R, seed), estimator).spread(~is_trace_R)

    async def _estimate_by_plugin(
        self, estimator: PluginEstimator, trajectories: Sequence[Sample], is_trace_R: Tensor | None, seed: int
    ) -> Advantages | None:
        """As `_estimate`; None where the plug-in has no answer."""
        estimate = OWN_ESTIMATORS[estimator.function]
        if is_trace_R is None or self._config.algorithm.off_policy.loss != "sft":
            return await estimate(self._advantage_inputs(trajectories, None, seed))
        estimated = await estimate(self._sampled_inputs(trajectories, None, seed))
        return None if estimated is None else estimated.spread(~is_trace_R)

    def _sampled_inputs(self, trajectories: Sequence[Sample], values_R: Tensor | None, seed: int) -> AdvantageInputs:
        """Without what traces gave."""
        judged = [t for t in trajectories if t.origin != "trace"]
        sampled = self._advantage_inputs(judged, values_R, seed)
        return replace(sampled, response_lengths=[sampled_tokens(t) for t in judged])

    def _advantage_inputs(self, trajectories: Sequence[Sample], values_R: Tensor | None, seed: int) -> AdvantageInputs:
        rewards, kind_roles = [t.reward for t in trajectories], [(t.kind, t.role) for t in trajectories]
        return AdvantageInputs(
            rewards=shuffle_rewards(rewards, kind_roles, seed) if self._config.ablation.shuffle_rewards else rewards,
            response_lengths=[len(t.completion.response_ids) for t in trajectories],
            kind_roles=kind_roles,
            groups=[t.group for t in trajectories],
            values_R=values_R,
        )


async def score(group: WorkerGroup, method: str, batch: TrainBatch, timeout_s: float) -> Tensor:
    """What `method`, such as "logprobs", of a model says about each response token of the batch, as of `gather`."""
    args = [(ref,) for ref in batch.rank_refs]
    outputs = await group.scatter(method, args, timeout_s=timeout_s, to=f"compute {method}")
    return batch.gather(outputs)


async def update_policy(
    group: WorkerGroup, batch: TrainBatch, per_token: PerToken, timeout_s: float
) -> dict[str, float]:
    """One optimizer step of the policy per mini-batch; `per_token` (R) as in `PolicyWorker.update`.

    Returns means per token, `grad_norm` and `lr`, averaged over the steps that were taken, where any was; how many were
    not, as `skipped_steps`, and since the last that was, as `skipped_in_a_row`; `micro_batches` and `packing` of the
    batch; and as `mismatch_…` how far the engines' logprobs of what they sampled were from the policy's own before its
    first step.
    """
    return (await _update_policy(group, batch, per_token, timeout_s))[0]


async def _update_policy(
    group: WorkerGroup, batch: TrainBatch, per_token: PerToken, timeout_s: float
) -> tuple[dict[str, float], Tensor]:
    """As `update_policy`, with the policy's logprobs of the batch's tokens before its first step."""
    updates: list[PolicyUpdate] = await _update(group, batch, per_token, timeout_s)
    metrics = _mean_metrics(batch, [update.steps for update in updates], policy_metrics)
    old_R = per_token.get("old_logprobs")
    trainer_R = batch.gather([update.logprobs for update in updates]) if old_R is None else batch.select(old_R)
    known_R = trainer_R.isfinite()  # others are those of a step that was skipped
    if (is_trace_R := per_token.get("is_trace")) is not None:
        known_R &= ~batch.select(is_trace_R)
    if not known_R.any():
        return metrics, trainer_R
    mismatch = mismatch_metrics(trainer_R[known_R], batch.select(per_token["rollout_logprobs"])[known_R])
    return metrics | {f"mismatch_{name}": value for name, value in mismatch.items()}, trainer_R


async def update_critic(
    group: WorkerGroup, batch: TrainBatch, per_token: PerToken, timeout_s: float
) -> dict[str, float]:
    """One optimizer step of the critic per mini-batch; `per_token` (R) as in `CriticWorker.update`.

    Returns as `update_policy`, without the mismatch.
    """
    return _mean_metrics(batch, await _update(group, batch, per_token, timeout_s), value_metrics)


async def _update(group: WorkerGroup, batch: TrainBatch, per_token: PerToken, timeout_s: float) -> list[Any]:
    return await group.scatter("update", batch.for_ranks(per_token), timeout_s=timeout_s, to="take an optimizer step")


def _mean_metrics(
    batch: TrainBatch, ranks: Sequence[Sequence[StepReport]], metrics_of: Callable[[Sums], dict[str, float]]
) -> dict[str, float]:
    """Metrics of each optimizer step that was taken, from the sums of all ranks, averaged over these steps."""
    taken, last = [], ranks[0][-1]
    for reports in zip(*ranks, strict=True):
        if reports[0].skipped_in_a_row:
            continue
        sums: Sums = {}
        for report in reports:
            sums = add_sums(sums, report.sums)
        taken.append(metrics_of(sums) | {"grad_norm": reports[0].grad_norm, "lr": reports[0].lr})
    names = dict.fromkeys(name for step in taken for name in step)
    means = {name: fmean(step[name] for step in taken if name in step) for name in names}
    return means | {
        "skipped_steps": len(ranks[0]) - len(taken),
        "skipped_in_a_row": last.skipped_in_a_row,
        "micro_batches": batch.micro_batches,
        "packing": batch.packing,
    }
