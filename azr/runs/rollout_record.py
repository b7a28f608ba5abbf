"""One line of a run's rollout files: what was asked, what was said, and what was made of it (docs/observability.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from azr.records import Learned, PromptIds, Sample, version_runs

SCHEMA = 3
"""Version of `RolloutRecord`. Lines of version 1 have no ``schema`` and nothing of version 2; 3 added ``flags``."""
Decode = Callable[[PromptIds], str]
"""Token ids to text, special tokens included. Called from a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRecord:
    """A trajectory as it is kept. Fields with a default came with version 2 or 3."""

    step: int
    role: Literal["proposer", "solver"]
    kind: str
    task_id: str
    """Of the task proposed or solved. A refused proposal has an id of its own, a derived task that of its origin, its
    own kind and a number."""
    group: str
    """``propose:…``, ``estimate:…``, ``solve:…`` or, for rows of files, ``data:…``; equal for answers to one prompt."""
    prompt: str
    response: str
    """Special tokens included, as in the prompt."""
    reward: float | None
    """None where there is none: a proposal or an answer that could not be graded, or a role that is not trained."""
    reward_parts: dict[str, float]
    accuracy: float | None
    """Solver: 1.0 right, 0.0 not. Proposer, or not graded: None."""
    finish_reason: Literal["stop", "length"]
    weight_versions: list[tuple[int, int]]
    """Pairs of a version of the weights and of how many tokens in a row it sampled; none of them is of a trace."""
    schema: int = 1
    outcome: str | None = None
    """Of a proposal ``valid`` or an `azr.tasks.base.RejectReason`, of an answer an `azr.tasks.base.Verdict`."""
    detail: str = ""
    """Why, in a sentence, where there is more to say: ``line 3: imports random``."""
    answer: list[tuple[str, str]] | None = None
    """Labels and texts that were read from the response: program, input, output, message. None when there were none."""
    prompt_tokens: int | None = None
    response_tokens: int | None = None
    trained: bool = True
    """False for what was only recorded: an estimate that only estimates, a response that is too old, was cut off and
    masked, or could not be graded."""
    advantage: float | None = None
    """Mean over the response's tokens; None where it was not trained on."""
    mismatch: float | None = None
    """Mean over the sampled tokens of |log-probability in the trainer - in the engine|."""
    trace_tokens: int = 0
    """How many of the response's first tokens another model's trace gave; 0 in lines that do not say it."""
    flags: list[tuple[str, int, int]] = field(default_factory=list)
    """Rules of the safety screen, and where in the response their patterns begin and end."""


def rollout_record(
    step: int,
    trajectory: Sample,
    learned: Learned | None,
    prompt: str,
    decode: Decode,
    flags: Sequence[tuple[str, int, int]] = (),
) -> RolloutRecord:
    """A trajectory of a step with its texts; ``learned`` is None when it was not trained on."""
    completion, judgement = trajectory.completion, trajectory.judgement
    return RolloutRecord(
        step=step,
        role=trajectory.role.value,
        kind=trajectory.kind,
        task_id=trajectory.problem_id,
        group=trajectory.group,
        prompt=prompt,
        response=decode(completion.response_ids),
        reward=trajectory.reward if trajectory.reward_parts else None,
        reward_parts=trajectory.reward_parts,
        accuracy=trajectory.accuracy,
        finish_reason=completion.finish_reason.value,
        weight_versions=version_runs(trajectory.sampled_versions),
        schema=SCHEMA,
        outcome=None if judgement is None else str(judgement.verdict),
        detail="" if judgement is None else judgement.detail,
        answer=None if judgement is None or judgement.answer is None else list(judgement.answer),
        prompt_tokens=len(completion.prompt_ids),
        response_tokens=len(completion.response_ids),
        trained=learned is not None,
        advantage=None if learned is None else learned.advantage,
        mismatch=None if learned is None else learned.mismatch,
        trace_tokens=trajectory.trace_tokens,
        flags=list(flags),
    )
