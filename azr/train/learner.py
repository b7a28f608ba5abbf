"""From graded trajectories to updated weights: score, estimate advantages, train critic and policy."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from statistics import fmean

import torch
from torch import Tensor

from azr.algorithms.advantages import Graded, estimate_advantages
from azr.algorithms.packing import split_updates
from azr.concurrency import Phase
from azr.config import Config
from azr.records import Completion, Trajectory
from azr.train import dispatch
from azr.train.worker_group import WorkerGroup

Step = Callable[
    [WorkerGroup, Sequence[Completion], Mapping[str, Tensor], Config], Coroutine[None, None, dict[str, float]]
]
"""One optimizer step of a role on some completions."""


class Learner:
    """Owns the order of work between policy, critic and reference; the roles own the tensors."""

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

    async def learn(self, trajectories: Sequence[Trajectory], seed: int) -> dict[str, dict[str, float]]:
        """One training step; metrics of each role that was trained, by role.

        Raises ValueError when there are fewer trajectories than ranks or updates need.
        """
        columns = await self._score(trajectories)
        columns |= self._advantages(trajectories, columns, seed)
        metrics: dict[str, dict[str, float]] = {}
        if self._critic is not None:
            with self._phase("train critic"):
                critic_parts = self._parts(trajectories, self._config.algorithm.critic_mini_batches, seed)
                metrics["critic"] = await self._update(
                    dispatch.update_critic, self._critic, trajectories, columns, critic_parts
                )
        with self._phase("train policy"):
            parts: Sequence[Sequence[int]] = self._parts(trajectories, self._config.algorithm.policy_mini_batches, seed)
            if self._config.algorithm.drop_zero_advantage:
                lengths = [len(t.completion.response_ids) for t in trajectories]
                parts = with_advantages(parts, columns["advantages"].split(lengths), self._policy.size)
            metrics["policy"] = await self._update(dispatch.update_policy, self._policy, trajectories, columns, parts)
        return metrics

    async def _score(self, trajectories: Sequence[Trajectory]) -> dict[str, Tensor]:
        """What the three networks think of every response token before anything is updated."""
        completions = [t.completion for t in trajectories]
        config, columns = self._config, {}
        if self._critic is not None:
            with self._phase("critic values"):
                columns["values"] = await dispatch.values(self._critic, completions, config)
        if self._reference is not None:
            with self._phase("reference logprobs"):
                columns["reference_logprobs"] = (await dispatch.logprobs(self._reference, completions, config)).logprobs
        if self._needs_old_logprobs:
            with self._phase("policy logprobs"):
                columns["old_logprobs"] = (await dispatch.logprobs(self._policy, completions, config)).logprobs
        return columns

    @property
    def _needs_old_logprobs(self) -> bool:
        """A single update starts from the policy that sampled, so its own logprobs are the old ones."""
        return self._config.algorithm.policy_mini_batches > 1

    def _advantages(
        self, trajectories: Sequence[Trajectory], columns: Mapping[str, Tensor], seed: int
    ) -> dict[str, Tensor]:
        rewards, strata = [t.reward for t in trajectories], [(t.kind, t.role) for t in trajectories]
        graded = Graded(
            rewards=shuffled(rewards, strata, seed) if self._config.ablation.shuffle_rewards else rewards,
            response_lengths=[len(t.completion.response_ids) for t in trajectories],
            strata=strata,
            groups=[t.group for t in trajectories],
            values_R=columns.get("values"),
        )
        found = estimate_advantages(graded, self._config.algorithm)
        return {"advantages": found.advantages_R, "returns": found.returns_R}

    def _parts(self, trajectories: Sequence[Trajectory], parts: int, seed: int) -> list[list[int]]:
        if parts == 1:
            return [list(range(len(trajectories)))]
        return split_updates([(t.kind, t.role) for t in trajectories], parts, seed)

    async def _update(
        self,
        step: Step,
        group: WorkerGroup,
        trajectories: Sequence[Trajectory],
        columns: Mapping[str, Tensor],
        parts: Sequence[Sequence[int]],
    ) -> dict[str, float]:
        """One optimizer step per part; metrics are means over the steps."""
        lengths = [len(t.completion.response_ids) for t in trajectories]
        split = {column: values.split(lengths) for column, values in columns.items()}
        reports = []
        for part in parts:
            own = {column: torch.cat([values[i] for i in part]) for column, values in split.items()}
            reports.append(await step(group, [trajectories[i].completion for i in part], own, self._config))
        return {key: fmean(report[key] for report in reports) for key in reports[0]}


def with_advantages(parts: Sequence[Sequence[int]], advantages: Sequence[Tensor], ranks: int) -> list[Sequence[int]]:
    """Each part without the trajectories whose advantages are all 0, unless that leaves fewer than there are ranks."""
    found = []
    for part in parts:
        kept = [number for number in part if advantages[number].any()]
        found.append(kept if len(kept) >= ranks else part)
    return found


def shuffled(rewards: Sequence[float], strata: Sequence[Hashable], seed: int) -> list[float]:
    """Rewards in random order within each stratum (across groups), so that they say nothing about their trajectory."""
    rng = random.Random(f"rewards/{seed}")
    owners: dict[Hashable, list[int]] = {}
    for number, stratum in enumerate(strata):
        owners.setdefault(stratum, []).append(number)
    found = list(rewards)
    for own in owners.values():
        for number, other in zip(own, rng.sample(own, len(own)), strict=True):
            found[number] = rewards[other]
    return found
