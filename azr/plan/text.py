"""The plan as text: what a step amounts to, tables of bytes and seconds, whether it fits and what to change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from azr.config import Config
from azr.plan.inputs import GIB, Workload
from azr.plan.memory import ALLOCATOR_CACHE, RECOMPUTED, training
from azr.plan.planner import Plan, Suggestion

_MIN_SHOWN = 0.05
"""GiB below which a number is left out."""


def text(plan: Plan, suggestions: Sequence[Suggestion]) -> str:
    """Several lines: what a step amounts to, tables of bytes and seconds, whether it fits and what to change."""
    parts = (step_lines(plan.config, plan.load), _memory(plan), _seconds(plan), _verdict(plan, suggestions))
    return "\n\n".join("\n".join(lines) for lines in parts)


def step_lines(config: Config, load: Workload) -> Iterator[str]:
    """The batch sizes that follow from the config, in prompts, trajectories and tokens."""
    ranks, rollout, algorithm = config.train.data_parallel, config.rollout, config.algorithm
    responses = _count(load.trajectories * load.mean_response)
    names = ["policy", *["critic"] * algorithm.needs_critic, *["reference"] * config.has_reference]
    yield from (
        "a step, where the funnel decides at most:",
        f"  {load.prompts:,} prompts: {load.proposals} to propose, {load.estimate_prompts} to estimate, "
        f"{load.solves} to solve, {load.rows} from a file",
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
    roles = [role.name for role in plan.roles]
    by_role = sorted(rows, key=lambda what: roles.index(word) + 1 if (word := what.split()[0]) in roles else 0)
    for what in (*by_role, ALLOCATOR_CACHE):
        sizes = [parts.get(what, 0.0) / GIB for parts in plan.memory.values()]
        if max(sizes) >= _MIN_SHOWN:
            yield _row(what, [f"{size:.1f}" if size >= _MIN_SHOWN else "" for size in sizes])
    yield _row("total", [f"{sum(parts.values()) / GIB:.1f}" for parts in plan.memory.values()])
    yield f"  usable: {plan.usable / GIB:.1f} of {plan.nodes.gpu_memory_gib:g} GiB"
    yield _turns(plan)
    yield f"  KV cache of an engine: room for {plan.engine.kv_tokens:,} tokens"
    if host := {what: size / GIB for what, size in plan.host.items() if size / GIB >= _MIN_SHOWN}:
        parts = ", ".join(f"{what} {size:.0f}" for what, size in host.items())
        yield f"  host memory, page-locked: {sum(host.values()):.0f} GiB per node ({parts})"
    kept = [f"{_activations(plan, mode):.1f} with {mode}" for mode in RECOMPUTED]
    yield f"  activations of the policy's step by train.gradient_checkpointing, GiB: {', '.join(kept)}"


def _turns(plan: Plan) -> str:
    if not plan.config.cluster.colocate:
        return "  engines and trainers have GPUs of their own, and keep what they have there"
    learning = max(plan.total(phase) for phase in plan.memory if phase not in ("play", "push")) / GIB
    stays = plan.memory["play"]["CUDA and NCCL"] / GIB
    return (
        f"  in turns: {plan.total('play') / GIB:.1f} GiB while playing, {stays:.1f} of them the trainers' processes; "
        f"{learning:.1f} while learning, {plan.memory['train policy']['engine asleep'] / GIB:.1f} of them the engine's"
    )


def _activations(plan: Plan, checkpointing: Literal["full", "selective", "none"]) -> float:
    train = replace(plan.config.train, gradient_checkpointing=checkpointing)
    tokens = min(train.tokens_per_micro_batch, plan.load.max_tokens)
    return training(plan.roles[0], train, tokens).get("activations", 0.0) / GIB


def _seconds(plan: Plan) -> Iterator[str]:
    steps, total = plan.config.run.steps, sum(plan.seconds.values())
    yield _row("expected seconds", [*plan.seconds, "step"])
    yield _row("at measured rates", [f"{seconds:.3g}" for seconds in (*plan.seconds.values(), total)])
    goals = plan.goal_seconds
    yield _row("at the goals, not measured", [f"{seconds:.3g}" for seconds in (*goals.values(), sum(goals.values()))])
    kernels = "plain" if plan.config.train.kernels == "plain" else "fused"
    push = "through hosts" if plan.config.cluster.push == "host" else "between GPUs"
    yield f"  measured: one H100 and 1.5B with {kernels} kernels and a push {push}; goals: what these are to reach"
    hours = total * steps / 3600
    length = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    yield f"  {steps} steps: about {length} at measured rates, seeding and evaluation not counted"


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
    return f"{label:<28}" + "".join(f"{cell:>17}" for cell in cells)
