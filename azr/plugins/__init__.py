"""Plug-ins: code of the user's own that adds kinds of self-play, rewards, bonuses and estimators by name.

A module states ``kinds``, a list of `azr.tasks.base.TaskKind`; ``estimators``, a list of classes of
`azr.estimators.Estimator`; ``proposer_rewards`` and ``bonuses``, functions by name. An installed package may offer each
by an entry point instead. What they add is used as what is here, and `azr.plugins.calls` catches their failures.
docs/extending.md is the way there.

Loading adds what plug-ins state to the registries before a run starts.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Collection, Sequence
from typing import Any

from azr.config import ESTIMATOR_TYPES, Config
from azr.errors import UserError
from azr.isolated import InvalidReply
from azr.plugins import own as groups
from azr.plugins.calls import PluginKind, guarded
from azr.plugins.own import STYLES, Stated, checked_task, read_stated
from azr.registry import find_entry
from azr.selfplay.rewards import BONUSES, SOLVE_RATE_REWARDS
from azr.tasks.base import TaskKind
from azr.tasks.prompts import LABELS, PromptFacts
from azr.tasks.registry import KINDS

NAME, _LABEL = re.compile(r"[a-z][a-z0-9_]*"), re.compile(r"[a-z][a-z_]*")
TAGS = ("pad", "end", "answer", "propose", "solve", "python", "think")
"""Names that prompts give to other things than labels."""
_REGISTRIES: dict[str, dict[str, Any]] = {groups.KINDS: KINDS, groups.REWARDS: SOLVE_RATE_REWARDS}
_REGISTRIES |= {groups.BONUSES: BONUSES, groups.ESTIMATORS: ESTIMATOR_TYPES}
_loaded: set[str] = set()


def load_for(config: Config) -> None:
    """Loads the plug-ins that a config names, and what it names of installed packages, see `azr.registry`. Raises
    UserError as `load_plugins`."""
    load_named(config.run.plugins, groups.KINDS, *config.selfplay.kinds)
    load_named((), groups.REWARDS, config.reward.proposer)
    load_named((), groups.BONUSES, *(entry.partition(":")[0] for entry in config.reward.intrinsic.bonuses))


def load_named(plugins: Sequence[str], group: str, *names: str) -> None:
    """Loads plug-ins, and entry points of the group for names that none of them states. Raises UserError as
    `load_plugins`."""
    load_plugins(plugins)
    for name in names:
        if name not in _REGISTRIES[group] and find_entry(group, name) is not None:
            load_plugins([f"{group}:{name}"])


def load_plugins(names: Sequence[str]) -> None:
    """Loads each plug-in once, see `read_stated`, and adds what it states.

    Raises UserError for one that cannot be imported (after its traceback), states nothing, or states something that
    cannot be used or has a name that is taken.
    """
    for name in names:
        if name not in _loaded:
            _add(name, read_stated(name))
            _loaded.add(name)


def _add(plugin: str, stated: Stated) -> None:
    """Adds everything or, when it raises, nothing."""
    added: Stated = {}
    for group, entries in stated.items():
        what, taken = groups.WORDS[group], _REGISTRIES[group]
        for name in entries:
            if not isinstance(name, str) or not NAME.fullmatch(name):
                said = f"The plug-in {plugin} calls its {what} {name!r}; a name is small letters, digits and '_'."
                raise UserError(said)
            if name in taken:
                raise UserError(f"The plug-in {plugin} calls its {what} {name!r}, which exists: choose another name.")
        added[group] = {
            name: _checked(plugin, entry, entries) if group == groups.KINDS else guarded(plugin, group, name, entry)
            for name, entry in entries.items()
        }
    for group, entries in added.items():
        _REGISTRIES[group].update(entries)


def _checked(plugin: str, kind: TaskKind, beside: Collection[str]) -> PluginKind:
    """Raises UserError for what cannot be played: the first task is shown and its answer read back. ``beside``: names
    of all kinds of the plug-in."""
    if kind.name in (*LABELS, *TAGS):
        raise UserError(f"The plug-in {plugin} calls a kind {kind.name!r}, which prompts call a part of a task.")
    for label in kind.labels:
        if not _LABEL.fullmatch(label) or label in TAGS or label in KINDS or label in beside:
            said = f"the label {label!r}: use lower-case letters and '_', and no label that a prompt already has"
            raise UserError(f"The kind {kind.name} of the plug-in {plugin} has {said}.")
    if unknown := set(kind.reference_kinds) - {*KINDS, *beside}:
        raise UserError(
            f"The kind {kind.name} of the plug-in {plugin} has references of {min(unknown)!r}, which is not a kind."
        )
    try:
        problem = _problem(kind)
    except InvalidReply as error:
        problem = f"seed() gives {error}"
    except Exception as error:
        traceback.print_exc()
        problem = f"{type(error).__name__}: {error}"
    if problem:
        raise UserError(f"The kind {kind.name} of the plug-in {plugin} cannot be played: {problem}.")
    return PluginKind(plugin, kind)


def _problem(kind: TaskKind) -> str:
    """Return what is wrong with a kind's first task; empty if nothing is. Raises InvalidReply as `checked_task`."""
    task, facts = checked_task(kind, kind.seed()), PromptFacts()
    for style in STYLES:
        for sections in (kind.proposal(task), kind.solution(task)):
            if style.parse(style.response(sections), kind.labels) != sections:
                return "its proposal or solution is not read back as it was written"
    if kind.references_per_prompt(6) not in range(7):
        return "references_per_prompt(6) is not a number from 0 to 6"
    kind.proposer_instructions(facts)
    kind.solver_instructions(facts)
    return ""
