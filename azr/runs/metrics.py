"""One flat dict of numbers from what happened in a step. A quantity that was not measured has no key.

Names are paths: ``<kind>/<role>/<quantity>``, or ``<part>/<quantity>`` for what concerns the whole step.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from azr.records import FinishReason, Sample
from azr.runs.timing import StepTiming
from azr.selfplay.play import ProposalStats
from azr.selfplay.rewards.pay import OVERLONG
from azr.tasks.base import RejectReason

Value = float | int | list[int]
Metrics = dict[str, Value]
EVAL = "eval/"
"""Begins the names of evaluation results; see `azr.evaluation.scores.metrics`."""
FEW_GROUPS = 4
"""Groups of a suite that a summary shows."""
_MEAN = re.compile(r"mean@\d+")


def step_metrics(
    trajectories: Sequence[Sample],
    funnels: Mapping[str, ProposalStats],
    group_size: int,
    parts: Mapping[str, Mapping[str, float | None]],
) -> Metrics:
    """Everything known about a step.

    ``parts`` holds other measurements, e.g. ``{"policy": {"loss": 0.1}, "seconds": {"solve": 3.2}}``; a value of None
    was not measured and is left out.
    """
    metrics = trajectory_metrics(trajectories)
    for kind, funnel in funnels.items():
        metrics |= funnel_metrics(kind, funnel, group_size)
    for part, values in parts.items():
        metrics |= {f"{part}/{name}": value for name, value in values.items() if value is not None}
    return metrics


def start_metrics(timing: StepTiming, engine_seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds until a run could play: of all, of each phase, and of the phases of an engine's start by its name."""
    phases = {name.removeprefix("start "): seconds for name, seconds in timing.seconds.items()}
    return {"all": timing.wall_s} | phases | {f"engines/{name}": seconds for name, seconds in engine_seconds.items()}


def trajectory_metrics(trajectories: Sequence[Sample]) -> Metrics:
    """Means per kind and role; lengths in tokens, ``truncated`` and ``accuracy`` as shares, ``overlong`` of what length
    cost where it did. What a trace wrote or began is apart, as ``<kind>/<role>/trace/…`` and ``…/prefix/…``.

    ``weight_version`` is the newest that sampled any of them.
    """
    players: defaultdict[str, list[Sample]] = defaultdict(list)
    for trajectory in trajectories:
        players[trajectory.player].append(trajectory)
    metrics: Metrics = {}
    for player, played in sorted(players.items()):
        completions = [trajectory.completion for trajectory in played]
        graded = [trajectory.accuracy for trajectory in played if trajectory.accuracy is not None]
        metrics[f"{player}/trajectories"] = len(played)
        metrics[f"{player}/reward"] = _mean([trajectory.reward for trajectory in played])
        metrics[f"{player}/response_length"] = _mean([len(c.response_ids) for c in completions])
        metrics[f"{player}/truncated"] = _mean([c.finish_reason is FinishReason.LENGTH for c in completions])
        if graded:
            metrics[f"{player}/accuracy"] = _mean(graded)
        if penalties := [t.reward_parts[OVERLONG] for t in played if OVERLONG in t.reward_parts]:
            metrics[f"{player}/{OVERLONG}"] = _mean(penalties)
    if newest := [int(t.sampled_versions[-1]) for t in trajectories if len(t.sampled_versions)]:
        metrics["weight_version"] = max(newest)
    return metrics


def funnel_metrics(kind: str, funnel: ProposalStats, group_size: int) -> Metrics:
    """Counts of every step of the proposal funnel and what the solve rates of the survivors look like.

    Bin b of ``solve_rate_hist`` counts tasks of which b of ``group_size`` attempts were right. Proposals that
    the executor lost are in no rate.
    """
    player = f"{kind}/proposer"
    rejected = {reason: funnel.rejected.get(reason, 0) for reason in RejectReason}
    valid = funnel.proposed - sum(rejected.values())
    judged = funnel.proposed - rejected[RejectReason.LOST]
    metrics: Metrics = {f"{player}/funnel/proposed": funnel.proposed, f"{player}/funnel/valid": valid}
    metrics |= {f"{player}/funnel/{reason}": count for reason, count in rejected.items()}
    if judged:
        metrics[f"{player}/valid_rate"] = valid / judged
    if funnel.solve_rates:
        histogram = [0] * (group_size + 1)
        for rate in funnel.solve_rates:
            histogram[round(rate * group_size)] += 1
        metrics[f"{player}/solve_rate_hist"] = histogram
        metrics[f"{player}/solve_rate"] = _mean(funnel.solve_rates)
        metrics[f"{player}/learnable_rate"] = _mean([0.0 < rate < 1.0 for rate in funnel.solve_rates])
    return metrics


def throughput(tokens: Mapping[str, int], seconds: Mapping[str, float]) -> dict[str, float]:
    """Tokens per second of the phases that took time."""
    return {phase: count / seconds[phase] for phase, count in tokens.items() if seconds.get(phase, 0.0) > 0.0}


def valid_rate(metrics: Metrics) -> float | None:
    """Share of valid proposals over all kinds; None when nothing was judged."""
    valid = _total(metrics, "/proposer/funnel/valid")
    judged = _total(metrics, "/proposer/funnel/proposed") - _total(metrics, f"/proposer/funnel/{RejectReason.LOST}")
    return valid / judged if judged else None


def solve_rates(metrics: Metrics) -> dict[str, float]:
    """Solver accuracy of every kind that was played."""
    suffix = "/solver/accuracy"
    return {name.removesuffix(suffix): scalar(metrics, name) for name in metrics if name.endswith(suffix)}


def has_eval(metrics: Metrics) -> bool:
    """Whether there was an evaluation after the step."""
    return any(name.startswith(EVAL) for name in metrics)


def eval_shares(metrics: Metrics) -> dict[str, float]:
    """Right answers in the evaluation of every suite, and of its groups where they are few: ``exam``,
    ``exam, deduction``. At temperature 1 where samples were taken, else greedily.
    """
    names = [name for name in metrics if name.startswith(EVAL)]
    ends = [name.rpartition("/")[2] for name in names]
    measure = next((end for end in ends if _MEAN.fullmatch(end)), "greedy")
    paths = [name.split("/")[1:-1] for name, end in zip(names, ends, strict=True) if end == measure]
    few = Counter(path[0] for path in paths if len(path) == 2)
    shown = [path for path in paths if len(path) == 1 or (len(path) == 2 and few[path[0]] <= FEW_GROUPS)]
    return {", ".join(path): scalar(metrics, "/".join([EVAL[:-1], *path, measure])) for path in shown}


def scalar(metrics: Metrics, name: str) -> float:
    """A metric that is a single number."""
    value = metrics[name]
    assert not isinstance(value, list)
    return float(value)


def check_finite(step: int, metrics: Metrics) -> None:
    """Stops a run that has diverged before its numbers are written.

    Raises:
        RuntimeError: a metric is NaN or infinite.
    """
    for name, value in metrics.items():
        if not isinstance(value, list) and not math.isfinite(value):
            raise RuntimeError(
                f"{name} is {value} in step {step}, so training has diverged: lower the learning rate or "
                "train.grad_clip, or set train.dtype to float32."
            )


def _total(metrics: Metrics, suffix: str) -> float:
    return sum(scalar(metrics, name) for name in metrics if name.endswith(suffix))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
