"""Read what a plug-in states: kinds, rewards, bonuses and estimators; and check tasks of its kinds."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import msgspec

from azr.errors import UserError
from azr.estimators import Estimator
from azr.isolated import InvalidReply
from azr.records import Task
from azr.registry import entries_of, find_entry, import_own, load_entry
from azr.tasks.base import TaskKind
from azr.tasks.normalize import is_program
from azr.tasks.prompts import ChatFormat, CompactFormat, PromptFormat, Section
from azr.text import brief

KINDS, REWARDS, BONUSES, ESTIMATORS = "azr.kinds", "azr.rewards", "azr.bonuses", "azr.estimators"
"""Groups of entry points. Those of graders are `azr.graders.own.GROUP`, and are looked up there."""
WORDS = {KINDS: "kind", REWARDS: "reward", BONUSES: "bonus", ESTIMATORS: "estimator"}
_NAMES = {KINDS: "kinds", REWARDS: "proposer_rewards", BONUSES: "bonuses", ESTIMATORS: "estimators"}
"""Their names in a module."""
_NAMED = {KINDS: "objects of azr.tasks.base.TaskKind", ESTIMATORS: "classes of azr.estimators.Estimator"}
"""Groups of what has its name in itself."""
STYLES: tuple[PromptFormat, ...] = (CompactFormat(), ChatFormat(str))
"""Formats in which tasks of every kind are shown and read."""
Stated = dict[str, dict[str, Any]]
"""What a plug-in adds, by its group of entry points and by name."""


def read_stated(plugin: str) -> Stated:
    """Read a plug-in: an installed package's entry points if it has any, one of them as ``group:name``, or a module.

    Raises UserError if it cannot be imported (after the traceback of a module that exists), or states nothing or
    something that is not a kind, estimator or function.
    """
    group, _, name = plugin.partition(":")
    entries = entries_of(plugin)
    if name:
        if (entry := find_entry(group, name)) is None:
            raise UserError(f"No installed package has an entry point {name!r} in {group}.")
        entries = [entry]
    stated: Stated = {group: {} for group in WORDS}
    for group, name, given in _of_entries(entries) if entries else _of_module(plugin):
        if group in _NAMED:
            what, wanted = WORDS[group], _NAMED[group]
            is_estimator = isinstance(given, type) and issubclass(given, Estimator)
            if not (isinstance(given, TaskKind) if group == KINDS else is_estimator):
                raise UserError(f"The plug-in {plugin} has {given!r} among its {what}s: give it {wanted}.")
            if name not in ("", given.name):
                said = f"the entry point {name!r} in {group} for the {what} {given.name!r}: give both the same name"
                raise UserError(f"The plug-in {plugin} has {said}.")
            if given.name in stated[group]:
                raise UserError(f"The plug-in {plugin} calls two {what}s {given.name!r}: give each another name.")
            name = given.name
        elif not callable(given):
            raise UserError(f"{name} of the plug-in {plugin} is not a function.")
        stated[group][name] = given
    if not entries and not any(stated.values()):
        raise UserError(f"The plug-in {plugin} defines no kinds, proposer_rewards, bonuses or estimators: add one.")
    return stated


def _of_module(plugin: str) -> Iterator[tuple[str, str, Any]]:
    """Yield group, name and object of all that a module states; some have their names in them."""
    has = vars(import_own(plugin, f"The plug-in {plugin}"))
    for group, name in _NAMES.items():
        given: Any = has.get(name) or {}
        word = f"list of {_NAMED[group]}" if group in _NAMED else "dict of functions by name"
        if given and not isinstance(given, (list, tuple) if group in _NAMED else dict):
            raise UserError(f"{name} of the plug-in {plugin} is {brief(given)}: make it a {word}.")
        for entry in [("", each) for each in given] if group in _NAMED else given.items():
            yield group, *entry


def _of_entries(entries: list[EntryPoint]) -> Iterator[tuple[str, str, Any]]:
    for entry in entries:
        if entry.group in WORDS:
            given = load_entry(entry)
            yield entry.group, entry.name, given() if entry.group == KINDS and inspect.isclass(given) else given


def checked_task(kind: TaskKind, task: object, id: str | None = None) -> Task:
    """Return a kind's task. Raises InvalidReply if it cannot be played, shown, or written as JSON and read again."""
    if not isinstance(task, Task) or task.kind != kind.name or id not in (None, task.id):
        raise InvalidReply(f"{brief(task)}, which is not a task of the kind with the id that was asked for")
    if task.program and not is_program(task.program):
        raise InvalidReply("a task whose program does not define f: other things belong into the payload")
    kind.io_pairs(task)
    for show in (kind.reference, kind.proposal, kind.solver_view, kind.solution):
        for section in show(task):
            is_text = isinstance(section, Section) and isinstance(section.text, str)
            if not is_text or section.label not in kind.labels:
                labels = ", ".join(kind.labels)
                raise InvalidReply(f"a task with the section {brief(section)}; its labels are {labels}")
    try:
        same = msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(task))), Task)
    except (TypeError, ValueError) as error:
        raise InvalidReply(f"a task that JSON cannot hold ({error})") from error
    if same != task:
        raise InvalidReply("a task that JSON does not give back as it was: take texts, numbers, lists and dicts")
    return task
