"""A plan as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from azr.config import Config
from azr.plan.assumptions import GIB
from azr.plan.batch import Batch
from azr.plan.memory import KEPT, training
from azr.plan.planner import Advice, Plan

_LABEL, _CELL = 28, 14
_LEAST = 0.05
"""GiB below which a number is left out."""


def text(plan: Plan, advice: Sequence[Advice]) -> str:
    """Several lines: what a step amounts to, tables of bytes and seconds, the verdict."""
    parts = (step(plan.config, plan.batch), _memory(plan), _seconds(plan), verdict(plan, advice))
    return "\n\n".join("\n".join(lines) for lines in parts)


def step(config: Config, batch: Batch) -> Iterator[str]:
    """The batch sizes that follow from the config, in prompts, trajectories and tokens."""
    ranks, rollout, algorithm = config.train.data_parallel, config.rollout, config.algorithm
    yield "a step, where the funnel decides at most:"
    yield (
        f"  {batch.prompts:,} prompts: {batch.proposals} to propose, {batch.estimate_prompts} to estimate, "
        f"{batch.solves} to solve"
    )
    yield (
        f"  {batch.trajectories:,} responses ({batch.estimates:,} of them estimates), about "
        f"{_count(batch.trajectories * batch.mean_response)} tokens"
    )
    yield (
        f"  {batch.trained:,} trajectories of up to {batch.longest:,} tokens trained on: about "
        f"{_count(batch.trained_tokens)} tokens, {_count(batch.most_tokens)} at most"
    )
    yield (
        f"  per rank {batch.trained / ranks:g} trajectories, about {_count(batch.trained_tokens / ranks)} tokens in "
        f"micro-batches of up to {config.train.tokens_per_micro_batch:,}"
    )
    names = ["policy", *["critic"] * algorithm.needs_critic, *["reference"] * algorithm.needs_reference]
    yield (
        f"  {', '.join(names)}: {ranks} rank(s) each; {rollout.engines} engine(s) of {rollout.tensor_parallel} "
        f"GPU(s); {algorithm.policy_mini_batches} optimizer step(s) of the policy"
    )


def _count(tokens: float) -> str:
    return f"{tokens / 1e6:.2f} million" if tokens >= 1e6 else f"{tokens / 1e3:.0f} thousand"


def _memory(plan: Plan) -> Iterator[str]:
    machine, columns = plan.machine, list(plan.memory)
    yield _row(f"GiB, fullest of {plan.gpus} GPU(s)", columns)
    rows = dict.fromkeys(what for parts in plan.memory.values() for what in parts if what != KEPT)
    for what in (*rows, KEPT):
        sizes = [parts.get(what, 0.0) / GIB for parts in plan.memory.values()]
        if max(sizes) >= _LEAST:
            yield _row(what, [f"{size:.1f}" if size >= _LEAST else "" for size in sizes])
    yield _row("total", [f"{sum(parts.values()) / GIB:.1f}" for parts in plan.memory.values()])
    yield f"  usable: {plan.usable / GIB:.1f} of {machine.gpu_memory_gib:g} GiB"
    yield f"  KV cache of an engine: room for {plan.engine.kv_tokens:,} tokens"
    if plan.host:
        yield f"  host memory for optimisers: {plan.host / GIB:.0f} GiB per node"
    now, other = (_activations(plan, checkpointing) for checkpointing in (True, False))
    yield f"  activations of the policy's step: {now:.1f} GiB with gradient checkpointing, {other:.1f} without"


def _activations(plan: Plan, checkpointing: bool) -> float:
    train = replace(plan.config.train, gradient_checkpointing=checkpointing)
    tokens = min(train.tokens_per_micro_batch, plan.batch.most_tokens)
    return training(plan.roles[0], train, tokens).get("activations", 0.0) / GIB


def _seconds(plan: Plan) -> Iterator[str]:
    total = sum(plan.seconds.values())
    yield _row("expected seconds", [*plan.seconds, "step"])
    yield _row("", [f"{seconds:.3g}" for seconds in (*plan.seconds.values(), total)])
    steps, hours = plan.config.run.steps, total * plan.config.run.steps / 3600
    length = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    yield f"  {steps} steps: about {length}, seeding and exams apart"


def verdict(plan: Plan, advice: Sequence[Advice]) -> Iterator[str]:
    """``fits`` or ``does not fit``, why, and what to change."""
    machine = plan.machine
    where = f"{machine.nodes} node(s) of {machine.gpus} GPU(s) with {machine.gpu_memory_gib:g} GiB"
    if not plan.problems:
        yield f"fits on {where}: at most {plan.peak / GIB:.1f} GiB of a GPU are taken"
        return
    yield f"does not fit on {where}:"
    yield from (f"  {problem}" for problem in plan.problems)
    if advice:
        yield "what to change, in this order:"
    for change in advice:
        left = f"{change.plan.peak / GIB:.1f} GiB at most"
        yield f"  {change.option}  ({left}{'' if change.plan.problems else ', fits'})"
    if not advice or advice[-1].plan.problems:
        yield "no knob makes it fit: take GPUs with more memory, a smaller model or shorter prompts and responses"


def _row(label: str, cells: Sequence[str]) -> str:
    return f"{label:<{_LABEL}}" + "".join(f"{cell:>{_CELL}}" for cell in cells)
