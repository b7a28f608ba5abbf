"""The records that travel between rooms: frozen, documented, free of heavy imports.

Every record here can be pickled by Ray, and none holds a tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

MAX_INPUTS = 128
"""Most inputs of one ``ExecutionRequest``."""


class Role(StrEnum):
    """Which half of self-play wrote a trajectory."""

    PROPOSER = "proposer"
    SOLVER = "solver"


class CallStatus(StrEnum):
    """How one call ``f(*args)`` inside the executor ended. The set is closed."""

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
    programs whose result may depend on hashes or addresses, and admits nothing that takes over half of the limit."""
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
    """Exception class name when ``raised``; otherwise one sentence on what was exceeded or refused."""
    wall_s: float = 0.0
    """By the zygote's clock; of the first call in a process, reading the program included."""
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionResult:
    """Outcome of one request: one ``CallResult`` per input, in order."""

    outputs: tuple[CallResult, ...]
    deterministic: bool | None = None
    """Whether all repeats agreed on every call; None when that was not established, because a single run was
    requested, or because a call neither returned plain data nor raised (then nothing is repeated)."""
    static_check: tuple[str, ...] = ()
    """Why the static check refused the program (``line 3: imports random``); empty when it passed."""
    cached: bool = False

    @property
    def ok(self) -> bool:
        """All calls returned plain data, and no repeat disagreed."""
        return self.deterministic is not False and all(o.status is CallStatus.OK for o in self.outputs)

    @property
    def lost(self) -> bool:
        """The executor, not the program, is to blame for a missing outcome."""
        return any(o.status is CallStatus.LOST for o in self.outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A playable task: a program with inputs and the outputs that running it gave."""

    id: str
    kind: str
    """Name of a registered task kind, e.g. ``deduction``."""
    program: str
    inputs: tuple[str, ...]
    """Canonical argument texts; one for most kinds, several for induction."""
    outputs: tuple[str, ...]
    """Canonical value texts, one per input (an exception class name for the error kind)."""
    fingerprint: str
    """Hash that tasks share which count as equal: of the normalized program and of what else distinguishes them."""
    message: str = ""
    """Induction only: the proposer's hint to the solver."""
    parents: tuple[str, ...] = ()
    """Ids of the reference tasks shown to the proposer."""
    step: int = 0
    """Training step at which it was proposed; 0 for seeds."""
    solve_rate: float | None = None
    """Mean solve rate over the estimate samples; None for seeds."""


class FinishReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Stops:
    """What ends a response before it reaches its longest length."""

    strings: tuple[str, ...] = ()
    """Texts; the token that completes one is the response's last, and may hold more than its end."""
    token_ids: tuple[int, ...] = ()
    """End tokens; the one that was sampled is the response's last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """One sampled response, exactly as the engine produced it: tokens in, tokens out."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    """Includes what ended it when ``finish_reason`` is ``stop``: an end token, or the end of a stop string."""
    logprobs: tuple[float, ...]
    """Log-probabilities of the rollout at the sampling temperature, natural log, one per response token."""
    finish_reason: FinishReason
    weight_version: int
    """Version of the policy weights the engine held while sampling."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """A graded completion: what the algorithms train on."""

    completion: Completion
    role: Role
    kind: str
    task_id: str
    """Id of the task proposed or solved; for a failed proposal, an id of its own."""
    group: str
    """Trajectories with the same group answered the same prompt (RLOO, GRPO baselines)."""
    reward: float
    reward_parts: dict[str, float] = field(default_factory=dict)
    """Named terms whose combination is ``reward``, for the rollout records."""
    accuracy: float | None = None
    """Solver: 1.0 right, 0.0 not. Proposer: None."""
