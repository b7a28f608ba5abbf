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
from azr.selfplay.rewards import BonusInputs
from azr.tasks.base import Proposal, ProposalLimits, RejectReason, Run, TaskKind, Verdict
from azr.tasks.prompts import Section

MAX_REPEATS = 16
MAX_RUNS = 64
"""Most programs that one call of a kind may run."""


def load(arguments: Sequence[str]) -> Callable[[Any, Ask], Any]:
    (plugin,) = arguments
    stated = read_stated(plugin)

    def answer(asked: Any, ask: Ask) -> Any:
        group, method = _METHODS[asked["do"]]
        return method(stated[group][asked["name"]], asked, ask)

    return answer


def _validate(kind: TaskKind, asked: Any, ask: Ask) -> Any:
    proposal = msgspec.convert(asked["proposal"], Proposal)
    limits = msgspec.convert(asked["limits"], ProposalLimits)
    outcome = asyncio.run(kind.validate(proposal, limits, _run(ask)))  # type: ignore[arg-type]
    if isinstance(outcome, RejectReason):
        return {"rejected": outcome}
    if not isinstance(outcome, Task):
        raise Nonsense(f"{repr(outcome)[:60]}, which is neither a task nor a RejectReason")
    return {"task": _task(kind, outcome, proposal.id)}


def _grade(kind: TaskKind, asked: Any, ask: Ask) -> Any:
    task, answer = msgspec.convert(asked["task"], Task), msgspec.convert(asked["answer"], tuple[Section, ...])
    verdict = asyncio.run(kind.grade(task, answer, _run(ask)))  # type: ignore[arg-type]
    if not isinstance(verdict, Verdict):
        raise Nonsense(f"{repr(verdict)[:60]}, which is no Verdict")
    return verdict


def _derive_tasks(kind: TaskKind, asked: Any, ask: Ask) -> Any:
    pairs = [(given, returned) for given, returned in asked["pairs"]]
    derived = kind.derive_tasks(msgspec.convert(asked["task"], Task), pairs)
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


def _reward(function: Any, asked: Any, ask: Ask) -> float:
    knobs = msgspec.convert(asked["knobs"], RewardConfig)
    return _number(function(asked["solve_rate"], knobs))


def _bonus(function: Any, asked: Any, ask: Ask) -> float:
    @functools.cache
    def ask_known() -> Sequence[Task]:
        return msgspec.convert(ask("known tasks"), tuple[Task, ...])

    task = msgspec.convert(asked["task"], Task)
    references = msgspec.convert(asked["references"], tuple[Task, ...])
    return _number(function(BonusInputs(task, references, ask_known)))


def _number(value: object) -> float:
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    raise Nonsense(f"{repr(value)[:60]}, which is no finite number")


def _estimate(function: Any, asked: Any, ask: Ask) -> str:
    """Return advantages, float32 (R), as base64."""
    import torch

    from azr.algorithms.batch import Batch

    given = {**asked["inputs"], "kind_roles": list(map(tuple, asked["inputs"]["kind_roles"]))}
    batch = Batch(**given)
    returned = function(batch)
    if not isinstance(returned, torch.Tensor):
        raise Nonsense(f"{repr(returned)[:60]}, which is no tensor")
    if returned.shape != batch.seq_index_R.shape:
        tokens = len(batch.seq_index_R)
        raise Nonsense(f"a tensor of the shape {tuple(returned.shape)}, and there are {tokens:,} response tokens")
    if not bool(returned.isfinite().all()):
        raise Nonsense("numbers that are not finite")
    return base64.b64encode(returned.detach().float().numpy().tobytes()).decode()


_METHODS: dict[str, tuple[str, Callable[[Any, Any, Ask], Any]]] = {
    "validate": (KINDS, _validate),
    "grade": (KINDS, _grade),
    "derive_tasks": (KINDS, _derive_tasks),
    "reward": (REWARDS, _reward),
    "bonus": (BONUSES, _bonus),
    "estimate": (ESTIMATORS, _estimate),
}
"""By the name in a message: group of its kind or function, and what is done with that."""

if __name__ == "__main__":
    serve(load)
