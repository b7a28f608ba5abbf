"""Work that outlives a step, and every completion that it was given, by its request.

A step ahead, `rollout.partial` and a resumed run all begin the same coroutines again and find here what was answered.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from azr.answering import Generate
from azr.records import Completion, PromptIds, Task

FILE = "in_flight.json.gz"


@dataclass(slots=True, kw_only=True, eq=False)
class WorkItem:
    """A unit of a step's work, with all that it takes to begin it again; `generate` samples its own requests.

    A request that was made before is not made again. It continues when the coroutine that waits for it is cancelled,
    and its answer is kept.

    Example: ``WorkItem(step=12, name="000012", kind="deduction", begins="estimate", task=task, index=3)``
    """

    step: int
    name: str
    """Prefix of the step's task ids and random seeds, e.g. ``000012``."""
    kind: str
    begins: Literal["propose", "follow", "chain", "estimate", "solve"]
    """A proposal; the derived tasks and the first answer of an accepted task; a group of answers to a chained task that
    is not stored yet; a group of answers; one answer."""
    index: int = 0
    """Index of the proposal, or of the group in its step."""
    salt: int | str = 0
    """Tells apart the draws of a task that is solved more than once."""
    references: tuple[Task, ...] = ()
    """Tasks that the prompt of a proposal shows."""
    task: Task | None = None
    """The accepted task, or the one to answer."""
    ask: Generate | None = field(default=None, init=False)
    """Set by `Journal.open`, as the temperature that it samples at."""
    temperature: float = field(default=1.0, init=False)
    answers: dict[str, list[Completion]] = field(default_factory=dict, init=False)
    """Completions by their request: its seed and prompt, and the options that a resumed run may have changed."""
    requests: dict[str, asyncio.Task[list[Completion]]] = field(default_factory=dict, init=False)
    """Requests that are not answered yet."""

    @property
    def key(self) -> tuple[object, ...]:
        return self.name, self.kind, self.begins, self.index, self.salt, self.task.id if self.task else ""

    @property
    def origin(self) -> dict[str, Any]:
        """Return what begins it again, as a checkpoint holds it."""
        tree = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        task, shown = tree.pop("task"), {"references": tree.pop("references")}
        return tree | {"shown": shown if self.begins == "propose" else None, "task": task}

    async def generate(
        self, prompt_ids: PromptIds, *, n: int, max_tokens: int, seed: int | None = None, **others: object
    ) -> list[Completion]:
        assert self.ask is not None and seed is not None, "a request without a seed cannot be found again"
        is_plain = all(value is None or value == () for value in others.values())
        assert is_plain, "self-play samples at the rollout temperature, up to the format's own stops"
        # A resumed run may write its prompts otherwise, and a program that runs again may print something else.
        prompt = zlib.crc32(np.asarray(prompt_ids, np.int32).tobytes())
        request = f"seed {seed}, {n} of {max_tokens} tokens at {self.temperature:g} after {prompt:x}"
        if request in self.answers:
            return self.answers[request]
        if request not in self.requests:
            asking = self.ask(prompt_ids, n=n, max_tokens=max_tokens, seed=seed)
            self.requests[request] = asyncio.ensure_future(asking)
        self.answers[request] = await asyncio.shield(self.requests[request])
        self.requests.pop(request, None)
        return self.answers[request]

    def known_answers(self) -> dict[str, list[Completion]]:
        """Return the answers so far, also those that no coroutine has taken yet."""
        done = {request: task for request, task in self.requests.items() if task.done() and not task.cancelled()}
        return self.answers | {request: task.result() for request, task in done.items() if task.exception() is None}


class Journal:
    """Work in progress: the items of steps that are not recorded yet, with their answers."""

    def __init__(self, generate: Generate, temperature: float) -> None:
        self._generate, self._temperature = generate, temperature
        self._items: dict[tuple[object, ...], WorkItem] = {}
        self.left_over: dict[int, list[WorkItem]] = {}
        """Unfinished items by the step that left them over; the next step begins them again."""
        self.stored_solves: dict[str, int] = {}
        """Stored tasks that the last step's solvers needed, by kind; empty in a resumed run."""

    def open(self, item: WorkItem) -> WorkItem:
        """Return the item, with what it was answered before, in this run or in the one that it resumes."""
        known = self._items.setdefault(item.key, item)
        known.ask, known.temperature = self._generate, self._temperature
        return known

    def drop(self, item: WorkItem) -> None:
        """Forget an item, and cancel its requests."""
        for request in self.open(item).requests.values():
            request.cancel()
        del self._items[item.key]

    def recorded(self, step: int, items: Sequence[WorkItem]) -> None:
        """Drop the finished items of a step, and all of earlier steps: nothing is left over twice."""
        finished = {item.key for item in items}
        self._items = {key: item for key, item in self._items.items() if key not in finished and item.step >= step}
        self.left_over.pop(step - 1, None)

    async def close(self) -> None:
        requests = [request for item in self._items.values() for request in item.requests.values()]
        for request in requests:
            request.cancel()
        await asyncio.gather(*requests, return_exceptions=True)

    def copy(self, step: int) -> list[dict[str, Any]]:
        """Return what a run needs to continue after this step, for `write_journal`; the work is still running."""
        left_over = {item.key: item for item in self.left_over.get(step, ())}
        for item in left_over.values():
            self.open(item)  # one that had not asked for anything
        return [
            {"origin": item.origin, "left_over": key in left_over, "answered": item.known_answers()}
            for key, item in self._items.items()
        ]

    def read(self, folder: Path, step: int) -> None:
        """Take over the state of the checkpoint of a step, if its folder has any."""
        if not (folder / FILE).is_file():
            return
        for tree in json.loads(gzip.decompress((folder / FILE).read_bytes())):
            origin = tree["origin"]
            # It sets nothing that is not part of the constructor.
            item = replace(msgspec.convert(origin | (origin["shown"] or {}), WorkItem))
            item.answers = {text: [Completion(**each) for each in some] for text, some in tree["answered"].items()}
            self._items[item.key] = item
            if tree["left_over"]:
                self.left_over.setdefault(step, []).append(item)


def write_journal(folder: Path, state: Sequence[Mapping[str, Any]]) -> None:
    """Write the state that `Journal.copy` returned into a checkpoint's folder, if there is any. Blocks."""
    if state:
        text = json.dumps(state, default=_plain)
        (folder / FILE).write_bytes(gzip.compress(text.encode(), 1))


def _plain(value: Any) -> Any:
    """Return a task as a dict, a completion, which is one turn, as one without its text, and an array as a list."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    return {each.name: getattr(value, each.name) for each in fields(value) if each.name not in ("text", "observed")}
