"""What a plug-in states, as the run reads it and as its process does."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from typing import Any

from azr.errors import UserError
from azr.own_modules import entries_of, find_entry, import_own, load_entry
from azr.tasks.base import TaskKind

KINDS, REWARDS, BONUSES, ESTIMATORS = "azr.kinds", "azr.rewards", "azr.bonuses", "azr.estimators"
"""Groups of entry points. Those of graders are `azr.evaluation.graders.own.GROUP`, and are looked up there."""
_FUNCTIONS = {REWARDS: "proposer_rewards", BONUSES: "bonuses", ESTIMATORS: "estimators"}
"""How a module calls them."""


@dataclass(frozen=True, slots=True)
class Stated:
    """By the group of entry points that it belongs to, or would, and by name."""

    kinds: dict[str, TaskKind] = field(default_factory=dict)
    functions: dict[str, dict[str, Callable[..., Any]]] = field(
        default_factory=lambda: {group: {} for group in _FUNCTIONS}
    )

    def __bool__(self) -> bool:
        return bool(self.kinds) or any(self.functions.values())


def read_stated(plugin: str) -> Stated:
    """What a plug-in states: an installed package by its entry points, where it has any; ``group:name`` is one of them;
    else a module.

    Raises UserError when it cannot be imported, or states nothing or something that is no kind or function; after the
    traceback of a module that is there.
    """
    group, _, name = plugin.partition(":")
    if name:
        entry = find_entry(group, name)
        if entry is None:
            raise UserError(f"No installed package has an entry point {name!r} in {group}.")
        return _of_entries(plugin, [entry])
    entries = entries_of(plugin)
    stated = _of_entries(plugin, entries) if entries else _of_module(plugin)
    if not stated and not entries:
        raise UserError(
            f"The plug-in {plugin} states neither kinds nor proposer_rewards nor bonuses nor estimators: give it one "
            "of them."
        )
    return stated


def _of_module(plugin: str) -> Stated:
    has, stated = vars(import_own(plugin, f"The plug-in {plugin}")), Stated()
    for kind in has.get("kinds") or ():
        name = _kind(plugin, kind).name
        if name in stated.kinds:
            raise UserError(f"The plug-in {plugin} calls two kinds {name!r}: give each a name of its own.")
        stated.kinds[name] = kind
    for group, word in _FUNCTIONS.items():
        functions: Mapping[str, Any] = has.get(word) or {}
        for name, function in functions.items():
            stated.functions[group][name] = _function(plugin, name, function)
    return stated


def _of_entries(plugin: str, entries: list[EntryPoint]) -> Stated:
    stated = Stated()
    for entry in entries:
        if entry.group == KINDS:
            given = load_entry(entry)
            kind = _kind(plugin, given() if inspect.isclass(given) else given)
            if kind.name != entry.name:
                raise UserError(
                    f"The plug-in {plugin} has the entry point {entry.name!r} in {KINDS} for a kind that is called "
                    f"{kind.name!r}: give both one name."
                )
            stated.kinds[kind.name] = kind
        elif entry.group in _FUNCTIONS:
            stated.functions[entry.group][entry.name] = _function(plugin, entry.name, load_entry(entry))
    return stated


def _kind(plugin: str, kind: object) -> TaskKind:
    if not isinstance(kind, TaskKind):
        raise UserError(
            f"The plug-in {plugin} has {kind!r} among its kinds: give it objects of azr.tasks.base.TaskKind."
        )
    return kind


def _function(plugin: str, name: str, function: Any) -> Callable[..., Any]:
    if not callable(function):
        raise UserError(f"{name} of the plug-in {plugin} is no function.")
    return function  # type: ignore[no-any-return]
