"""What one step amounts to, in prompts, trajectories and tokens."""

from __future__ import annotations

from dataclasses import dataclass

from azr.config import Config
from azr.plan.assumptions import Assumptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """One training step. Where the funnel decides, the most there can be."""

    proposals: int
    estimate_prompts: int
    estimates: int
    """Solver samples that estimate solve rates, and those of derived tasks; one prompt each `selfplay.group_size`."""
    solves: int
    trained: int
    """Trajectories the optimizers see."""
    sure: int
    """Those of them that do not depend on the funnel; ranks divide them."""
    longest: int
    """Tokens of the longest trajectory."""
    mean_prompt: float
    mean_response: float
    """Expected tokens."""

    @property
    def prompts(self) -> int:
        """Distinct prompts that the engines read."""
        return self.proposals + self.estimate_prompts + self.solves

    @property
    def trajectories(self) -> int:
        """Responses that the engines write."""
        return self.proposals + self.estimates + self.solves

    @property
    def trained_tokens(self) -> float:
        """Expected prompt and response tokens that the optimizers see."""
        return self.trained * (self.mean_prompt + self.mean_response)

    @property
    def most_tokens(self) -> int:
        """As `trained_tokens`, if every trajectory were of full length."""
        return self.trained * self.longest

    @classmethod
    def of(cls, config: Config, assumed: Assumptions) -> Batch:
        play, rollout = config.selfplay, config.rollout
        tasks = len(play.kinds) * play.proposer_prompts
        proposals = tasks * config.ablation.new_tasks
        solves = len(play.kinds) * play.solver_prompts
        played = tasks * (1 + play.derived_tasks * len(play.kinds))
        estimates = played * play.group_size
        sure = proposals * config.ablation.train_proposer + solves
        return cls(
            proposals=proposals,
            estimate_prompts=played,
            estimates=estimates,
            solves=solves,
            trained=sure + estimates * play.train_on_estimates,
            sure=sure,
            longest=rollout.max_prompt_tokens + rollout.max_response_tokens,
            mean_prompt=assumed.prompt_fill * rollout.max_prompt_tokens,
            mean_response=assumed.response_fill * rollout.max_response_tokens,
        )
