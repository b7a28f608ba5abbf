"""What to change in a run that does not fit: the knobs in the order they are worth trying."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from azr.config import Config
from azr.plan.inputs import Assumptions, ClusterSpec
from azr.plan.planner import Plan, make_plan
from azr.plan.shapes import shape_of

_SHARES = tuple(share / 100 for share in range(90, 5, -5))
"""Values of rollout.gpu_memory_utilization that are tried."""
_MAX_GPUS = 64


@dataclass(frozen=True, slots=True)
class Suggestion:
    """One change, on top of those before it."""

    option: str
    """As on the command line."""
    plan: Plan
    """After the change."""


def plan_run(
    config: Config, nodes: ClusterSpec, assumed: Assumptions, model_config: str | None = None
) -> tuple[Plan, list[Suggestion]]:
    """The plan, and what to change where it does not fit; `model_config` is the policy's config.json.

    Raises UserError when the shape of the model is not known.
    """
    plan = make_plan(config, shape_of(config.model.path, model_config), nodes, assumed)
    return plan, suggest(plan, assumed)


Candidates = Iterator[tuple[str, Config, ClusterSpec]]
"""Values of one knob that are worth trying: option, config and nodes after it."""


def suggest(plan: Plan, assumed: Assumptions) -> list[Suggestion]:
    """Changes in the order they are worth trying, until the run fits; those that do not help are left out.

    The last one's plan may still not fit: then these knobs do not suffice.
    """
    taken: list[Suggestion] = []
    for candidates in (_fewer_gpus, _offload, _checkpoint, _micro_batch, _engine_share, _more_gpus):
        if not plan.problems:
            break
        shape = plan.roles[0].shape
        tried = [
            Suggestion(option, make_plan(config, shape, nodes, assumed)) for option, config, nodes in candidates(plan)
        ]
        fitting = [suggestion for suggestion in tried if not suggestion.plan.problems]
        best = fitting[0] if fitting else min(tried, key=lambda each: _sort_key(each.plan), default=None)
        if best is not None and _sort_key(best.plan) < _sort_key(plan):
            plan = best.plan
            taken.append(best)
    return taken


def _sort_key(plan: Plan) -> tuple[bool, int, float]:
    """Worst last: first of all GPUs that do not exist, then more problems, then more bytes too many."""
    return plan.config.num_gpus > plan.nodes.total_gpus, len(plan.problems), max(0.0, plan.peak - plan.usable)


def _fewer_gpus(plan: Plan) -> Candidates:
    """As many of those there are as divide the batch."""
    present = plan.nodes.total_gpus
    if plan.config.num_gpus > present:
        batch, most = math.gcd(*plan.config.trajectories_by_step), _trainers(plan, present)
        ranks = max(count for count in range(1, most + 1) if batch % count == 0)
        yield _spread(plan, ranks, math.gcd(plan.config.rollout.tensor_parallel, plan.nodes.gpus), plan.nodes)


def _offload(plan: Plan) -> Candidates:
    if not plan.config.train.offload_optimizer:
        yield "--train.offload-optimizer", _with_train(plan.config, offload_optimizer=True), plan.nodes


def _checkpoint(plan: Plan) -> Candidates:
    modes = ("none", "selective", "full")
    for mode in modes[modes.index(plan.config.train.gradient_checkpointing) + 1 :]:
        option = f"--train.gradient-checkpointing {mode}"
        yield option, _with_train(plan.config, gradient_checkpointing=mode), plan.nodes


def _micro_batch(plan: Plan) -> Candidates:
    least = plan.config.max_trajectory_tokens
    if plan.config.train.tokens_per_micro_batch > least:
        option = f"--train.tokens-per-micro-batch {least}"
        yield option, _with_train(plan.config, tokens_per_micro_batch=least), plan.nodes


def _engine_share(plan: Plan) -> Candidates:
    """The nearest share first."""
    now = plan.config.rollout.gpu_memory_utilization
    for share in sorted(_SHARES, key=lambda share: abs(share - now)):
        rollout = replace(plan.config.rollout, gpu_memory_utilization=share)
        yield f"--rollout.gpu-memory-utilization {share:g}", replace(plan.config, rollout=rollout), plan.nodes


def _more_gpus(plan: Plan) -> Candidates:
    """Twice as many, again and again; nodes stay as large as they are."""
    gpus = max(plan.config.num_gpus, plan.nodes.total_gpus)
    while (gpus := 2 * gpus) <= _MAX_GPUS and math.gcd(*plan.config.trajectories_by_step) % _trainers(plan, gpus) == 0:
        nodes = replace(plan.nodes, nodes=-(-gpus // plan.nodes.gpus))
        yield _spread(plan, _trainers(plan, gpus), plan.config.rollout.tensor_parallel, nodes)


def _trainers(plan: Plan, gpus: int) -> int:
    """How many of these GPUs train: engines that are apart from the trainers get as many."""
    return gpus if plan.config.cluster.colocate else max(1, gpus // 2)


def _spread(plan: Plan, ranks: int, width: int, nodes: ClusterSpec) -> tuple[str, Config, ClusterSpec]:
    """The same run with so many ranks, and engines of `width` GPUs on as many GPUs."""
    engines = max(1, ranks // width)
    config = _with_train(plan.config, data_parallel=ranks)
    config = replace(config, rollout=replace(config.rollout, engines=engines, tensor_parallel=width))
    where = f" on {nodes.nodes} nodes" if nodes.nodes > plan.nodes.nodes else ""
    option = f"--train.data-parallel {ranks} --rollout.engines {engines} --rollout.tensor-parallel {width}{where}"
    return option, config, nodes


def _with_train(config: Config, **changes: object) -> Config:
    return replace(config, train=replace(config.train, **changes))  # type: ignore[arg-type]
