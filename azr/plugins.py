"""Plug-ins: modules of the user's own that add kinds of self-play, rewards of proposals and bonuses by name.

A module states ``kinds``, a list of `azr.tasks.base.TaskKind`; ``proposer_rewards`` and ``bonuses``, functions by name.
What they add is used as what `azr.tasks.registry` and `azr.selfplay.rewards.registry` hold. docs/extending.md is the
way there.
"""

from __future__ import annotations

import functools
import logging
import math
import re
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from azr.errors import UserError
from azr.own_modules import import_own
from azr.records import Task
from azr.selfplay.rewards.registry import BONUSES, SOLVE_RATE_REWARDS
from azr.tasks.base import TaskKind
from azr.tasks.prompts import LABELS, CompactFormat, PromptFacts
from azr.tasks.registry import KINDS

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_log = logging.getLogger(__name__)
_loaded: set[str] = set()


def load_plugins(names: Sequence[str]) -> None:
    """Imports each module once, and adds what it states.

    Raises UserError for one that cannot be imported (after its traceback), states nothing, or states something that
    cannot be used or has a name that is taken.
    """
    for name in names:
        if name not in _loaded:
            _add(name, import_own(name, f"The plug-in {name}"))
            _loaded.add(name)


def _add(name: str, module: ModuleType) -> None:
    stated = vars(module)
    kinds, rewards, bonuses = (stated.get(word) for word in ("kinds", "proposer_rewards", "bonuses"))
    if not (kinds or rewards or bonuses):
        raise UserError(
            f"The plug-in {name} states neither kinds nor proposer_rewards nor bonuses: give it one of them."
        )
    functions: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("reward", rewards or {}, SOLVE_RATE_REWARDS),
        ("bonus", bonuses or {}, BONUSES),
    ]
    for what, own, registry in functions:
        for word, function in own.items():
            _check_name(name, what, word, registry)
            if not callable(function):
                raise UserError(f"The {what} {word} of the plug-in {name} is no function.")
    for kind in kinds or ():
        _check_kind(name, kind)
    for _, own, registry in functions:
        registry.update({word: _guarded(f"{name}:{word}", function) for word, function in own.items()})
    KINDS.update({kind.name: kind for kind in kinds or ()})


def _check_name(plugin: str, what: str, word: str, taken: dict[str, Any]) -> None:
    if not isinstance(word, str) or not _NAME.fullmatch(word):
        raise UserError(f"The plug-in {plugin} calls a {what} {word!r}; a name is small letters, digits and '_'.")
    if word in taken:
        raise UserError(f"The plug-in {plugin} calls a {what} {word!r}, and there is one of this name: choose another.")


def _check_kind(plugin: str, kind: TaskKind) -> None:
    """Raises UserError for what cannot be played: the first task is shown and its answer read back."""
    if not isinstance(kind, TaskKind):
        raise UserError(
            f"The plug-in {plugin} has {kind!r} among its kinds: give it objects of azr.tasks.base.TaskKind."
        )
    _check_name(plugin, "kind", kind.name, KINDS)
    if kind.name in LABELS:
        raise UserError(f"The plug-in {plugin} calls a kind {kind.name!r}, which prompts call a part of a task.")
    if unknown := set(kind.reference_kinds) - {*KINDS, kind.name}:
        raise UserError(f"The kind {kind.name} of the plug-in {plugin} has references of {min(unknown)!r}, no kind.")
    try:
        problem = _problem(kind)
    except Exception as error:
        traceback.print_exc()
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise UserError(f"The kind {kind.name} of the plug-in {plugin} cannot be played: {problem}.")


def _problem(kind: TaskKind) -> str:
    """What is wrong with the first task of a kind; empty when nothing is."""
    task, compact = kind.seed(), CompactFormat()
    if not isinstance(task, Task) or task.kind != kind.name:
        return "seed() gives no task of it"
    shown = kind.solver_view(task), kind.reference(task), kind.proposal(task), kind.solution(task)
    if any(section.label not in LABELS for sections in shown for section in sections):
        return f"its sections have other labels than {', '.join(LABELS)}"
    if any(compact.parse(compact.response(sections)) != tuple(sections) for sections in shown[2:]):
        return "its proposal or solution is not read back as it was written"
    kind.proposer_instructions(PromptFacts())
    kind.solver_instructions(PromptFacts())
    return ""


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., float]:
    """The function, with 0 and a line in the log where it raises or returns no number."""

    @functools.wraps(function)
    def guarded(*inputs: Any) -> float:
        try:
            value = function(*inputs)
            if isinstance(value, (int, float)) and math.isfinite(value):
                return float(value)
            _log.warning("%s returned %r, which is no number, and counts as 0", name, value)
        except Exception:
            _log.exception("%s failed and counts as 0", name)
        return 0.0

    return guarded
