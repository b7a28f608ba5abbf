"""Rewards of proposer and solver (arXiv 2505.03335, equations 4 to 6), with bonuses for proposals and a length penalty.

Add a reward of a solve rate or a bonus here: one function and one line of its registry. No option has to be added.
"""

from __future__ import annotations

import ast
import difflib
import logging
import math
from collections.abc import Callable, Sequence
from math import prod

from radon.complexity import cc_visit
from radon.metrics import h_visit

from azr.config import IntrinsicRewardConfig, RewardConfig
from azr.errors import UserError
from azr.records import Judgement, Sample, Task
from azr.registry import Registry
from azr.tasks.base import REPEATED, RejectReason, Verdict

log = logging.getLogger(__name__)

BAND = 0.25, 0.75
"""Solve rates that `band` rewards, both included."""
MAX_BONUS = 0.5
MAX_COMPARED = 10_000
"""Characters of two syntax trees that `edit_distance` compares exactly."""
NOVELTY = "novelty"
"""Name of the part of a reward that a program's shape costs, see `reward.novelty`."""
OVERLONG = "overlong"
"""Name of the part of a reward that `length_penalty` gives."""


def learnability(solve_rate: float, config: RewardConfig) -> float:
    """1 - s for 0 < s < 1, ``unlearnable`` at both ends: the paper's reward (equation 4)."""
    return 1.0 - solve_rate if 0.0 < solve_rate < 1.0 else config.unlearnable


def inverse(solve_rate: float, config: RewardConfig) -> float:
    """1 - s for s < 1, ``unlearnable`` at s = 1. Tasks that are never solved earn most."""
    return 1.0 - solve_rate if solve_rate < 1.0 else config.unlearnable


def variance(solve_rate: float, config: RewardConfig) -> float:
    """4 s (1 - s), the variance of one right or wrong answer scaled to at most 1; ``unlearnable`` at both ends."""
    return 4.0 * solve_rate * (1.0 - solve_rate) if 0.0 < solve_rate < 1.0 else config.unlearnable


def band(solve_rate: float, config: RewardConfig) -> float:
    """1 inside `BAND`, 0 outside it, ``unlearnable`` at s = 0 and s = 1."""
    if solve_rate in (0.0, 1.0):
        return config.unlearnable
    return float(BAND[0] <= solve_rate <= BAND[1])


Known = Callable[[], Sequence[Task]]
"""Returns the stored tasks of a kind. They cost time, so only a bonus that needs them calls it."""


def complexity(task: Task, references: Sequence[Task], known: Known) -> float:
    """Cyclomatic complexity of the program over 15."""
    return float(sum(block.complexity for block in cc_visit(task.program))) / 15


def edit_distance(task: Task, references: Sequence[Task], known: Known) -> float:
    """Mean over the references of one minus the similarity of the two syntax trees; 0 without references."""
    if not references:
        return 0.0
    trees = [ast.dump(ast.parse(reference.program)) for reference in references]
    tree = ast.dump(ast.parse(task.program))
    ratios = []
    for other in trees:
        matcher = difflib.SequenceMatcher(None, tree, other)
        # Of long ones an upper bound, for the time grows with the square of their lengths.
        ratios.append(matcher.ratio() if len(tree) + len(other) <= MAX_COMPARED else matcher.quick_ratio())
    return 1 - sum(ratios) / len(ratios)


def halstead(task: Task, references: Sequence[Task], known: Known) -> float:
    """Half effort (of 10,000), three tenths complexity (of 10), two tenths volume (of 500), each at most 1."""
    total = h_visit(task.program).total
    cyclomatic = max((block.complexity for block in cc_visit(task.program)), default=1)
    return 0.5 * min(total.effort / 10_000, 1) + 0.3 * min(cyclomatic / 10, 1) + 0.2 * min(total.volume / 500, 1)


def answer_diversity(task: Task, references: Sequence[Task], known: Known) -> float:
    """One minus the frequency of the task's first output among those of the known tasks."""
    stored = known()
    return 1 - sum(other.outputs[0] == task.outputs[0] for other in stored) / max(len(stored), 1)


SOLVE_RATE_REWARDS = Registry[Callable[[float, RewardConfig], float | None]](
    "reward",
    {"learnability": learnability, "inverse": inverse, "variance": variance, "band": band},
    "reward.proposer may name",
)
"""By the value of `reward.proposer`: from a task's solve rate, 0 to 1, to its proposer's reward without bonuses. Those
of plug-ins return None if they fail, and so do their bonuses."""
BONUSES = Registry[Callable[[Task, Sequence[Task], Known], float | None]](
    "bonus",
    {
        "complexity": complexity,
        "edit_distance": edit_distance,
        "halstead": halstead,
        "answer_diversity": answer_diversity,
    },
    "reward.intrinsic.bonuses may name",
)
"""By the name in `reward.intrinsic.bonuses`: from a proposed task, the tasks that its prompt showed, if any, and a
function that returns the stored ones to a raw value, about 0 to 1; coefficient and cap are applied to it."""


def bonus_coefficients(config: IntrinsicRewardConfig) -> dict[str, float]:
    """Return the coefficients of the bonuses that `reward.intrinsic.bonuses` names. Raises UserError for an entry that
    is not ``name:coefficient``, or whose bonus is not registered or named twice."""
    coefficients: dict[str, float] = {}
    for entry in config.bonuses:
        name, _, text = entry.partition(":")
        BONUSES.find(name)
        if name in coefficients:
            raise UserError(f"reward.intrinsic.bonuses names {name!r} twice: name it once.")
        try:
            coefficients[name] = float(text)
        except ValueError:
            coefficients[name] = math.nan
        if not 0 < coefficients[name] <= 1e6:
            raise UserError(
                f"reward.intrinsic.bonuses holds {entry!r}; it must be a name and a number above 0 and up to 1e6, as "
                f"{name}:0.5."
            )
    return coefficients


def check_names(config: RewardConfig) -> None:
    SOLVE_RATE_REWARDS.find(config.proposer)
    if config.proposer in bonus_coefficients(config.intrinsic):
        raise UserError(
            f"{config.proposer!r} is both reward.proposer and the name of a bonus, so a record could not tell them "
            "apart: rename one of the two."
        )


def reward_proposal(
    sample: Sample,
    outcome: Task | RejectReason,
    references: Sequence[Task],
    known: Known,
    times_seen: int,
    config: RewardConfig,
    max_tokens: int,
) -> None:
    """Set the reward of a proposal and mark it as trained on.

    A task is rewarded by its solve rate. A repeat gets `reward.repeat`, or else counts as wrong; any other rejected
    proposal counts as malformed. One that is held out, without `reward.repeat`, stays as it is; so does a task if a
    plug-in that the config names fails. ``references``, ``known``: see `BONUSES`; ``times_seen``: stored tasks with a
    program of its shape; ``max_tokens``: longest response.
    """
    if isinstance(outcome, RejectReason):
        if outcome is RejectReason.IN_BENCHMARK and config.repeat is None:
            return
        reward = config.malformed
        if outcome in REPEATED:
            reward = config.wrong if config.repeat is None else config.repeat
        _set_reward(sample, reward, {str(outcome): reward}, config, max_tokens)
        return
    assert outcome.solve_rate is not None
    base = SOLVE_RATE_REWARDS[config.proposer](outcome.solve_rate, config)
    if base is None:
        return
    bonuses = intrinsic_bonuses(outcome, references, known, config.intrinsic)
    if bonuses is None:
        return
    parts, reward = {config.proposer: base, **bonuses}, base
    if base > 0:
        reward = combine(base, list(bonuses.values()), config.intrinsic.combine)
        if config.novelty:
            parts[NOVELTY] = reward * config.novelty * ((1 + times_seen) ** -0.5 - 1)
            reward += parts[NOVELTY]
    _set_reward(sample, reward, parts, config, max_tokens)


def reward_answer(sample: Sample, config: RewardConfig, max_tokens: int) -> None:
    """Set the reward of a graded answer and mark it as trained on; an ungraded one stays as it is."""
    if sample.accuracy is not None:
        score = None if sample.judgement is None else sample.judgement.score
        reward = solver_reward(Verdict(sample.verdict), config, score)
        _set_reward(sample, reward, {sample.verdict: reward}, config, max_tokens)


def can_teach(answers: Sequence[Sample]) -> bool:
    """Whether graded answers to one problem differ in score."""
    return len({score_of(each.judgement) for each in answers if each.judgement and each.accuracy is not None}) > 1


def score_of(judgement: Judgement) -> float:
    """Return the grader's number, or 1 for right and 0 for others."""
    return float(judgement.verdict == Verdict.RIGHT) if judgement.score is None else judgement.score


def mark_unlearnable_group(answers: Sequence[Sample]) -> None:
    """Mark graded answers as not to be trained on."""
    for each in answers:
        if each.accuracy is not None:
            each.used = "unlearnable"


def _set_reward(sample: Sample, reward: float, parts: dict[str, float], config: RewardConfig, max_tokens: int) -> None:
    sample.reward, sample.reward_parts, sample.used = reward, parts, "trained"
    if isinstance(config.overlong, int):
        penalty = length_penalty(len(sample.completion.response_ids), max_tokens, config.overlong)
        sample.reward, sample.reward_parts = reward + penalty, parts | {OVERLONG: penalty}


def length_penalty(length: int, max_tokens: int, buffer: int) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, section 3.4).

    0 up to ``max_tokens - buffer``, from there linear to -1 at ``max_tokens``.
    """
    return -min(1.0, max(0, length - (max_tokens - buffer)) / buffer)


def solver_reward(verdict: Verdict, config: RewardConfig, score: float | None = None) -> float:
    """1 right, ``wrong`` when well-formed, ``malformed`` otherwise; in proportion to the score of a row's grader, if
    any. An ungraded solution has no reward."""
    assert verdict is not Verdict.UNGRADED
    if verdict is not Verdict.MALFORMED and score not in (None, 1.0):
        return config.wrong + (1.0 - config.wrong) * score
    return {Verdict.RIGHT: 1.0, Verdict.WRONG: config.wrong, Verdict.MALFORMED: config.malformed}[verdict]


def combine(base: float, bonuses: list[float], how: str) -> float:
    """Combine the solve rate's reward a with bonuses c: a+Σc, a·Πc, a+Πc or a·Σc; without bonuses, a."""
    if not bonuses:
        return base
    return {
        "sum": base + sum(bonuses),
        "multiply": base * prod(bonuses),
        "sum_multiply": base + prod(bonuses),
        "multiply_sum": base * sum(bonuses),
    }[how]


def intrinsic_bonuses(
    task: Task, references: Sequence[Task], known: Known, config: IntrinsicRewardConfig
) -> dict[str, float] | None:
    """Return the enabled bonuses by name: coefficient times raw value, at most ``MAX_BONUS``.

    A bonus that cannot read the program counts as 0, with the traceback in the log. None if one of a plug-in fails.
    """
    bonuses = dict[str, float]()
    for name, coefficient in bonus_coefficients(config).items():
        try:
            raw = BONUSES[name](task, references, known)
        except Exception:  # no text of a model ends a run
            log.exception("the bonus %s of task %s could not be computed and counts as 0", name, task.id)
            raw = 0.0
        if raw is None:
            return None
        bonuses[name] = min(coefficient * raw, MAX_BONUS)
    return bonuses
