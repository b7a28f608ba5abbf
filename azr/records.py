"""The records that travel between rooms: frozen, documented, free of heavy imports.

Every record here can be pickled by Ray, and none holds a tensor. Who reads records from files needs no numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ids = npt.NDArray[np.int32]
    Logprobs = npt.NDArray[np.float32]
else:
    Ids = Logprobs = Sequence

Role = Literal["proposer", "solver"]
"""Which half of self-play wrote a response."""
ROLES: tuple[Role, ...] = ("proposer", "solver")


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
    """Plug-in kinds: extra JSON data of the task."""

    def record(self) -> dict[str, Any]:
        """Return the fields for a line of JSON, without an empty payload."""
        return {name: value for name, value in asdict(self).items() if value or name != "payload"}


Origin = Literal["sampled", "trace"]
"""Who wrote a response: the policy, or another model."""


FinishReason = Literal["stop", "length", "given_up"]
"""Why a response ended; given_up: the engine took longer than `timeout.generate_s`, and the response is empty."""


@dataclass(frozen=True, slots=True)
class Stops:
    """What ends a response before it reaches its longest length."""

    strings: tuple[str, ...] = ()
    """Texts; the token that completes one is the response's last, and may hold more than its end."""
    token_ids: tuple[int, ...] = ()
    """End tokens; the one that was sampled is the response's last."""


PromptIds = Sequence[int] | Ids
"""Token ids of a prompt; arrays cost least."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """One sampled response, exactly as the engine produced it: tokens in, tokens out. A conversation is one, too.

    P prompt tokens, R response tokens. What is given for the arrays is converted, and cannot be written to any more.
    """

    prompt_ids: Ids
    """(P). Completions of one prompt share the array where it is given as one that cannot be written to."""
    response_ids: Ids
    """(R). Includes what ended it when ``finish_reason`` is ``stop``: an end token, or the end of a stop string."""
    logprobs: Logprobs
    """(R). Log-probabilities of the rollout at the sampling temperature, natural log."""
    finish_reason: FinishReason
    weight_versions: Ids
    """(R). Version of the policy weights that the engine held while it sampled each token; never falls."""
    observed: tuple[tuple[int, int], ...] = ()
    """Begin and end of each run of response tokens that an environment wrote, in order. Nothing is learned from them;
    their log-probabilities are 0, and their versions those of the token before."""
    text: str | None = None
    """Text of the response, control tokens included, if the engine's process has decoded it."""

    def __post_init__(self) -> None:
        import numpy as np

        count = len(self.response_ids)
        for name, dtype in _ARRAYS.items():
            given = getattr(self, name)
            if not isinstance(given, np.ndarray) or given.dtype != dtype:
                given = np.asarray(given, dtype)
            if given.ndim == 0:  # one number stands for all tokens
                given = np.ndarray((count,), dtype, given.tobytes(), strides=(0,))
            elif given.flags.writeable:
                given = given.view()
                given.flags.writeable = False
            assert name == "prompt_ids" or len(given) == count, f"{len(given)} {name} of {count} tokens"
            object.__setattr__(self, name, given)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle plain bytes: arrays cost Ray many times what they hold, and versions hardly ever change."""
        arrays = self.response_ids.tobytes(), self.logprobs.tobytes(), version_runs(self.weight_versions)
        return _unpickle, (self.prompt_ids, *arrays, self.finish_reason, self.observed, self.text)

    def __eq__(self, other: object) -> bool:
        import numpy as np

        return (
            isinstance(other, Completion)
            and (self.finish_reason, self.observed) == (other.finish_reason, other.observed)
            and all(np.array_equal(getattr(self, name), getattr(other, name)) for name in _ARRAYS)
        )

    def __hash__(self) -> int:
        return hash((self.prompt_ids.tobytes(), self.response_ids.tobytes()))

    @property
    def num_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return (*self.prompt_ids.tolist(), *self.response_ids.tolist())

    @property
    def is_sampled(self) -> npt.NDArray[np.bool_]:
        """(R), whether a model wrote the token."""
        import numpy as np

        is_sampled = np.ones(len(self.response_ids), bool)
        for start, end in self.observed:
            is_sampled[start:end] = False
        return is_sampled

    @property
    def num_sampled(self) -> int:
        return len(self.response_ids) - sum(end - start for start, end in self.observed)

    @property
    def last_turn(self) -> Completion:
        """Tokens after the last observation, as a response to the same prompt."""
        if not self.observed:
            return self
        rest: dict[str, Any] = {n: getattr(self, n)[self.observed[-1][1] :] for n in _ARRAYS if n != "prompt_ids"}
        return Completion(prompt_ids=self.prompt_ids, finish_reason=self.finish_reason, **rest)

    def continued(self, observed: Sequence[int], turn: Completion) -> Completion:
        """Return the conversation with what an environment wrote after it, and the model's answer to that."""
        import numpy as np

        start, count = len(self.response_ids), len(observed)
        versions = np.full(count, self.weight_versions[-1] if start else 0)
        between = {"response_ids": observed, "logprobs": np.zeros(count), "weight_versions": versions}
        joined: dict[str, Any] = {
            name: np.concatenate([getattr(self, name), some, getattr(turn, name)]) for name, some in between.items()
        }
        spans = (*self.observed, *([(start, start + count)] if count else []))
        return Completion(prompt_ids=self.prompt_ids, finish_reason=turn.finish_reason, observed=spans, **joined)


_ARRAYS = {"prompt_ids": "int32", "response_ids": "int32", "logprobs": "float32", "weight_versions": "int32"}


def version_runs(weight_versions: Ids) -> list[tuple[int, int]]:
    """Return pairs of a version and of how many tokens in a row it sampled; versions never fall."""
    if not len(weight_versions):
        return []
    first, last = int(weight_versions[0]), int(weight_versions[-1])
    if first == last:
        return [(first, len(weight_versions))]
    import numpy as np

    versions, counts = np.unique(weight_versions, return_counts=True)
    return list(zip(versions.tolist(), counts.tolist(), strict=True))


def _unpickle(
    prompt_ids: Ids,
    ids: bytes,
    logprobs: bytes,
    runs: Sequence[tuple[int, int]],
    reason: FinishReason,
    observed: tuple[tuple[int, int], ...],
    text: str | None,
) -> Completion:
    import numpy as np

    prompt_ids.flags.writeable = False  # so that completions that came together share it
    versions, counts = zip(*runs, strict=True) if runs else ((0,), (0,))
    return Completion(
        prompt_ids=prompt_ids,
        response_ids=np.frombuffer(ids, np.int32),
        logprobs=np.frombuffer(logprobs, np.float32),
        finish_reason=reason,
        weight_versions=np.repeat(versions, counts) if len(runs) > 1 else versions[0],
        observed=observed,
        text=text,
    )


Reason = Literal[
    "",  # it is well-formed and graded
    "cut_off",  # it reached the longest length
    "unclosed_thinking",  # the thinking was not closed, or not just once
    "no_answer",  # no answer part, or nothing in it that could be an answer
    "two_answers",
    "misplaced_answer",  # there is text between the thinking and the answer
    "no_block",
    "no_box",
    "missing_block",  # there are blocks, but not all that the prompt wants
    "unreadable",  # the blocks hold no Python, no plain data, or not what the prompt wants
    "given_up",  # the engine took longer than `timeout.generate_s`
    "lost",  # the executor lost the call
    "no_gold",  # what it is compared with cannot be read, or fails when it is run
    "grader_failed",  # the grader raised, returned something else than it should, or took too long
    "no_reward",  # its reward function returned None
    "environment_failed",  # the environment of its conversation could not continue
    "attempts_ungraded",  # no attempt at the proposed task could be graded
]
"""Why a response is malformed or could not be graded, for counting; `Judgement.detail` says it in a sentence."""
REASONS: tuple[Reason, ...] = get_args(Reason)[1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a grader or a validation says of one response.

    Example: ``Judgement(verdict="wrong", detail="f(2) gives 4, not 5", answer=(("output", "5"),))``
    """

    verdict: str
    """`azr.tasks.base.Verdict` of an answer; of a proposal `VALID` or an `azr.tasks.base.RejectReason`."""
    detail: str = ""
    """One sentence on why, such as ``line 3: imports random``; empty where there is nothing to add."""
    answer: tuple[tuple[str, str], ...] | None = None
    """Label and text of every section that was read: program, input, output, message, or ``answer`` where there is one
    only. None when no answer could be extracted."""
    parts: Mapping[str, bool | float] = field(default_factory=dict)
    """Verdicts on parts, such as ``base`` and ``plus``, numbers that a grader states by name, and `COPIED`."""
    score: float | None = None
    """The grader's number, 0 (wrong) to 1 (right), if it gives one; a reward function's may be any."""
    reason: Reason = ""


VALID = "valid"
"""Verdict on a proposal that became a task."""
COPIED = "copied"
"""Part of a proposal's judgement: whether it copies a worked example or a reference of its prompt."""
REPEATS = ("seed", "buffer", "reference", "step")
"""What a duplicate repeats, as the part ``repeats_seed`` of its judgement says: a task that the buffer began with or a
worked example, a later one of the buffer, one that its prompt showed, or one proposed in the same step."""

ORIGINS = ("own", "derived", "replayed", "chained")
"""Where the task of a group of answers is from: proposed in the step, derived from such a task, stored before, or made
of two stored ones in the step."""
CHAIN = "chain-"
"""What follows step and kind in the id of a chained task."""
CORPUS = "corpus"
"""Kind of a function of `selfplay.corpus`: a task without inputs, which proposers see. Its id begins so, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsLeft:
    """Rows of a data file that a run still has to take in its epoch; a checkpoint holds them.

    Example: ``RowsLeft(epoch=1, ids=("17", "4"), file="9f86d081…")``
    """

    epoch: int
    """From 0."""
    ids: tuple[str, ...]
    """Ids of the rows, in the order in which they will be taken."""
    file: str
    """Digest of the data file; empty if no file has been used."""


NO_ROWS_TAKEN = RowsLeft(epoch=0, ids=(), file="")
"""State of a new run, and of a run without a data file."""


NO_TOKENS: Any = None
"""Completion of a sample that was read from a file."""
Used = Literal["trained", "estimate", "ungraded", "unlearnable", "stale", "cut off", "recorded"]
"""What a sample was used for: it was trained on; it only estimated a solve rate; it could not be graded; its group was
all right or all wrong, and `rollout.refill` left it out; it was too old to be trained on; it was masked because it was
cut off; or it was only kept, as in seeding and evaluation."""


@dataclass(slots=True, kw_only=True)
class Sample:
    """One response and everything that became of it, from the engine's answer to the line of a rollout or evaluation
    file (docs/observability.md). Later stages fill in their fields by name.

    Example: ``Sample(completion=completion, role="solver", kind="deduction", problem_id="000012-deduction-0003",
    group="solve:000012:000012-deduction-0003", judgement=Judgement(verdict="right"), reward=1.0)``
    """

    step: int = 0
    """Training step; 0 for seeding."""
    role: Role
    kind: str
    """Task kind, source of a row, or suite."""
    problem_id: str
    """Id of the task proposed or solved, of the row or of the question. A rejected proposal has an id, too."""
    group: str
    """In training, samples with the same group answered the same prompt (baselines of RLOO and GRPO): ``propose:…``,
    ``estimate:…``, ``solve:…`` or, for rows of files, ``data:…``. In an evaluation the question's group in its
    suite."""
    index: int | None = None
    """Evaluation: index of the sampled answer to its question; None for the greedy one."""
    prompt: str = ""
    """Decoded with special tokens; filled in when the sample is written."""
    response: str = ""
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    observed: list[tuple[int, int]] = field(default_factory=list)
    """Where in the response an environment wrote: begins and ends, in characters."""
    finish_reason: FinishReason = "stop"
    weight_versions: list[tuple[int, int]] = field(default_factory=list)
    """Pairs of a version of the weights and of how many tokens in a row it sampled; tokens of a trace have none."""
    trace_tokens: int = 0
    """Tokens that another model wrote: 0 for a response of the policy, all for a trace. Their log-probabilities are 0,
    and their weight versions say nothing."""
    judgement: Judgement | None = None
    """None where nothing but the reward is known."""
    accuracy: float | None = None
    """Solver: 1.0 right, 0.0 not. Proposer, or not graded: None."""
    solve_rate: float | None = None
    """Proposer: share of right answers to the accepted task, as estimated."""
    reward: float | None = None
    """None where there is none, as in an evaluation or for what could not be graded."""
    reward_parts: dict[str, float] = field(default_factory=dict)
    """Named terms whose combination is ``reward``."""
    used: Used = "trained"
    advantage: float | None = None
    """Mean over the response's tokens; None where it was not trained on, or the mean is not finite."""
    mismatch: float | None = None
    """Mean over the sampled tokens of |log-probability in the trainer - in the engine|, in nats."""
    tokens: list[tuple[str, float | None, float | None]] = field(default_factory=list)
    """Text and log-probability in engine and trainer of each token; only of a kind's and role's largest mismatch."""
    flags: list[tuple[str, int, int]] = field(default_factory=list)
    """Rules of the safety screen, and where in the response their patterns begin and end."""
    schema: int = 4
    """Version of this record; lines of another are refused."""
    completion: Completion = field(default=NO_TOKENS, repr=False, metadata={"in_files": False})
    """Token ids and log-probabilities; not written to files."""

    def __post_init__(self) -> None:
        if self.completion is not NO_TOKENS:
            self.prompt_tokens = len(self.completion.prompt_ids)
            self.response_tokens = len(self.completion.response_ids)
            self.finish_reason = self.completion.finish_reason
            self.weight_versions = version_runs(self.sampled_versions)

    @property
    def verdict(self) -> str:
        """Verdict of the judgement; empty without one."""
        return "" if self.judgement is None else self.judgement.verdict

    @property
    def phase(self) -> str:
        """``propose``, ``estimate``, ``solve`` or, for a row of a file, ``data``."""
        return self.group.partition(":")[0]

    @property
    def is_malformed(self) -> bool:
        """Whether the response breaks the format; one that was cut off does."""
        return self.finish_reason == "length" or self.verdict == "malformed"

    @property
    def origin(self) -> Origin:
        return "trace" if self.trace_tokens else "sampled"

    @property
    def player(self) -> str:
        """Prefix of its metrics: ``deduction/solver``, and ``deduction/solver/trace`` for a trace."""
        return f"{self.kind}/{self.role}{'/trace' if self.trace_tokens else ''}"

    @property
    def sampled_versions(self) -> Ids:
        """Version of the weights of each token that an engine sampled; empty for a trace."""
        versions = self.completion.weight_versions  # which takes no memory while it is one number
        return (versions[self.completion.is_sampled] if self.completion.observed else versions)[self.trace_tokens :]


K = TypeVar("K")
V = TypeVar("V")


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, such as the samples of each player; keys in the order in which they first come."""
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
