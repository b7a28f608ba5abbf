"""One training step: from a step's samples with rewards to updated weights, with critic and reference where there are.

Legend: R response tokens of all samples of a step, in their order.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor

from azr.algorithms.advantages import estimate_advantages, loss_weights
from azr.algorithms.batch import Batch
from azr.algorithms.losses import Sums, add_sums, mismatch_metrics, policy_metrics, value_metrics
from azr.algorithms.packing import split_mini_batches, without_samples
from azr.cluster.gpu_turns import leave_gpu, return_to_gpu
from azr.concurrency import Phase
from azr.config import Config, Estimator
from azr.errors import RunEnded
from azr.records import Completion, Sample
from azr.tasks.base import teaches_nothing
from azr.train.model_worker import StepReport
from azr.train.train_batch import TrainBatch
from azr.train.worker_group import WorkerGroup

log = logging.getLogger(__name__)

MAX_SKIPPED_STEPS = 5
"""Optimizer steps of one model in a row that may be skipped; more will not help."""

MiniBatches = Sequence[Sequence[int]]
"""Indices of samples, by optimizer step."""


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
        self.estimator: Estimator = replace(config.algorithm.estimator)  # type: ignore[type-var]  # a dataclass
        """The config's, with a state of its own."""
        self._computed: dict[str, float] = {}
        """Tokens that the models computed in a step, by phase."""
        self._skipped: dict[str, float] = {}
        """Optimizer steps that were skipped since the last that was taken, by model."""

    async def learn(
        self, samples: Sequence[Sample], step: int, *, critic_only: bool = False
    ) -> dict[str, dict[str, float]]:
        """Take a training step. Writes `used`, `advantage` and `mismatch` of the samples, which all have a reward.

        Returns metrics as `{"policy": …, "critic": …, "computed_tokens": …}`: the critic's if there is one, and
        tokens of the micro-batches by phase. ``critic_only``: the policy is not updated.

        With ``reward.overlong`` mask, samples that were cut off take no part in any of it, and ``policy/masked`` counts
        them. DAPO's overlong filtering (arXiv 2503.14476, section 3.4) goes as far as the loss. Here, the estimators do
        not see cut-off responses either: the baseline of the others would otherwise hold their penalty, and more so the
        longer they are, and reward every finished response, malformed ones included, for being shorter. The critic is
        not fitted to returns that say nothing of what would have come.

        Nothing is learned in a step that has too few samples, say because most could not be graded, or over whose
        advantages a plug-in's estimator fails. An optimizer step whose loss or gradient is not finite is skipped; see
        `raise_if_diverged`.
        """
        is_masking = self._config.reward.overlong == "mask"
        for sample in samples:
            is_masked = is_masking and sample.finish_reason == "length"
            sample.used = "cut off" if is_masked else "recorded"
        finished = [sample for sample in samples if sample.used == "recorded"]
        self._computed = {}
        metrics = await self._learn(finished, step, critic_only)
        metrics["computed_tokens"] = self._computed
        if is_masking:
            metrics["policy"] = metrics.get("policy", {}) | {"masked": len(samples) - len(finished)}
        return metrics

    async def _learn(self, samples: Sequence[Sample], step: int, critic_only: bool) -> dict[str, dict[str, float]]:
        algorithm, seed, timeout_s = self._config.algorithm, self._config.run.seed + step, self._config.timeout.train_s
        # Every rank needs a sample in every optimizer step.
        if len(samples) < self._policy.size * max(algorithm.policy_mini_batches, algorithm.critic_mini_batches):
            log.warning("nothing is learned in this step, which has only %d trajectories", len(samples))
            return {"policy": {}}
        capped = [self._config.reward.repeat is not None and teaches_nothing(sample) for sample in samples]
        batch, completions = Batch.from_samples(samples, capped), [sample.completion for sample in samples]
        labels = [(sample.kind, sample.role, sample.origin) for sample in samples]
        policy_parts = critic_parts = split_mini_batches(labels, algorithm.policy_mini_batches, seed)
        if algorithm.critic_mini_batches != algorithm.policy_mini_batches:
            critic_parts = split_mini_batches(labels, algorithm.critic_mini_batches, seed)
        critic_batch = None
        if self._critic is not None:
            critic_batch = self._pack(completions, critic_parts)
            async with self._work(self._critic, "critic values", critic_batch):
                batch.values_R = await score(self._critic, "values", critic_batch, timeout_s)
        if algorithm.needs_reference and algorithm.kl.where == "reward":
            packed = critic_batch if policy_parts is critic_parts else None
            await self._score_reference(batch, packed or self._pack(completions, policy_parts))
            batch.charge_kl(algorithm.kl)
        if not self._estimate(batch, seed):
            return {"policy": {}}

        metrics: dict[str, dict[str, float]] = {}
        # Traces tell the critic nothing of what the policy earns.
        if self._critic is not None and critic_batch is not None and not batch.only_traces:
            async with self._work(self._critic, "train critic", critic_batch, training=True):
                metrics["critic"] = await update_critic(self._critic, critic_batch, batch.critic_columns(), timeout_s)
        if critic_only:
            async with self._work(self._policy, "train policy", None, training=True):
                pass  # on the GPU, since its weights are pushed next
        else:
            kept: MiniBatches = policy_parts
            if algorithm.drop_zero_advantage:
                kept = without_samples(policy_parts, batch.has_gradient(algorithm), self._policy.size)
            # One packing does for both models if the critic takes its optimizer steps on the same mini-batches.
            same = critic_batch if kept is critic_parts else None
            packed = same or self._pack(completions, kept)
            longest = self._config.rollout.max_response_tokens
            batch.loss_weights_R = loss_weights(batch, algorithm, policy_parts, kept, longest)
            metrics["policy"], logprobs_R = await self._update_policy(batch, packed, step)
            if (entropy := batch.sampled_entropy) is not None:
                metrics["policy"]["entropy"] = entropy
            batch.write_results(samples, logprobs_R)
        for sample in samples:
            sample.used = "trained"
        self._skipped = {model: values["skipped_in_a_row"] for model, values in metrics.items()}
        return metrics

    def _pack(self, completions: Sequence[Completion], mini_batches: MiniBatches) -> TrainBatch:
        tokens = self._config.train.tokens_per_micro_batch
        return TrainBatch.build(completions, mini_batches, self._policy.size, tokens)

    def _estimate(self, batch: Batch, seed: int) -> bool:
        """Fill in advantages and returns, over all samples together. Returns False if a plug-in's estimator fails.

        Traces that are imitated (`off_policy.loss` sft) are in no baseline, and their tokens get 0.
        """
        left_out_R = batch.is_trace_R if self._config.algorithm.off_policy.loss == "sft" else None
        seen = batch if left_out_R is None else batch.sampled_part()
        if self._config.ablation.shuffle_rewards:
            seen = seen.with_shuffled_rewards(seed)
        advantages_R, returns_R = estimate_advantages(seen, self.estimator)
        if advantages_R is None:
            return False
        if left_out_R is not None:
            advantages_R = _scattered(advantages_R, ~left_out_R)
            returns_R = None if returns_R is None else _scattered(returns_R, ~left_out_R)
        batch.advantages_R, batch.returns_R = advantages_R, returns_R
        return True

    async def _update_policy(self, batch: Batch, packed: TrainBatch, step: int) -> tuple[dict[str, float], Tensor]:
        """Fill in the log-probabilities that the update compares with, then update; returns as `update_policy`."""
        config, algorithm, trace = self._config, self._config.algorithm, ""
        if algorithm.needs_reference and batch.reference_logprobs_R is None:
            await self._score_reference(batch, packed)
        if algorithm.policy_mini_batches > 1:  # a single step starts from the policy as it is
            async with self._work(self._policy, "policy logprobs", packed):
                batch.old_logprobs_R = await score(self._policy, "logprobs", packed, config.timeout.train_s)
        if step == config.train.profile_step:
            trace = str(Path(config.run.root, config.run.name, f"profile_{step}.json.gz").absolute())
        async with self._work(self._policy, "train policy", packed, training=True):
            columns = batch.policy_columns(algorithm)
            return await update_policy(self._policy, packed, columns, config.timeout.train_s, trace)

    async def _score_reference(self, batch: Batch, packed: TrainBatch) -> None:
        """Fill in the reference policy's log-probabilities of what was packed."""
        # A run that trains adapters has no reference model: the policy without them is the same.
        model = self._reference or self._policy
        method = "logprobs" if self._reference else "reference_logprobs"
        async with self._work(model, "reference logprobs", packed):
            batch.reference_logprobs_R = await score(model, method, packed, self._config.timeout.train_s)

    @asynccontextmanager
    async def _work(
        self, group: WorkerGroup, phase: str, packed: TrainBatch | None, training: bool = False
    ) -> AsyncIterator[None]:
        """Phase in which this model works on a batch. If it visits the GPU, no other model is there meanwhile.

        The policy stays after its training, for its weights are pushed next.
        """
        timeout_s = self._config.timeout.train_s
        if group.visits_gpu:
            await return_to_gpu(group, self._phase, timeout_s, training=training)
        if packed is not None:
            self._computed[phase] = packed.computed
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
                    "and were skipped, so the run ends here with the weights from before them: continue with a lower "
                    f"train.{model}_lr or train.grad_clip, or with train.dtype=float32."
                )


def _scattered(x_R: Tensor, among_R: Tensor) -> Tensor:
    """Return the numbers at the tokens of ``among_R``, bool, in their order, and 0 elsewhere."""
    return torch.zeros(len(among_R)).masked_scatter(among_R, x_R)


async def score(group: WorkerGroup, method: str, batch: TrainBatch, timeout_s: float) -> Tensor:
    """Call `method` of a model, such as "logprobs", on the batch. Returns a column (R), NaN for what was not packed."""
    args = [(ref,) for ref in batch.rank_refs]
    outputs = await group.scatter(method, args, timeout_s=timeout_s, to=f"compute {method}")
    return batch.column(outputs)


async def update_policy(
    group: WorkerGroup, batch: TrainBatch, columns: Mapping[str, Tensor], timeout_s: float, trace: str = ""
) -> tuple[dict[str, float], Tensor]:
    """Take one optimizer step of the policy per mini-batch; `columns` (R) as in `Batch.policy_columns`.

    `trace`: file for a profile of the update, whose table goes to the log, if one is wanted.

    Returns metrics, and the policy's log-probabilities (R) before its first step, NaN for tokens that were not packed.

    The metrics are means per token, `grad_norm` and `lr`, averaged over the steps that were taken, if any was; how many
    were not, as `skipped_steps`, and since the last that was, as `skipped_in_a_row`; `micro_batches` and `packing` of
    the batch; and as `mismatch_…` how far the engines' logprobs of what they sampled were from the policy's.
    """
    args = [(*of_rank, trace) for of_rank in batch.for_ranks(columns)]
    updates = await group.scatter("update", args, timeout_s=timeout_s, to="take an optimizer step")
    ranks, logprobs, tables = zip(*updates, strict=True)
    if trace:
        log.info("profile of the policy's update, with a trace in %s:\n%s", trace, tables[0])
    metrics = _mean_metrics(batch, ranks, policy_metrics)
    rollout_R, is_trace_R = columns["rollout_logprobs"], columns.get("is_trace")
    logprobs_R = columns.get("old_logprobs")
    if logprobs_R is None:
        logprobs_R = batch.column(logprobs)
    known_R = logprobs_R.isfinite()  # not finite: not packed, or of a step that was skipped
    if is_trace_R is not None:
        known_R &= ~is_trace_R
    mismatch = mismatch_metrics(logprobs_R[known_R], rollout_R[known_R]) if known_R.any() else {}
    return metrics | {f"mismatch_{name}": value for name, value in mismatch.items()}, logprobs_R


async def update_critic(
    group: WorkerGroup, batch: TrainBatch, columns: Mapping[str, Tensor], timeout_s: float
) -> dict[str, float]:
    """Take one optimizer step of the critic per mini-batch; `columns` (R) as in `Batch.critic_columns`.

    Returns metrics as `update_policy`, without the mismatch.
    """
    ranks = await group.scatter("update", batch.for_ranks(columns), timeout_s=timeout_s, to="take an optimizer step")
    return _mean_metrics(batch, ranks, value_metrics)


def _mean_metrics(
    batch: TrainBatch, ranks: Sequence[Sequence[StepReport]], metrics_of: Callable[[Sums], dict[str, float]]
) -> dict[str, float]:
    """Average the metrics of the optimizer steps that were taken, each from the sums of all ranks."""
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
