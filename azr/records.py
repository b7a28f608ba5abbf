"""The records that travel between rooms: frozen, documented, free of heavy imports.

Every record here can be pickled by Ray, and none holds a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt


class Role(StrEnum):
    """Which half of self-play wrote a trajectory."""

    PROPOSER = "proposer"
    SOLVER = "solver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A playable task: a program with inputs and the outputs that running it gave."""

    id: str
    kind: str
    """Name of a registered task kind, e.g. ``deduction``."""
    program: str
    """Empty for a kind whose tasks hold none."""
    inputs: tuple[str, ...]
    """Canonical argument texts; one for most kinds, several for induction."""
    outputs: tuple[str, ...]
    """Canonical value texts, one per input (an exception class name for the error kind)."""
    fingerprint: str
    """Hash that tasks share which count as equal: of the normalized program and of what else distinguishes them."""
    message: str = ""
    """Induction: the proposer's hint to the solver; another kind's tasks may say something by it too."""
    parents: tuple[str, ...] = ()
    """Ids of the reference tasks shown to the proposer."""
    step: int = 0
    """Training step at which it was proposed; 0 for seeds."""
    solve_rate: float | None = None
    """Mean solve rate over the estimate samples; None for seeds."""
    payload: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Of a kind of the user's own: what its tasks hold beside or instead of a program, as JSON has it."""
    views: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict, hash=False, compare=False)
    """Of a kind of the user's own: how the task is shown, pairs of label and text by `azr.plugins.kind.VIEWS`, so that
    nothing of the kind has to be asked for them again; empty where the kind is to be asked."""

    def record(self) -> dict[str, Any]:
        """As a line of JSON holds it: without what only kinds of the user's own have, where there is none."""
        return {name: value for name, value in asdict(self).items() if value or name not in ("payload", "views")}


Origin = Literal["sampled", "prefix", "trace"]
"""Who wrote a response: the policy, another model up to a point, or another model all of it."""


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


PromptIds = Sequence[int] | npt.NDArray[np.int32]
"""Token ids of a prompt; arrays cost least."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """One sampled response, exactly as the engine produced it: tokens in, tokens out.

    P prompt tokens, R response tokens. What is given for the arrays is converted, and cannot be written to any more.
    """

    prompt_ids: npt.NDArray[np.int32]
    """(P). Completions of one prompt share the array where it is given as one that cannot be written to."""
    response_ids: npt.NDArray[np.int32]
    """(R). Includes what ended it when ``finish_reason`` is ``stop``: an end token, or the end of a stop string."""
    logprobs: npt.NDArray[np.float32]
    """(R). Log-probabilities of the rollout at the sampling temperature, natural log."""
    finish_reason: FinishReason
    weight_versions: npt.NDArray[np.int32]
    """(R). Version of the policy weights that the engine held while it sampled each token; never falls."""

    def __post_init__(self) -> None:
        count = len(self.response_ids)
        for name, dtype in _ARRAYS.items():
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != dtype:
                array = np.asarray(array, dtype)
            if array.ndim == 0:  # one number stands for all tokens
                array = np.ndarray((count,), dtype, array.tobytes(), strides=(0,))
            elif array.flags.writeable:
                array = array.view()
                array.flags.writeable = False
            assert name == "prompt_ids" or len(array) == count, f"{len(array)} {name} of {count} tokens"
            object.__setattr__(self, name, array)

    def __reduce__(self) -> tuple[Any, ...]:
        """As plain bytes: arrays by themselves cost Ray many times what they hold, and versions hardly ever change."""
        arrays = self.response_ids.tobytes(), self.logprobs.tobytes(), version_runs(self.weight_versions)
        return _unpickle, (self.prompt_ids, *arrays, self.finish_reason.value)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Completion)
            and self.finish_reason == other.finish_reason
            and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in _ARRAYS)
        )

    def __hash__(self) -> int:
        return hash((self.prompt_ids.tobytes(), self.response_ids.tobytes()))

    @property
    def num_tokens(self) -> int:
        """Of prompt and response together."""
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Prompt and response together."""
        return (*self.prompt_ids.tolist(), *self.response_ids.tolist())


_ARRAYS = {"prompt_ids": np.int32, "response_ids": np.int32, "logprobs": np.float32, "weight_versions": np.int32}


def version_runs(weight_versions: npt.NDArray[np.int32]) -> list[tuple[int, int]]:
    """Pairs of a version and of how many tokens in a row it sampled; versions never fall."""
    if not len(weight_versions):
        return []
    first, last = int(weight_versions[0]), int(weight_versions[-1])
    if first == last:
        return [(first, len(weight_versions))]
    versions, counts = np.unique(weight_versions, return_counts=True)
    return list(zip(versions.tolist(), counts.tolist(), strict=True))


def _unpickle(
    prompt_ids: npt.NDArray[np.int32], ids: bytes, logprobs: bytes, runs: Sequence[tuple[int, int]], reason: str
) -> Completion:
    prompt_ids.flags.writeable = False  # so that completions that came together share it
    versions, counts = zip(*runs, strict=True) if runs else ((0,), (0,))
    return Completion(
        prompt_ids=prompt_ids,
        response_ids=np.frombuffer(ids, np.int32),
        logprobs=np.frombuffer(logprobs, np.float32),
        finish_reason=FinishReason(reason),
        weight_versions=np.repeat(versions, counts) if len(runs) > 1 else versions[0],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """What was made of a response's text, for the rollout records."""

    outcome: str
    """Of a proposal ``valid`` or why it was refused, of an answer its verdict."""
    detail: str = ""
    """One sentence on why, such as ``line 3: imports random``; empty where there is nothing to add."""
    answer: tuple[tuple[str, str], ...] | None = None
    """Label and text of every section that was read; None when the response does not have the asked form."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What a training step made of one trajectory."""

    advantage: float | None
    """Mean over the response tokens; None where it is not finite, so that its optimizer step was skipped."""
    mismatch: float | None
    """Mean over the sampled response tokens of |log-probability in the trainer - in the engine|; None where the trainer
    gave none, and of a whole trace."""


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
    """Named terms whose combination is ``reward``, for the rollout records; empty where there is no reward."""
    accuracy: float | None = None
    """Solver: 1.0 right, 0.0 not. Proposer: None."""
    judgement: Judged | None = None
    """None where nothing but the reward is known."""
    trace_tokens: int = 0
    """How many of the response's first tokens another model's trace gave instead of the policy: 0 for an ordinary
    response, all for a whole trace. The ``logprobs`` of these tokens are 0, and their ``weight_versions`` say
    nothing."""

    @property
    def origin(self) -> Origin:
        if not self.trace_tokens:
            return "sampled"
        return "trace" if self.trace_tokens == len(self.completion.response_ids) else "prefix"

    @property
    def player(self) -> str:
        """Begins the names of its metrics: ``deduction/solver``, and ``deduction/solver/trace`` for another origin."""
        own = f"{self.kind}/{self.role}"
        return own if self.origin == "sampled" else f"{own}/{self.origin}"

    @property
    def sampled_versions(self) -> npt.NDArray[np.int32]:
        """Version of the weights of each token that an engine sampled; empty for a whole trace."""
        return self.completion.weight_versions[self.trace_tokens :]
