"""What proposer and solver earn (arXiv 2505.03335, equations 4 to 6), bonuses for proposals included."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from azr.config import IntrinsicRewardConfig, RewardConfig
from azr.records import Completion, Judgement, Role, Sample, Task
from azr.selfplay.rewards.inputs import BonusInputs
from azr.selfplay.rewards.registry import BONUSES, OWN_BONUSES, OWN_REWARDS, SOLVE_RATE_REWARDS, bonus_coefficients
from azr.tasks.base import RejectReason, Verdict

log = logging.getLogger(__name__)

MAX_BONUS = 0.5
OVERLONG = "overlong"
"""Name of the part of a reward that `length_penalty` gives."""


def proposer_trajectory(
    kind: str,
    id: str,
    completion: Completion,
    outcome: Task | RejectReason,
    bonuses: dict[str, float],
    config: RewardConfig,
    judgement: Judgement | None = None,
    base: float | None = None,
) -> Sample:
    """A proposal with its reward; see `proposer_reward`."""
    reward, parts = proposer_reward(outcome, bonuses, config, base)
    return Sample(
        completion=completion,
        role=Role.PROPOSER,
        kind=kind,
        problem_id=id,
        group=f"propose:{id}",
        reward=reward,
        reward_parts=parts,
        judgement=judgement,
    )


def unrewarded(role: Role, kind: str, task_id: str, group: str, completion: Completion, judgement: Judgement) -> Sample:
    """A response that earns nothing and is not trained on, for the records."""
    return Sample(
        completion=completion, role=role, kind=kind, problem_id=task_id, group=group, reward=0.0, judgement=judgement
    )


def answer_trajectory(
    kind: str,
    task_id: str,
    group: str,
    completion: Completion,
    verdict: Verdict,
    config: RewardConfig,
    judgement: Judgement | None = None,
) -> Sample:
    """A graded answer with its reward; answers to one prompt share a group."""
    reward = solver_reward(verdict, config)
    return Sample(
        completion=completion,
        role=Role.SOLVER,
        kind=kind,
        problem_id=task_id,
        group=group,
        reward=reward,
        reward_parts={str(verdict): reward},
        accuracy=float(verdict is Verdict.RIGHT),
        judgement=judgement,
    )


def with_length_penalty(trajectory: Sample, config: RewardConfig, max_tokens: int) -> Sample:
    """With ``overlong`` soft, the trajectory with `length_penalty` added to its reward and named among its parts."""
    if config.overlong != "soft":
        return trajectory
    penalty = length_penalty(len(trajectory.completion.response_ids), max_tokens, config.overlong_buffer)
    parts = trajectory.reward_parts | {OVERLONG: penalty}
    return replace(trajectory, reward=trajectory.reward + penalty, reward_parts=parts)


def length_penalty(length: int, max_tokens: int, buffer: int) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, section 3.4).

    0 up to ``max_tokens - buffer``, from there linear to -1 at ``max_tokens``.
    """
    return -min(1.0, max(0, length - (max_tokens - buffer)) / buffer)


def proposer_reward(
    outcome: Task | RejectReason, bonuses: dict[str, float], config: RewardConfig, base: float | None = None
) -> tuple[float, dict[str, float]]:
    """Reward of a proposal and its named parts: by its solve rate when it became a task, else by the reason.

    ``base``: what the solve rate pays, where a plug-in's reward has said it.
    A mere repetition is wrong, any other rejected proposal malformed. Bonuses come capped from `intrinsic_bonuses`.
    """
    if isinstance(outcome, RejectReason):
        reward = config.wrong if outcome is RejectReason.DUPLICATE else config.malformed
        return reward, {str(outcome): reward}
    assert outcome.solve_rate is not None
    if base is None:
        base = SOLVE_RATE_REWARDS[config.proposer](outcome.solve_rate, config)
    reward = combine(base, list(bonuses.values()), config.intrinsic.combine) if base > 0 else base
    return reward, {config.proposer: base, **bonuses}


def solver_reward(verdict: Verdict, config: RewardConfig) -> float:
    """1 right, ``wrong`` when well-formed, ``malformed`` otherwise. An ungraded solution has no reward."""
    assert verdict is not Verdict.UNGRADED
    return {Verdict.RIGHT: 1.0, Verdict.WRONG: config.wrong, Verdict.MALFORMED: config.malformed}[verdict]


def combine(base: float, bonuses: list[float], how: str) -> float:
    """Joins what the solve rate pays, a, with intrinsic bonuses c: a+Σc, a·Πc, a+Πc or a·Σc; without bonuses, a."""
    if not bonuses:
        return base
    return {
        "sum": base + sum(bonuses),
        "multiply": base * prod(bonuses),
        "sum_multiply": base + prod(bonuses),
        "multiply_sum": base * sum(bonuses),
    }[how]


def intrinsic_bonuses(
    task: Task, references: Sequence[Task], known: Callable[[], Sequence[Task]], config: IntrinsicRewardConfig
) -> dict[str, float]:
    """Enabled bonuses by name, those of plug-ins aside, each coefficient times raw value and at most ``MAX_BONUS``.

    ``known`` gives the tasks that answers are compared with; it is called only by a bonus that needs them.
    """
    inputs = BonusInputs(task, references, known)
    enabled = bonus_coefficients(config)
    return {
        name: min(coefficient * _raw_bonus(name, inputs), MAX_BONUS)
        for name, coefficient in enabled.items()
        if name in BONUSES
    }


@dataclass(frozen=True, slots=True)
class OwnPay:
    """What plug-ins say of a proposal."""

    base: float | None
    """By its solve rate; None where the reward is none of a plug-in."""
    bonuses: dict[str, float]
    """As `intrinsic_bonuses`."""


async def own_pay(
    task: Task, references: Sequence[Task], known: Callable[[], Sequence[Task]], config: RewardConfig
) -> OwnPay | None:
    """What the plug-ins that the config names pay for a task; None when one of them has no answer."""
    base, bonuses = None, dict[str, float]()
    if config.proposer in OWN_REWARDS:
        assert task.solve_rate is not None
        base = await OWN_REWARDS[config.proposer](task.solve_rate, config)
        if base is None:
            return None
    for name, coefficient in bonus_coefficients(config.intrinsic).items():
        if name in OWN_BONUSES:
            raw = await OWN_BONUSES[name](BonusInputs(task, references, known))
            if raw is None:
                return None
            bonuses[name] = min(coefficient * raw, MAX_BONUS)
    return OwnPay(base, bonuses)


def _raw_bonus(name: str, inputs: BonusInputs) -> float:
    """0, with the traceback in the log, for a program that the measure cannot read: no text ends a run."""
    try:
        return BONUSES[name](inputs)
    except Exception:
        log.exception("the bonus %s of task %s could not be computed and counts as 0", name, inputs.task.id)
        return 0.0
