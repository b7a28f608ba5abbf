"""What an attack is: a program, and the only outcomes that count as held."""

import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

from azr.execution import CallStatus
from tests import tables

DENIED = "PermissionError OSError FileNotFoundError ModuleNotFoundError"
"""How a refused system call or a missing module shows in Python."""
ANY = " ".join(status.value for status in CallStatus if status is not CallStatus.LOST)
"""For programs that may end as they like, as long as nobody else notices."""

PROGRAMS = Path(__file__).with_name("programs.txt")
PARTS = {name: f"\n{text}\n" for name, text in tables.programs(PROGRAMS, "part").items()}
"""What many programs begin with."""
ROUTES = PARTS["routes"]
"""Program text: reaches modules that were taken out of ``sys.modules``, and raw system calls, through classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One hostile program."""

    family: str
    name: str
    program: str
    """Source; ``@secret@`` and its like are filled in by ``World.fill``."""
    statuses: frozenset[CallStatus]
    errors: frozenset[str]
    """Exception classes it may raise; any when empty."""
    inputs: tuple[str, ...] = ("",)
    value: Callable[[Any], bool] | None = None
    """What every value it returns must satisfy."""
    static_check: bool = False
    repeats: int = 1
    never_ok: bool = False
    """Must be refused, fail, or be found non-deterministic."""

    @property
    def id(self) -> str:
        return f"{self.family}: {self.name}"

    @property
    def fits(self) -> bool:
        """Whether it means anything here: some name system calls by x86-64's numbers, or hold its machine code."""
        # Once is where the route to system calls is laid, not used.
        names_numbers = self.program.count("syscall(") > 1 or "'b8" in self.program
        return not names_numbers or platform.machine() == "x86_64"

    @property
    def hasty(self) -> bool:
        """Whether it may use up its time, and so should get little of it."""
        return CallStatus.TIMEOUT in self.statuses


@dataclass(frozen=True, slots=True)
class Family:
    """Attacks that go for the same thing."""

    name: str
    attacks: list[Attack] = field(default_factory=list)

    def add(self, name: str, outcomes: str, program: str, **options: Any) -> None:
        """``outcomes`` are words: statuses, or names of exception classes, which imply the status ``raised``."""
        words = frozenset(outcomes.split())
        errors = words.difference(CallStatus)
        statuses = {CallStatus(word) for word in words - errors} | ({CallStatus.RAISED} if errors else set())
        ends = {"statuses": frozenset(statuses), "errors": errors}
        self.attacks.append(
            Attack(family=self.name, name=name, program=dedent(program).lstrip("\n"), **ends, **options)
        )

    def add_call(self, name: str, arguments: str, routes: str = ROUTES) -> None:
        """A raw system call, number first, that must be refused before the kernel looks at it."""
        program = f"{routes}\ndef f(): return syscall({arguments})"
        self.add(name, "ok LookupError", program, value=lambda outcome: outcome == (-1, 1))
