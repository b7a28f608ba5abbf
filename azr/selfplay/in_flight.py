"""Work that outlives its step: how it began and what it was answered so far, so that a resumed run goes on with it."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from azr.records import Completion, FinishReason, PromptIds, Task
from azr.selfplay.roles import Sampler, Shown

FILE = "in_flight.json.gz"
Begins = Literal["propose", "follow", "estimate", "solve"]
"""A proposal; what follows a proposal; a group of answers; one answer."""
Answered = dict[int, list[Completion]]
"""Completions by the seed of the request, which no other request of a run has."""
ANSWERED: ContextVar[Answered | None] = ContextVar("answered", default=None)
"""What the piece of work at hand was answered; its subtasks inherit it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """How a piece of a step's work began."""

    step: int
    name: str
    """Of the step."""
    kind: str
    begins: Begins
    index: int = 0
    """Of the proposal, or of the group in its step."""
    salt: int | str = 0
    """Of one answer."""
    shown: Shown | None = None
    """What a proposal's prompt shows."""
    task: Task | None = None
    """The task to answer. Of what follows a proposal, the accepted task; None while the proposal is under way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """A piece of work that was under way when its step ended."""

    origin: Origin
    answered: Answered
    """Grows while it goes on."""


@dataclass(slots=True)
class InFlight:
    """What the last step that was done has left over."""

    leftovers: Sequence[Leftover] = ()

    def copy(self) -> InFlight:
        """As it is now: what goes on is answered more."""
        return InFlight([replace(each, answered=dict(each.answered)) for each in self.leftovers])

    def write(self, folder: Path) -> None:
        """Into a checkpoint's folder, if there is anything."""
        if not self.leftovers:
            return
        trees = [
            {
                "origin": asdict(each.origin),
                "answered": {str(seed): [_tree(c) for c in some] for seed, some in each.answered.items()},
            }
            for each in self.leftovers
        ]
        (folder / FILE).write_bytes(gzip.compress(json.dumps(trees).encode(), 1))

    @classmethod
    def read(cls, folder: Path) -> InFlight:
        """From a checkpoint's folder, which may have none."""
        if not (folder / FILE).is_file():
            return cls()
        trees = json.loads(gzip.decompress((folder / FILE).read_bytes()))
        return cls([_leftover(tree) for tree in trees])


@dataclass(frozen=True, slots=True)
class Journal:
    """A sampler that asks another one what the piece of work at hand was not answered yet."""

    sampler: Sampler

    async def generate(
        self, prompt_ids: PromptIds, *, n: int, max_tokens: int, seed: int | None = None
    ) -> list[Completion]:
        answered = ANSWERED.get()
        if answered is None or seed is None:
            return await self.sampler.generate(prompt_ids, n=n, max_tokens=max_tokens, seed=seed)
        if seed not in answered:
            answered[seed] = await self.sampler.generate(prompt_ids, n=n, max_tokens=max_tokens, seed=seed)
        return answered[seed]


def _tree(completion: Completion) -> dict[str, Any]:
    return {
        "prompt_ids": completion.prompt_ids.tolist(),
        "response_ids": completion.response_ids.tolist(),
        "logprobs": completion.logprobs.tolist(),
        "finish_reason": completion.finish_reason,
        "weight_versions": completion.weight_versions.tolist(),
    }


def _leftover(tree: Mapping[str, Any]) -> Leftover:
    answered = {int(seed): [_completion(each) for each in some] for seed, some in tree["answered"].items()}
    return Leftover(origin=msgspec.convert(tree["origin"], Origin), answered=answered)


def _completion(tree: dict[str, Any]) -> Completion:
    return Completion(**(tree | {"finish_reason": FinishReason(tree["finish_reason"])}))
