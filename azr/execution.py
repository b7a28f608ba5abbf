"""Requests to the executor and its results: standard library only, since sandboxes hold this file too."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

MAX_INPUTS = 128
"""Most inputs of one ``ExecutionRequest``."""
ADMITTED_SHARE = 0.5
"""Share of the time limit up to which proposals are admitted, in CPU time; no call is late before it had as much."""


class CallStatus(StrEnum):
    """End of one call ``f(*args)`` in the executor. The set is closed."""

    OK = "ok"
    RAISED = "raised"
    TIMEOUT = "timeout"
    MEMORY = "memory"
    OUTPUT_TOO_LARGE = "output_too_large"
    REJECTED = "rejected"
    CRASHED = "crashed"
    LOST = "lost"
    """The executor itself failed, twice. Says nothing about the program and never earns a reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionRequest:
    """One program and the argument lists it is called with."""

    program: str
    """Python source that defines ``f``."""
    inputs: tuple[str, ...]
    """Argument texts such as ``"1, 'a'"``; each is parsed as plain data before anything runs."""
    repeats: int = 1
    """Runs in separate interpreters with different hash seeds; 2 or more checks determinism, with twice as many for
    programs whose result may depend on hashes or addresses, and admits no call that takes over `ADMITTED_SHARE` of the
    limit in CPU time, tried twice, the second time alone."""
    static_check: bool = True
    """Refuse programs that name banned modules or escape routes, before running them."""
    admitted: bool = False
    """The program is a task's that was admitted: a call that times out is run once more, alone in its sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """Outcome of one call."""

    status: CallStatus
    value: str | None = None
    """Canonical text of the returned plain data; present exactly when status is ``ok``."""
    error: str | None = None
    """Exception class name if ``raised``; otherwise one sentence on what was exceeded or refused."""
    wall_s: float = 0.0
    """By the zygote's clock; of the first call in a process, reading the program included."""
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """Outcome of one request: one ``CallResult`` per input, in order."""

    outputs: tuple[CallResult, ...]
    deterministic: bool | None = None
    """Whether all repeats agreed on every call; None if that was not established: a single run was requested, or a call
    neither returned plain data nor raised, after which nothing is repeated."""
    static_check: tuple[str, ...] = ()
    """Why the static check refused the program (``line 3: imports random``); empty if it passed."""
    cached: bool = False

    @property
    def ok(self) -> bool:
        """Whether all calls returned plain data, and no repeat disagreed."""
        return self.deterministic is not False and all(o.status is CallStatus.OK for o in self.outputs)

    @property
    def lost(self) -> bool:
        """Whether the executor lost a call, through no fault of the program."""
        return any(o.status is CallStatus.LOST for o in self.outputs)
