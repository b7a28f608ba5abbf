"""The metrics of a step as one flat dict, and the time of its phases. A quantity that was not measured has no key.

Names are paths: ``<kind>/<role>/<quantity>``, or ``<part>/<quantity>`` for what concerns the whole step.
"""

from __future__ import annotations

import math
import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from azr.records import CHAIN, COPIED, REPEATS, ROLES, VALID, Role, Sample, grouped
from azr.selfplay.rewards import OVERLONG
from azr.tasks.base import RejectReason, Verdict

if TYPE_CHECKING:
    from azr.cluster.weight_sync import PushReport

Value = float | int | list[int]
Metrics = dict[str, Value]
StepParts = Mapping[str, Mapping[str, float | None]]
"""Numbers of a step by part and name; None was not measured."""
EVAL = "eval/"
"""Begins the names of evaluation results; see `azr.evaluation.scores.metrics`."""
FEW_GROUPS = 4
"""Groups of a suite that a summary shows."""
_MEAN = re.compile(r"mean@\d+")
PLAYING_PHASES = frozenset({"propose", "estimate", "solve"})
"""Phases that wait for responses."""
LEARNING_PHASES = frozenset({"critic values", "reference logprobs", "policy logprobs", "train critic", "train policy"})
"""Phases that go over every token of the batch."""
OVERLAPPED_PHASES = frozenset({"validate", "verify"})
"""Phases that should cost no time of their own because they overlap others."""


@dataclass(frozen=True, slots=True)
class StepTiming:
    """Times of one step."""

    seconds: dict[str, float]
    """Per phase, the wall time in which anything was in it; phases overlap, so sums mean nothing."""
    wall_s: float
    exposed_s: float
    """Wall time in which every open phase was one of `OVERLAPPED_PHASES`."""
    learned_beside_s: float
    """Wall time in which trainers worked while responses were sampled."""
    cpu_share: float
    """CPU time of this process, of all of its threads, divided by wall time; 1.0 is one busy core."""


class PhaseClock:
    """Times overlapping phases. One event loop may enter a phase any number of times at once; threads may not."""

    def __init__(self) -> None:
        self._open: defaultdict[str, int] = defaultdict(int)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._exposed_s = self._learned_beside_s = 0.0
        self._start = self._counted_until = time.perf_counter()
        self._cpu_start = time.process_time()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block for this phase."""
        self._count()
        self._open[name] += 1
        try:
            yield
        finally:
            self._count()
            self._open[name] -= 1

    def step_timing(self) -> StepTiming:
        """Return the times since the last call, those of open phases included."""
        self._count()
        now, cpu = self._counted_until, time.process_time()
        elapsed = max(now - self._start, 1e-9)
        share = (cpu - self._cpu_start) / elapsed
        timing = StepTiming(dict(self._seconds), elapsed, self._exposed_s, self._learned_beside_s, share)
        self._seconds, self._start, self._cpu_start = defaultdict(float), now, cpu
        self._exposed_s = self._learned_beside_s = 0.0
        return timing

    def _count(self) -> None:
        """Add the time since the last change of open phases to those that were open."""
        now = time.perf_counter()
        passed, self._counted_until = now - self._counted_until, now
        open_phases = {name for name, times in self._open.items() if times}
        for name in open_phases:
            self._seconds[name] += passed
        if open_phases and open_phases <= OVERLAPPED_PHASES:
            self._exposed_s += passed
        if open_phases & PLAYING_PHASES and open_phases & LEARNING_PHASES:
            self._learned_beside_s += passed


def step_metrics(samples: Sequence[Sample], kinds: Sequence[str], group_size: int, parts: StepParts) -> Metrics:
    """Return everything known about a step.

    ``kinds``: kinds of self-play, whose funnel is reported even if nothing was proposed. ``parts`` holds other
    measurements, e.g. ``{"policy": {"loss": 0.1}, "seconds": {"solve": 3.2}}``; a value of None was not measured and is
    left out.
    """
    metrics = reward_metrics(samples) | reason_metrics(samples) | part_metrics(samples) | teaching_metrics(samples)
    proposals = [sample for sample in samples if sample.phase == "propose"]
    for kind in dict.fromkeys([*kinds, *(sample.kind for sample in proposals)]):
        metrics |= funnel_metrics(kind, [sample for sample in proposals if sample.kind == kind], group_size)
    for part, values in parts.items():
        metrics |= {f"{part}/{name}": value for name, value in values.items() if value is not None}
    return metrics


def step_parts(
    samples: Sequence[Sample],
    step: int,
    timing: StepTiming,
    computed: Mapping[str, float | None],
    pushed: PushReport,
    staleness: int,
) -> dict[str, dict[str, float | None]]:
    """Return what `step_metrics` takes as ``parts`` of a step's time, weight sync and batch.

    ``computed``: tokens that trainers computed in each phase. ``staleness``: `rollout.staleness`, above which the age
    of tokens counts.
    """
    batch = [sample.completion for sample in samples if sample.used == "trained"]
    in_batch = sum(completion.num_tokens for completion in batch)
    num_sampled = sum(len(sampled(samples, role)) for role in ROLES)
    tokens = {phase: count for phase, count in computed.items() if count is not None} | sampled_tokens(samples)
    beside = {"learned beside play": timing.learned_beside_s} if staleness else {}
    counts = {"ungraded": sum(map(_is_lost, samples)), "trajectories": len(batch), "tokens": in_batch}
    return {
        "seconds": {**timing.seconds, "step": timing.wall_s, "executor alone": timing.exposed_s, **beside},
        "tokens_per_s": {
            name: count / timing.seconds[name] for name, count in tokens.items() if timing.seconds.get(name, 0.0) > 0.0
        },
        "driver": {
            "cpu_share": timing.cpu_share,
            "cpu_ms_per_trajectory": 1e3 * timing.cpu_share * timing.wall_s / num_sampled if num_sampled else None,
        },
        "weights": {
            "version": pushed.version,
            "push_s": pushed.seconds,
            "push_bytes": pushed.nbytes,
            "push_gb_s": pushed.nbytes / pushed.seconds / 1e9,
            f"push_by_{pushed.transfer}": 1,
            **{f"push_s_{part}": seconds for part, seconds in pushed.parts.items()},
        },
        "batch": {**counts, **group_metrics(samples)},
        **{role: {"malformed": malformed_share(samples, role)} for role in ROLES},
        "staleness": {**staleness_metrics(samples, step - 1)} if staleness else {},
    }


def start_metrics(timing: StepTiming, engine_seconds: Mapping[str, float]) -> dict[str, float]:
    """Seconds until a run could play: of all, of each phase, and of the phases of an engine's start by its name."""
    phases = {name.removeprefix("start "): seconds for name, seconds in timing.seconds.items()}
    return {"all": timing.wall_s} | phases | {f"engines/{name}": seconds for name, seconds in engine_seconds.items()}


def reward_metrics(samples: Sequence[Sample]) -> Metrics:
    """Return means over the rewarded samples of each kind and role: lengths in tokens, ``truncated`` and ``accuracy``
    as shares, ``overlong`` as the mean penalty where there is one. Traces are apart, as
    ``<kind>/<role>/trace/…``.

    Samples that only estimated, could not be graded or were too old do not count. ``weight_version`` is the newest
    version that sampled one of the others.
    """
    rewarded = [each for each in samples if each.reward is not None and each.used not in ("estimate", "stale")]
    metrics: Metrics = {}
    for player, played in sorted(grouped((sample.player, sample) for sample in rewarded).items()):
        graded = [sample.accuracy for sample in played if sample.accuracy is not None]
        metrics[f"{player}/trajectories"] = len(played)
        metrics[f"{player}/reward"] = fmean([sample.reward for sample in played if sample.reward is not None])
        metrics[f"{player}/response_length"] = fmean([sample.response_tokens or 0 for sample in played])
        metrics[f"{player}/truncated"] = fmean([sample.finish_reason == "length" for sample in played])
        if graded:
            metrics[f"{player}/accuracy"] = fmean(graded)
        if penalties := [sample.reward_parts[OVERLONG] for sample in played if OVERLONG in sample.reward_parts]:
            metrics[f"{player}/{OVERLONG}"] = fmean(penalties)
    if newest := [sample.weight_versions[-1][0] for sample in rewarded if sample.weight_versions]:
        metrics["weight_version"] = max(newest)
    return metrics


def group_metrics(samples: Sequence[Sample]) -> dict[str, float]:
    """Return mean reward and length of the sampled responses that are trained on, and of the groups with several the
    mean standard deviation of rewards and the share whose rewards are all equal, as TRL has them."""
    trained = [each for each in samples if each.used == "trained" and each.origin == "sampled"]
    if not trained:
        return {}
    groups = grouped((each.group, each.reward or 0.0) for each in trained)
    lengths = [each.response_tokens or 0 for each in trained]
    metrics = {"reward": fmean([each.reward or 0.0 for each in trained]), "response_length": fmean(lengths)}
    if spreads := [stdev(of_group) for of_group in groups.values() if len(of_group) > 1]:
        metrics |= {"reward_std": fmean(spreads), "idle_groups": fmean([spread == 0 for spread in spreads])}
    return metrics


def reason_metrics(samples: Sequence[Sample]) -> Metrics:
    """Return how many responses of each kind and role are malformed, and how many could not be graded, by reason; and
    how many `rollout.refill` left out.

    They count whatever they were used for; a reason that none has, has no key. Example:
    ``{"math/solver/malformed/no_box": 3, "math/solver/ungraded/grader_failed": 1, "math/solver/unlearnable": 16}``
    """
    counts = Counter[str]()
    for sample in samples:
        if sample.judgement is not None and sample.judgement.reason:
            what = "ungraded" if _is_lost(sample) else "malformed"
            counts[f"{sample.player}/{what}/{sample.judgement.reason}"] += 1
        if sample.used == "unlearnable":
            counts[f"{sample.player}/unlearnable"] += 1
    return dict(sorted(counts.items()))


def part_metrics(samples: Sequence[Sample]) -> Metrics:
    """Return means of the parts that graders of rows and environments give beside their verdict, as
    ``<source>/solver/parts/<name>``."""
    graded = ((each.player, each.judgement) for each in samples if each.role == "solver" and each.judgement)
    pairs = ((f"{player}/parts/{name}", value) for player, by in graded for name, value in by.parts.items())
    return {name: fmean(values) for name, values in sorted(grouped(pairs).items())}


def teaching_metrics(samples: Sequence[Sample]) -> Metrics:
    """Return how much the groups of each kind teach, by `ORIGINS`, as ``<kind>/solver/own/<quantity>``.

    ``groups``: their number; ``solve_rate``: the mean of their solve rates s; ``teaching_mass``: the sum of 4s(1-s);
    ``mass_per_group``; and ``idle``: the share of groups that were answered all right or all wrong.
    """
    graded = (each for each in samples if each.phase == "estimate" and each.accuracy is not None)
    answers = grouped(((each.kind, each.group), each.accuracy or 0.0) for each in graded)
    by_origin = ((f"{kind}/solver/{_origin(kind, id)}", fmean(its)) for (kind, id), its in sorted(answers.items()))
    metrics: Metrics = {}
    for name, of_groups in sorted(grouped(by_origin).items()):
        mass = sum(4 * rate * (1 - rate) for rate in of_groups)
        metrics[f"{name}/groups"] = len(of_groups)
        metrics[f"{name}/solve_rate"] = fmean(of_groups)
        metrics[f"{name}/teaching_mass"] = mass
        metrics[f"{name}/mass_per_group"] = mass / len(of_groups)
        metrics[f"{name}/idle"] = fmean([rate in (0.0, 1.0) for rate in of_groups])
    return metrics


def _origin(kind: str, group: str) -> str:
    """One of `ORIGINS`. Example of a group: ``estimate:000012:000012-deduction-0003``."""
    _, name, task = group.split(":", 2)
    if not task.startswith(f"{name}-"):
        return "replayed"
    rest = task.removeprefix(f"{name}-{kind}-")
    return "own" if rest.isdecimal() else "chained" if rest.startswith(CHAIN) else "derived"


def funnel_metrics(kind: str, proposals: Sequence[Sample], group_size: int) -> Metrics:
    """Return counts of every step of the proposal funnel and the distribution of the valid tasks' solve rates.

    Bin b of ``solve_rate_hist`` counts tasks of which b of ``group_size`` attempts were right. Proposals that
    the executor or the engine lost are in no rate. ``copied``: share of the readable proposals that copy a worked
    example or a reference. ``repeats/…``: duplicates by what they repeat, of `REPEATS`.
    """
    player = f"{kind}/proposer"
    counts = Counter(RejectReason.LOST if _is_lost(each) else each.verdict for each in proposals)
    valid, judged = counts[VALID], len(proposals) - counts[RejectReason.LOST]
    metrics: Metrics = {f"{player}/funnel/proposed": len(proposals), f"{player}/funnel/valid": valid}
    metrics |= {f"{player}/funnel/{reason}": counts[reason] for reason in RejectReason}
    if judged:
        metrics[f"{player}/valid_rate"] = valid / judged
    copies = [each.judgement.parts[COPIED] for each in proposals if each.judgement and COPIED in each.judgement.parts]
    if copies:
        metrics[f"{player}/{COPIED}"] = fmean(copies)
    parts = Counter(name for each in proposals if each.judgement for name in each.judgement.parts)
    metrics |= {f"{player}/repeats/{what}": parts[f"repeats_{what}"] for what in REPEATS if proposals}
    rates = [each.solve_rate for each in proposals if each.verdict == VALID and each.solve_rate is not None]
    if rates:
        num_right = [round(rate * group_size) for rate in rates]
        metrics[f"{player}/solve_rate_hist"] = [num_right.count(b) for b in range(group_size + 1)]
        metrics[f"{player}/solve_rate"] = fmean(rates)
        metrics[f"{player}/learnable_rate"] = fmean([0.0 < rate < 1.0 for rate in rates])
    return metrics


def staleness_metrics(samples: Sequence[Sample], version: int) -> dict[str, float]:
    """Return how old the sampled tokens are that the policy at ``version`` is trained on.

    ``mean`` and ``max``: updates between the policy that sampled a token and the one that is trained. ``mixed``: share
    of samples that several policies sampled. ``dropped``: samples that were too old.
    """
    metrics = {"dropped": float(sum(sample.used == "stale" for sample in samples))}
    fresh = [sample.sampled_versions for sample in samples if sample.used == "trained"]
    if versions := [of_one for of_one in fresh if len(of_one)]:
        import numpy as np

        age = version - np.concatenate(versions)
        mixed = [bool(of_one[0] != of_one[-1]) for of_one in versions]
        metrics |= {"mean": float(age.mean()), "max": float(age.max()), "mixed": float(np.mean(mixed))}
    return metrics


def sampled_tokens(samples: Sequence[Sample]) -> Counter[str]:
    """Return how many response tokens were sampled to ``propose``, ``estimate`` and ``solve``; rows of files count as
    solved."""
    tokens = Counter[str]()
    for sample in samples:
        phase = "solve" if sample.phase == "data" else sample.phase
        tokens[phase] += sum(count for _, count in sample.weight_versions)
    return tokens


def malformed_share(samples: Sequence[Sample], role: Role) -> float | None:
    """Return the share of a role's responses that are malformed or cut off; None when nothing was sampled."""
    malformed = [sample.is_malformed for sample in sampled(samples, role)]
    return fmean(malformed) if malformed else None


def sampled(samples: Sequence[Sample], role: Role) -> list[Sample]:
    """Return the samples of a role of which the policy wrote at least a part."""
    return [s for s in samples if s.role == role and s.finish_reason != "given_up" and s.origin != "trace"]


def _is_lost(sample: Sample) -> bool:
    """Whether the executor lost it or the engine gave it up; it is not trained on."""
    return sample.finish_reason == "given_up" or sample.verdict in (RejectReason.LOST, Verdict.UNGRADED)


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
    """Right answers in the evaluation of every suite, and of its groups where they are few, as ``exam, deduction``. At
    temperature 1 where samples were taken, else greedily."""
    names = [name for name in metrics if name.startswith(EVAL)]
    ends = [name.rpartition("/")[2] for name in names]
    measure = next((end for end in ends if _MEAN.fullmatch(end)), "greedy")
    paths = [name.split("/")[1:-1] for name, end in zip(names, ends, strict=True) if end == measure]
    few = Counter(path[0] for path in paths if len(path) == 2)
    shown = [path for path in paths if len(path) == 1 or (len(path) == 2 and few[path[0]] <= FEW_GROUPS)]
    return {", ".join(path): scalar(metrics, "/".join([EVAL[:-1], *path, measure])) for path in shown}


def scalar(metrics: Metrics, name: str) -> float:
    value = metrics[name]
    assert not isinstance(value, list)
    return float(value)


def check_finite(step: int, metrics: Metrics) -> None:
    """Raise RuntimeError when a metric is NaN or infinite, before a diverged run's numbers are written."""
    for name, value in metrics.items():
        if not isinstance(value, list) and not math.isfinite(value):
            raise RuntimeError(
                f"{name} is {value} in step {step}, so training has diverged: lower the learning rate or "
                "train.grad_clip, or set train.dtype to float32."
            )


def duration(seconds: float) -> str:
    """``8 s``, ``7 min``, ``3 h 05 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _total(metrics: Metrics, suffix: str) -> float:
    return sum(scalar(metrics, name) for name in metrics if name.endswith(suffix))
