"""Process of a plug-in: runs its kinds and functions on a model's text."""

from __future__ import annotations

import asyncio
import base64
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from azr.config import RewardConfig
from azr.execution import MAX_INPUTS, ExecutionRequest, ExecutionResult
from azr.isolated import Ask, Nonsense, serve
from azr.plugins.own import BONUSES, ESTIMATORS, KINDS, REWARDS, BadTask, read_stated, with_views
from azr.records import Task
from azr.tasks.base import Proposal, ProposalLimits, RejectReason, Run, TaskKind, Verdict
from azr.tasks.prompts import Section

MAX_REPEATS = 16
MAX_RUNS = 64
"""Most programs that one call of a kind may run."""


def load(arguments: Sequence[str]) -> Callable[[Any, Ask], Any]:
    (plugin,) = arguments
    stated = read_stated(plugin)

    def answer(asked: Any, ask: Ask) -> Any:
        group, types, method = _METHODS[asked["do"]]
        return method(stated[group][asked["name"]], ask, *msgspec.convert(asked["given"], types))

    return answer


def _validate(kind: TaskKind, ask: Ask, proposal: Proposal, limits: ProposalLimits) -> Any:
    outcome = asyncio.run(kind.validate(proposal, limits, _run(ask)))  # type: ignore[arg-type]
    if isinstance(outcome, RejectReason):
        return {"rejected": outcome}
    if not isinstance(outcome, Task):
        raise Nonsense(f"{repr(outcome)[:60]}, which is neither a task nor a RejectReason")
    return {"task": _task(kind, outcome, proposal.id)}


def _grade(kind: TaskKind, ask: Ask, task: Task, answer: tuple[Section, ...]) -> Any:
    verdict = asyncio.run(kind.grade(task, answer, _run(ask)))  # type: ignore[arg-type]
    if not isinstance(verdict, Verdict):
        raise Nonsense(f"{repr(verdict)[:60]}, which is no Verdict")
    return verdict


def _derive_tasks(kind: TaskKind, ask: Ask, task: Task, pairs: list[tuple[str, str]]) -> Any:
    derived = kind.derive_tasks(task, pairs)
    if not isinstance(derived, tuple):
        raise Nonsense(f"{repr(derived)[:60]}, which is no tuple of tasks")
    return [_task(kind, task) for task in derived]


def _task(kind: TaskKind, task: object, id: str | None = None) -> Any:
    try:
        return msgspec.to_builtins(with_views(kind, task, id))
    except BadTask as error:
        raise Nonsense(str(error)) from error


def _run(ask: Ask) -> Run:
    """Return a function that executes programs in the run's sandbox."""
    left = MAX_RUNS

    async def run(request: ExecutionRequest) -> ExecutionResult:
        nonlocal left
        stated = msgspec.convert(msgspec.to_builtins(request), ExecutionRequest)
        if not 1 <= len(stated.inputs) <= MAX_INPUTS or not 1 <= stated.repeats <= MAX_REPEATS:
            raise ValueError(f"a request has 1 to {MAX_INPUTS} inputs and 1 to {MAX_REPEATS} repeats")
        left -= 1
        if left < 0:
            raise ValueError(f"it ran programs over {MAX_RUNS} times for one response")
        return msgspec.convert(ask(msgspec.to_builtins(stated)), ExecutionResult)

    return run


def _reward(function: Any, ask: Ask, solve_rate: float, knobs: RewardConfig) -> float:
    return _number(function(solve_rate, knobs))


def _bonus(function: Any, ask: Ask, task: Task, references: tuple[Task, ...]) -> float:
    @functools.cache
    def ask_known() -> Sequence[Task]:
        return msgspec.convert(ask("known tasks"), tuple[Task, ...])

    return _number(function(task, references, ask_known))


def _number(value: object) -> float:
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise Nonsense(f"{repr(value)[:60]}, which is no finite number")


def _estimate(function: Any, ask: Ask, *given: Any) -> str:
    """Return advantages, float32 (R), as base64."""
    import torch

    from azr.algorithms.batch import Batch

    rewards, lengths, kind_roles, groups = given
    batch = Batch(rewards=rewards, response_lengths=lengths, kind_roles=kind_roles, groups=groups)
    returned = function(batch)
    if not isinstance(returned, torch.Tensor):
        raise Nonsense(f"{repr(returned)[:60]}, which is no tensor")
    if returned.shape != batch.seq_index_R.shape:
        tokens = len(batch.seq_index_R)
        raise Nonsense(f"a tensor of the shape {tuple(returned.shape)}, and there are {tokens:,} response tokens")
    if not bool(returned.isfinite().all()):
        raise Nonsense("numbers that are not finite")
    return base64.b64encode(returned.detach().float().numpy().tobytes()).decode()


_METHODS: dict[str, tuple[str, Any, Callable[..., Any]]] = {
    "validate": (KINDS, tuple[Proposal, ProposalLimits], _validate),
    "grade": (KINDS, tuple[Task, tuple[Section, ...]], _grade),
    "derive_tasks": (KINDS, tuple[Task, list[tuple[str, str]]], _derive_tasks),
    "reward": (REWARDS, tuple[float, RewardConfig], _reward),
    "bonus": (BONUSES, tuple[Task, tuple[Task, ...]], _bonus),
    "estimator": (ESTIMATORS, tuple[list[float], list[int], list[tuple[str, str]], list[str]], _estimate),
}
"""By the name in a message: group of its kind or function, types of what is given, and what is done with it."""

if __name__ == "__main__":
    serve(load)
