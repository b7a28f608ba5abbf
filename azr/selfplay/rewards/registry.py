"""Reward functions by name. Another one is a file beside those below and one line here; no knob has to be added."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping

from azr.config import IntrinsicRewardConfig, RewardConfig
from azr.errors import UserError, nearest
from azr.selfplay.rewards.bonuses.answer_diversity import answer_diversity
from azr.selfplay.rewards.bonuses.complexity import complexity
from azr.selfplay.rewards.bonuses.edit_distance import edit_distance
from azr.selfplay.rewards.bonuses.halstead import halstead
from azr.selfplay.rewards.inputs import BonusInputs
from azr.selfplay.rewards.solve_rate.band import band
from azr.selfplay.rewards.solve_rate.inverse import inverse
from azr.selfplay.rewards.solve_rate.learnability import learnability
from azr.selfplay.rewards.solve_rate.variance import variance

SolveRateReward = Callable[[float, RewardConfig], float]
"""From a task's solve rate, 0 to 1, and the knobs of `reward` to what its proposer earns, bonuses aside."""
Bonus = Callable[[BonusInputs], float]
"""Raw value of a bonus, about 0 to 1; the coefficient and the cap come on top."""

SOLVE_RATE_REWARDS: dict[str, SolveRateReward] = {
    "learnability": learnability,
    "inverse": inverse,
    "variance": variance,
    "band": band,
}
"""By the value of `reward.proposer`."""
BONUSES: dict[str, Bonus] = {
    "complexity": complexity,
    "edit_distance": edit_distance,
    "halstead": halstead,
    "answer_diversity": answer_diversity,
}
"""By the name that `reward.intrinsic.bonuses` gives them."""

OWN_REWARDS: dict[str, Callable[[float, RewardConfig], Awaitable[float | None]]] = {}
"""Those of plug-ins, as above; None where one has no answer."""
OWN_BONUSES: dict[str, Callable[[BonusInputs], Awaitable[float | None]]] = {}


def bonus_coefficients(config: IntrinsicRewardConfig) -> dict[str, float]:
    """Coefficients of the bonuses that `reward.intrinsic.bonuses` names.

    Raises UserError for an entry that is not ``name:coefficient``, or whose bonus is not registered or named twice.
    """
    coefficients: dict[str, float] = {}
    for entry in config.bonuses:
        name, _, text = entry.partition(":")
        if name not in BONUSES and name not in OWN_BONUSES:
            raise UserError(_unknown("bonus", name, {**BONUSES, **OWN_BONUSES}, "reward.intrinsic.bonuses"))
        if name in coefficients:
            raise UserError(f"reward.intrinsic.bonuses names {name!r} twice: name it once.")
        try:
            coefficients[name] = float(text)
        except ValueError:
            coefficients[name] = math.nan
        if not 0 < coefficients[name] <= 1e6:
            raise UserError(
                f"reward.intrinsic.bonuses holds {entry!r}; it must be a name and a number above 0, as {name}:0.5."
            )
    return coefficients


def check_names(config: RewardConfig) -> None:
    """Raises UserError for a name that is not registered, with the one that was probably meant."""
    known = {**SOLVE_RATE_REWARDS, **OWN_REWARDS}
    if config.proposer not in known:
        raise UserError(_unknown("reward", config.proposer, known, "reward.proposer"))
    bonus_coefficients(config.intrinsic)


def _unknown(what: str, name: str, known: Mapping[str, object], knob: str) -> str:
    return f"There is no {what} {name!r}; did you mean {nearest(name, known)!r}? {knob} may name {', '.join(known)}."
