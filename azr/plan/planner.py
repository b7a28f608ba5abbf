"""The plan of a run: bytes, seconds, whether it fits, what to change when it does not, and all of it as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from azr.config import Config
from azr.plan.inputs import GIB, Assumptions, ClusterSpec, Workload
from azr.plan.memory import ALLOCATOR_CACHE, EngineMemory, ModelRole, host_states, model_roles, phases, training
from azr.plan.seconds import StepTimes
from azr.plan.shapes import ModelShape, shape_of

_SHARES = tuple(share / 100 for share in range(90, 5, -5))
"""Values of rollout.gpu_memory_utilization that are tried."""
_MAX_GPUS = 64
_MIN_SHOWN = 0.05
"""GiB below which a number is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run of `config` will be like on `nodes`."""

    config: Config
    nodes: ClusterSpec
    load: Workload
    roles: list[ModelRole]
    engine: EngineMemory
    memory: dict[str, dict[str, float]]
    """By phase: what takes how many bytes on the fullest GPU."""
    seconds: dict[str, float]
    """By phase, as expected."""
    usable: float
    """Bytes of a GPU that the run may take."""
    host: float
    """Bytes of host memory per node that optimisers take."""

    @property
    def peak(self) -> float:
        """Bytes taken of the fullest GPU."""
        return max(sum(parts.values()) for parts in self.memory.values())

    @property
    def problems(self) -> list[str]:
        """Why the run does not fit, a sentence each; empty when it fits."""
        return list(_problems(self))


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


def make_plan(config: Config, shape: ModelShape, nodes: ClusterSpec, assumed: Assumptions) -> Plan:
    """The plan for networks of this shape."""
    load, roles = Workload.of(config, assumed), model_roles(config, shape)
    engine = EngineMemory.of(config, shape, nodes, assumed)
    times = StepTimes(config=config, load=load, nodes=nodes, assumed=assumed)
    ranks_per_node = min(config.train.data_parallel, nodes.gpus)
    return Plan(
        config=config,
        nodes=nodes,
        load=load,
        roles=roles,
        engine=engine,
        memory=phases(config, roles, engine, load, assumed),
        seconds=times.by_phase(roles, engine),
        usable=(nodes.gpu_memory_gib - assumed.reserved_gib) * GIB,
        host=ranks_per_node * sum(host_states(role, config.train) for role in roles),
    )


def _problems(plan: Plan) -> Iterator[str]:
    config, nodes = plan.config, plan.nodes
    if config.num_gpus > nodes.total_gpus:
        yield f"it asks for {config.num_gpus} GPUs and there are {nodes.total_gpus}"
    if config.rollout.tensor_parallel > nodes.gpus:
        yield f"an engine needs {config.rollout.tensor_parallel} GPUs of one node, which has {nodes.gpus}"
    for phase, parts in plan.memory.items():
        if (total := sum(parts.values())) > plan.usable:
            yield f"{phase} takes {total / GIB:.1f} GiB of {plan.usable / GIB:.1f}"
    kv_tokens, longest = plan.engine.kv_tokens, config.max_trajectory_tokens
    if kv_tokens < longest:
        yield f"an engine's KV cache holds {kv_tokens} tokens, less than one trajectory of {longest}"
    if nodes.host_memory_gib is not None and plan.host > nodes.host_memory_gib * GIB:
        yield f"optimisers take {plan.host / GIB:.0f} GiB of a node's {nodes.host_memory_gib:g} GiB of host memory"


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
        batch, most = plan.config.min_trajectories, _trainers(plan, present)
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
    while (gpus := 2 * gpus) <= _MAX_GPUS and plan.config.min_trajectories % _trainers(plan, gpus) == 0:
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


def text(plan: Plan, suggestions: Sequence[Suggestion]) -> str:
    """Several lines: what a step amounts to, tables of bytes and seconds, whether it fits and what to change."""
    parts = (step_lines(plan.config, plan.load), _memory(plan), _seconds(plan), _verdict(plan, suggestions))
    return "\n\n".join("\n".join(lines) for lines in parts)


def step_lines(config: Config, load: Workload) -> Iterator[str]:
    """The batch sizes that follow from the config, in prompts, trajectories and tokens."""
    ranks, rollout, algorithm = config.train.data_parallel, config.rollout, config.algorithm
    responses = _count(load.trajectories * load.mean_response)
    names = ["policy", *["critic"] * algorithm.needs_critic, *["reference"] * algorithm.needs_reference]
    yield from (
        "a step, where the funnel decides at most:",
        f"  {load.prompts:,} prompts: {load.proposals} to propose, {load.estimate_prompts} to estimate, "
        f"{load.solves} to solve",
        f"  {load.trajectories:,} responses ({load.estimates:,} of them estimates), about {responses} tokens",
        f"  {load.trained:,} trajectories of up to {config.max_trajectory_tokens:,} tokens trained on: about "
        f"{_count(load.trained_tokens)} tokens, {_count(load.max_tokens)} at most",
        f"  per rank {load.trained / ranks:g} trajectories, about {_count(load.trained_tokens / ranks)} tokens in "
        f"micro-batches of up to {config.train.tokens_per_micro_batch:,}",
        f"  {', '.join(names)}: {ranks} rank(s) each; {rollout.engines} engine(s) of {rollout.tensor_parallel} "
        f"GPU(s); {algorithm.policy_mini_batches} optimizer step(s) of the policy",
    )


def _count(tokens: float) -> str:
    return f"{tokens / 1e6:.2f} million" if tokens >= 1e6 else f"{tokens / 1e3:.0f} thousand"


def _memory(plan: Plan) -> Iterator[str]:
    yield _row(f"GiB, fullest of {plan.config.num_gpus} GPU(s)", list(plan.memory))
    rows = dict.fromkeys(what for parts in plan.memory.values() for what in parts if what != ALLOCATOR_CACHE)
    for what in (*rows, ALLOCATOR_CACHE):
        sizes = [parts.get(what, 0.0) / GIB for parts in plan.memory.values()]
        if max(sizes) >= _MIN_SHOWN:
            yield _row(what, [f"{size:.1f}" if size >= _MIN_SHOWN else "" for size in sizes])
    yield _row("total", [f"{sum(parts.values()) / GIB:.1f}" for parts in plan.memory.values()])
    yield f"  usable: {plan.usable / GIB:.1f} of {plan.nodes.gpu_memory_gib:g} GiB"
    yield f"  KV cache of an engine: room for {plan.engine.kv_tokens:,} tokens"
    if plan.host:
        yield f"  host memory for optimisers: {plan.host / GIB:.0f} GiB per node"
    full, selective, none = (_activations(plan, mode) for mode in ("full", "selective", "none"))
    yield (
        f"  activations of the policy's step: {full:.1f} GiB with full gradient checkpointing, {selective:.1f} with "
        f"selective, {none:.1f} without"
    )


def _activations(plan: Plan, checkpointing: Literal["full", "selective", "none"]) -> float:
    train = replace(plan.config.train, gradient_checkpointing=checkpointing)
    tokens = min(train.tokens_per_micro_batch, plan.load.max_tokens)
    return training(plan.roles[0], train, tokens).get("activations", 0.0) / GIB


def _seconds(plan: Plan) -> Iterator[str]:
    total, steps = sum(plan.seconds.values()), plan.config.run.steps
    yield _row("expected seconds", [*plan.seconds, "step"])
    yield _row("", [f"{seconds:.3g}" for seconds in (*plan.seconds.values(), total)])
    hours = total * steps / 3600
    length = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    yield f"  {steps} steps: about {length}, seeding and evaluation not counted"


def _verdict(plan: Plan, suggestions: Sequence[Suggestion]) -> Iterator[str]:
    """``fits`` or ``does not fit``, why, and what to change."""
    where = f"{plan.nodes.nodes} node(s) of {plan.nodes.gpus} GPU(s) with {plan.nodes.gpu_memory_gib:g} GiB"
    if not plan.problems:
        yield f"fits on {where}: at most {plan.peak / GIB:.1f} GiB of a GPU are taken"
        return
    yield f"does not fit on {where}:"
    yield from (f"  {problem}" for problem in plan.problems)
    if suggestions:
        yield "what to change, in this order:"
    for change in suggestions:
        yield f"  {change.option}  ({change.plan.peak / GIB:.1f} GiB at most{'' if change.plan.problems else ', fits'})"
    if not suggestions or suggestions[-1].plan.problems:
        yield "no knob makes it fit: take GPUs with more memory, a smaller model or shorter prompts and responses"


def _row(label: str, cells: Sequence[str]) -> str:
    return f"{label:<28}" + "".join(f"{cell:>14}" for cell in cells)
