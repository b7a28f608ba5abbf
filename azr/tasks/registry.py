"""The reasoning kinds that can be played, by name."""

from __future__ import annotations

from azr.tasks.abduction import Abduction
from azr.tasks.base import TaskKind
from azr.tasks.deduction import Deduction
from azr.tasks.error import Error
from azr.tasks.induction import Induction

_ALL: tuple[TaskKind, ...] = (Deduction(), Abduction(), Induction(), Error())
KINDS: dict[str, TaskKind] = {kind.name: kind for kind in _ALL}
