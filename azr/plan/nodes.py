"""A step on 1, 2, 8, 64 nodes at the same work per GPU: what bounds it, in closed form from the plan's rates.

The batch grows with the nodes: N times the GPUs play N times the prompts and train on N times the trajectories. Then
arithmetic stays as it is, and these grow:

* the longest of N times as many responses, with the logarithm of their number (`seconds.expected_longest`);
* the one driver and the one executor, with N;
* what ZeRO-3 moves between nodes, with (N - 1) / N, while an optimizer's share shrinks;
* a push, which goes once into each node: with N where one node sends to all, not at all where they pass it on.

A step is play, score, train, push and turns one after the other. Where steps are played ahead (`Config.steps_ahead`:
with `rollout.staleness`, on engines that have GPUs of their own), driver and engines work beside the trainers, and the
slowest of the three bounds the step. With `rollout.partial` nobody waits for the last tenth of a step's responses.
Checkpoints are written beside the next play.

Not in here: nodes that are slower than others or fail, collectives that slow down as they grow, networks that others
use too, prompts that fit badly into micro-batches, and shared file systems that slow down under many writers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from azr.config import Config
from azr.errors import UserError
from azr.plan.inputs import Assumptions, ClusterSpec, ModelShape
from azr.plan.memory import checkpoint_bytes
from azr.plan.planner import Plan, make_plan
from azr.plan.seconds import GIGA, Seconds, seconds_of

PLAYING = "play and push"
"""Phase that overlaps the trainers'."""
ALLOWED = 1.15
"""Times as long as on one node that a step may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStep:
    """A step on so many nodes."""

    nodes: int
    plan: Plan
    phases: dict[str, Seconds]
    """Bounds by phase; the last is `checkpoint`: the part that the next play does not hide, spread over the steps."""
    play: Seconds
    """Bounds of playing, whether it is one of the phases or overlaps them."""
    beside: dict[str, float]
    """Seconds of what overlaps the phases, if steps are played ahead."""

    @property
    def bound(self) -> str:
        """Name of what bounds the step: the phases one after the other, or what overlaps them."""
        return max(self._candidates, key=lambda what: self._candidates[what])

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return max(self._candidates.values())

    @property
    def _candidates(self) -> dict[str, float]:
        return {"its phases in turn": sum(map(seconds_of, self.phases.values())), **self.beside}


def over_nodes(
    config: Config, shape: ModelShape, node: ClusterSpec, counts: Sequence[int], assumed: Assumptions
) -> list[NodeStep]:
    """A step on each of the counts of nodes such as `node`.

    Raises UserError where the GPUs of so many nodes are no multiple of those that the config asks for.
    """
    return [_step(grown(config, node, count), shape, node, count, assumed) for count in counts]


def grown(config: Config, node: ClusterSpec, count: int) -> Config:
    """The config on all GPUs of so many nodes, with as much work for each GPU."""
    factor, left = divmod(count * node.gpus, config.num_gpus)
    if left or not factor:
        raise UserError(
            f"{count} node(s) of {node.gpus} GPU(s) are no multiple of the {config.num_gpus} GPU(s) that the config "
            "asks for: change --nodes, --gpus, train.data_parallel or rollout.engines."
        )
    play, data, rollout, train = config.selfplay, config.data, config.rollout, config.train
    return replace(
        config,
        selfplay=replace(
            play,
            proposer_prompts=factor * play.proposer_prompts,
            solver_prompts=factor * play.solver_prompts,
            repeated_tasks=factor * play.repeated_tasks,
            chained_tasks=factor * play.chained_tasks,
        ),
        data=replace(data, prompts=factor * data.prompts),
        rollout=replace(rollout, engines=factor * rollout.engines),
        train=replace(train, data_parallel=factor * train.data_parallel),
    )


def _step(config: Config, shape: ModelShape, node: ClusterSpec, count: int, assumed: Assumptions) -> NodeStep:
    plan = make_plan(config, shape, replace(node, nodes=count), assumed)
    phases = dict(plan.bounds)
    play, every = phases["play"], config.checkpoint.every
    writing = checkpoint_bytes(plan.roles, config.train) / (assumed.disk_gb_s * GIGA)
    beside: dict[str, float] = {}
    if config.steps_ahead:
        beside["driver"] = play["driver"]
        play = {what: seconds for what, seconds in play.items() if what != "driver"}
        beside[PLAYING] = seconds_of(play) + seconds_of(phases["push"])
        del phases["play"]
    else:  # trainers that learn beside the next play have to wait for a checkpoint
        writing = max(0.0, writing - seconds_of(play))
    phases["checkpoint"] = {"disk": writing / every if every else 0.0}
    return NodeStep(nodes=count, plan=plan, phases=phases, play=play, beside=beside)


def nodes_text(steps: Sequence[NodeStep]) -> str:
    """A table with a column per count of nodes: seconds of each phase and what it waits for; then the verdict."""
    config = steps[0].plan.config
    partial = " and rollout.partial" * config.rollout.partial
    per_gpu = f"{steps[0].plan.load.trained / config.num_gpus:g} trained trajectories per GPU"
    rows = [
        ("nodes", [f"{step.nodes}" for step in steps]),
        ("GPUs", [f"{step.plan.config.num_gpus:,}" for step in steps]),
        ("responses", [f"{step.plan.load.trajectories:,}" for step in steps]),
    ]
    for phase in steps[0].phases:
        cells = [f"{seconds_of(step.phases[phase]):.3g} {_slowest(step.phases[phase])}" for step in steps]
        rows.append((f"{phase}, s", cells))
    rows += [(f"beside: {what}, s", [f"{step.beside[what]:.3g}" for step in steps]) for what in steps[0].beside]
    rows += [
        ("a step, s", [f"{step.seconds:.3g}" for step in steps]),
        ("  it waits for", [step.bound for step in steps]),
        (f"  times that of {steps[0].nodes} node(s)", [f"{step.seconds / steps[0].seconds:.2f}" for step in steps]),
        ("fits", ["no" if step.plan.problems else "yes" for step in steps]),
    ]
    head = f"a step over nodes, at measured rates; rollout.staleness {config.rollout.staleness}{partial}, {per_gpu}:"
    lines = (f"  {label:<24}" + "".join(f"{cell:>29}" for cell in cells) for label, cells in rows)
    return "\n".join([head, *lines, verdict(steps)])


def verdict(steps: Sequence[NodeStep]) -> str:
    """Whether the step on the most nodes is near that on the fewest, or the reason why not, in one sentence."""
    first, last = steps[0], steps[-1]
    ratio = last.seconds / first.seconds
    said = f"on {last.nodes} nodes a step takes {ratio:.2f} times as long as on {first.nodes}"
    if ratio <= ALLOWED:
        return f"{said}: within {ALLOWED}"
    if last.bound in last.beside:
        longer = max((last.play, last.phases["push"]), key=seconds_of)
        why = f" ({_slowest(longer)})" if last.bound == PLAYING else ""
        return f"{said}, above {ALLOWED}: it waits for {last.bound}{why}, {last.beside[last.bound]:.3g} s"
    growth = {phase: seconds_of(last.phases[phase]) - seconds_of(first.phases[phase]) for phase in last.phases}
    worst = max(growth, key=lambda phase: growth[phase])
    why = f"{worst} grows by {growth[worst]:.3g} s, and waits for {_slowest(last.phases[worst])}"
    return f"{said}, above {ALLOWED}: {why}"


def _slowest(phase: Seconds) -> str:
    return max(phase, key=lambda what: phase[what], default="")
