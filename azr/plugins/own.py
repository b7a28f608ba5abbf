"""Kinds, rewards, bonuses and estimators of plug-ins: how they are read, and how the run holds them.

Both the run and the plug-in's process read a plug-in. The run holds an `OwnKind` or one of the other `Own…` classes,
which asks that process.
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import Awaitable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import msgspec

from azr.config import RewardConfig
from azr.errors import UserError
from azr.execution import ExecutionRequest
from azr.isolated import MAX_ANSWER_BYTES, OwnFunctions, Trouble
from azr.records import Task
from azr.registry import entries_of, find_entry, import_own, load_entry
from azr.selfplay.rewards import Known
from azr.tasks.base import Derived, Proposal, ProposalLimits, RejectReason, Run, TaskKind, Verdict
from azr.tasks.normalize import is_program
from azr.tasks.prompts import Instructions, PromptFacts, Section

if TYPE_CHECKING:
    from torch import Tensor

    from azr.algorithms.batch import Batch

KINDS, REWARDS, BONUSES, ESTIMATORS = "azr.kinds", "azr.rewards", "azr.bonuses", "azr.estimators"
"""Groups of entry points. Those of graders are `azr.evaluation.graders.own.GROUP`, and are looked up there."""
WORDS = {KINDS: "kind", REWARDS: "reward", BONUSES: "bonus", ESTIMATORS: "estimator"}
_NAMES = {KINDS: "kinds", REWARDS: "proposer_rewards", BONUSES: "bonuses", ESTIMATORS: "estimators"}
"""Their names in a module."""
Stated = dict[str, dict[str, Any]]
"""Kinds and functions of a plug-in, by their group of entry points and by name."""
ESTIMATE_LIMIT_S = 60.0
"""For the advantages of a whole batch."""
VIEWS = ("reference", "proposal", "solver_view", "solution")
"""Methods of a kind that say how a task is shown."""
PAIRS = "io_pairs"
"""Method that says what a program of the task returned for which input."""
_COSTS = "such a response is not trained on"
_COSTS_PROPOSAL = "such a proposal is not trained on"


def read_stated(plugin: str) -> Stated:
    """Read a plug-in: an installed package's entry points if it has any, one of them as ``group:name``, or a module.

    Raises UserError if it cannot be imported (after the traceback of a module that exists), or states nothing or
    something that is no kind or function.
    """
    group, _, name = plugin.partition(":")
    entries = entries_of(plugin)
    if name:
        if (entry := find_entry(group, name)) is None:
            raise UserError(f"No installed package has an entry point {name!r} in {group}.")
        entries = [entry]
    stated: Stated = {group: {} for group in WORDS}
    for group, name, given in _of_entries(entries) if entries else _of_module(plugin):
        if group == KINDS:
            if not isinstance(given, TaskKind):
                raise UserError(
                    f"The plug-in {plugin} has {given!r} as a kind: give it objects of azr.tasks.base.TaskKind."
                )
            if name not in ("", given.name):
                raise UserError(
                    f"The plug-in {plugin} has the entry point {name!r} in {KINDS} for the kind "
                    f"{given.name!r}: give both the same name."
                )
            if given.name in stated[KINDS]:
                raise UserError(f"The plug-in {plugin} calls two kinds {given.name!r}: give each a name of its own.")
            stated[KINDS][given.name] = given
        elif callable(given):
            stated[group][name] = given
        else:
            raise UserError(f"{name} of the plug-in {plugin} is no function.")
    if not entries and not any(stated.values()):
        raise UserError(f"The plug-in {plugin} defines no kinds, proposer_rewards, bonuses or estimators: add one.")
    return stated


def _of_module(plugin: str) -> Iterator[tuple[str, str, Any]]:
    """Yield group, name and object of all that a module states; kinds have their names in them."""
    has = vars(import_own(plugin, f"The plug-in {plugin}"))
    for name in _NAMES.values():
        types, word = ((list, tuple), "list of kinds") if name == _NAMES[KINDS] else (dict, "dict of functions by name")
        if has.get(name) and not isinstance(has[name], types):
            raise UserError(f"{name} of the plug-in {plugin} is {repr(has[name])[:60]}: make it a {word}.")
    yield from ((KINDS, "", kind) for kind in has.get(_NAMES[KINDS]) or ())
    for group in (REWARDS, BONUSES, ESTIMATORS):
        yield from ((group, name, function) for name, function in (has.get(_NAMES[group]) or {}).items())


def _of_entries(entries: list[EntryPoint]) -> Iterator[tuple[str, str, Any]]:
    for entry in entries:
        if entry.group in WORDS:
            given = load_entry(entry)
            yield entry.group, entry.name, given() if entry.group == KINDS and inspect.isclass(given) else given


class BadTask(Exception):
    """A kind gave something that cannot be played; the message says what in a few words."""


def with_views(kind: TaskKind, task: object, id: str | None = None) -> Task:
    """Return a kind's task with its views. Raises BadTask if it cannot be played."""
    if not isinstance(task, Task) or task.kind != kind.name or id not in (None, task.id):
        raise BadTask(f"{repr(task)[:60]}, which is no task of the kind with the id that was asked for")
    if task.program and not is_program(task.program):
        raise BadTask("a task whose program does not define f: other things belong into the payload")
    views = {view: tuple(_pair(kind, section) for section in getattr(kind, view)(task)) for view in VIEWS}
    views[PAIRS] = tuple((str(given), str(returned)) for given, returned in kind.io_pairs(task))
    whole = replace(task, views=views)
    try:
        same = msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(whole))), Task)
    except (TypeError, ValueError) as error:
        raise BadTask(f"a task that JSON cannot hold ({error})") from error
    if same != whole:
        raise BadTask("a task that JSON does not give back as it was: take texts, numbers, lists and dicts")
    return whole


def _pair(kind: TaskKind, section: object) -> tuple[str, str]:
    if not isinstance(section, Section) or not isinstance(section.text, str) or section.label not in kind.labels:
        raise BadTask(f"a task with the section {repr(section)[:60]}; its labels are {', '.join(kind.labels)}")
    return section.label, section.text


def _shown(view: str) -> Any:
    """Return the method of `OwnKind` for one of `VIEWS`."""
    return lambda kind, task: tuple(Section(label, text) for label, text in kind._views(task)[view])


class OwnKind(TaskKind):
    """Stands for a plug-in's kind in the run.

    A response that the kind fails over is not trained on. It is asked here only for what does not depend on what a
    model wrote: its first task, its instructions, and tasks that a file of the user's own states.
    """

    def __init__(self, kind: TaskKind, functions: OwnFunctions, plugin: str) -> None:
        self._kind, self._functions, self._what = kind, functions, f"{plugin}: kind {kind.name}"
        self.name = kind.name  # type: ignore[misc]
        self.reference_kinds = kind.reference_kinds  # type: ignore[misc]
        self.labels = kind.labels  # type: ignore[misc]
        self.proposes_programs = kind.proposes_programs  # type: ignore[misc]
        self._derives = type(kind).derive_tasks is not TaskKind.derive_tasks
        self._told = cache(lambda tell, facts: tell(facts))
        """Instructions, made once for the same facts."""
        self._seed = with_views(kind, kind.seed())

    def seed(self) -> Task:
        return self._seed

    def references_per_prompt(self, count: int) -> int:
        return self._kind.references_per_prompt(count)

    def proposer_instructions(self, facts: PromptFacts) -> Instructions:
        return self._told(self._kind.proposer_instructions, facts)

    def solver_instructions(self, facts: PromptFacts) -> Instructions:
        return self._told(self._kind.solver_instructions, facts)

    reference, proposal, solver_view, solution = map(_shown, VIEWS)

    def io_pairs(self, task: Task) -> tuple[tuple[str, str], ...]:
        return self._views(task)[PAIRS]

    def _views(self, task: Task) -> Any:
        return task.views or with_views(self._kind, task).views

    async def validate(self, proposal: Proposal, limits: ProposalLimits, run: Run) -> Task | RejectReason:
        try:
            said = await self._call("validate", run, proposal, limits)
        except Trouble:
            return RejectReason.LOST
        if "rejected" in said:
            return RejectReason(said["rejected"])
        return msgspec.convert(said["task"], Task)

    async def grade(self, task: Task, answer: Sequence[Section], run: Run) -> Verdict:
        try:
            return Verdict(await self._call("grade", run, task, list(answer)))
        except Trouble:
            return Verdict.UNGRADED

    def derive_tasks(self, task: Task, pairs: Sequence[tuple[str, str]]) -> Derived | Awaitable[Derived]:
        return self._derived(task, pairs) if self._derives else ()

    async def _derived(self, task: Task, pairs: Sequence[tuple[str, str]]) -> Derived:
        try:
            said = await self._call("derive_tasks", None, task, list(pairs))
        except Trouble:
            return ()
        return msgspec.convert(said, tuple[Task, ...])

    async def _call(self, method: str, run: Run | None, *given: object) -> Any:
        async def reply(request: Any) -> Any:
            assert run is not None
            return msgspec.to_builtins(await run(msgspec.convert(request, ExecutionRequest)))

        message = {"do": method, "name": self.name, "given": msgspec.to_builtins(given)}
        return await self._functions.call(f"{self._what}, {method}", message, costs=_COSTS, reply=reply)


@dataclass(frozen=True, slots=True)
class _Own:
    functions: OwnFunctions
    plugin: str
    name: str

    async def _ask(
        self, what: str, *given: object, costs: str = _COSTS_PROPOSAL, most_bytes: int = MAX_ANSWER_BYTES, **others: Any
    ) -> Any | None:
        """Return the function's answer, None if it has none; ``others``: see `OwnFunctions.call`."""
        message = {"do": what, "name": self.name, "given": msgspec.to_builtins(given), "max_answer_bytes": most_bytes}
        try:
            return await self.functions.call(f"{self.plugin}: {what} {self.name}", message, costs=costs, **others)
        except Trouble:
            return None


class OwnReward(_Own):
    async def __call__(self, solve_rate: float, knobs: RewardConfig) -> float | None:
        """None where it has no answer."""
        return await self._ask("reward", solve_rate, knobs)


class OwnBonus(_Own):
    async def __call__(self, task: Task, references: Sequence[Task], known: Known) -> float | None:
        """None where it has no answer."""

        async def reply(_: Any) -> Any:
            return msgspec.to_builtins(list(known()))

        return await self._ask("bonus", task, list(references), reply=reply)


class OwnEstimator(_Own):
    async def __call__(self, batch: Batch) -> Tensor | None:
        """Advantages, float32 (R); None if it fails."""
        import numpy as np
        import torch

        given = list(batch.rewards), list(batch.response_lengths), list(batch.kind_roles), list(batch.groups)
        most_bytes, costs = 1024 + 8 * len(batch.seq_index_R), "nothing is learned in such a step"
        said = await self._ask("estimator", *given, costs=costs, most_bytes=most_bytes, limit_s=ESTIMATE_LIMIT_S)
        return None if said is None else torch.from_numpy(np.frombuffer(base64.b64decode(said), np.float32).copy())
