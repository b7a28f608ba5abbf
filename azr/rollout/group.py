"""All engines of a run addressed as one: requests go to the least busy, and every wait has a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self

import ray
from ray.actor import ActorHandle

from azr.concurrency import awaited
from azr.config import Config
from azr.records import Completion
from azr.rollout.engine import RolloutEngine

MOST_CALLS = 10_000
"""Calls a Ray actor may have in flight; the engine queues them itself."""
SHUTDOWN_S = 30.0


class EngineGroup:
    """The rollout engines of a run. Make one with `start`, end it with `shutdown`."""

    def __init__(self, config: Config, actors: Sequence[ActorHandle]) -> None:
        self._config = config
        self.actors = tuple(actors)
        self._busy = dict.fromkeys(range(len(self.actors)), 0)

    @classmethod
    async def start(cls, config: Config, options: Sequence[Mapping[str, object]]) -> Self:
        """One engine per element of `options` (its Ray options).

        Raises TimeoutError when one is not ready within `rollout.start_timeout_s`. Nothing is left running after an
        error.
        """
        remote = ray.remote(RolloutEngine)
        actors = [
            remote.options(**share, max_concurrency=MOST_CALLS).remote(
                config.model.path, config.rollout, dtype=config.train.dtype, seed=config.run.seed + number
            )
            for number, share in enumerate(options)
        ]
        group = cls(config, actors)
        try:
            await group._all("start", config.rollout.start_timeout_s)
        except BaseException:
            await group.shutdown()
            raise
        return group

    async def generate(self, prompt_ids: list[int], *, n: int, max_tokens: int) -> list[Completion]:
        """`n` samples at the rollout temperature from the engine with the fewest requests in flight."""
        return await self._ask(prompt_ids, n, max_tokens, self._config.rollout.temperature)

    async def examine(self, prompt_ids: list[int], *, n: int, max_tokens: int, temperature: float) -> list[Completion]:
        """As `generate`, at any temperature, 0 being greedy: for exams, whose answers are never trained on."""
        return await self._ask(prompt_ids, n, max_tokens, temperature)

    async def _ask(self, prompt_ids: list[int], n: int, max_tokens: int, temperature: float) -> list[Completion]:
        engine = min(self._busy, key=lambda number: self._busy[number])
        self._busy[engine] += n
        call = self.actors[engine].generate.remote(prompt_ids, n=n, max_tokens=max_tokens, temperature=temperature)
        # The engine's own deadline comes first; this one is for an engine that does not answer at all.
        limit = self._config.rollout.generate_timeout_s + 10
        try:
            return await asyncio.wait_for(awaited(call), limit)
        except TimeoutError as error:
            raise TimeoutError(f"the driver waited {limit:g} s for rollout engine {engine} to generate") from error
        finally:
            self._busy[engine] -= n

    async def sleep(self) -> None:
        """Finish what is being generated and, on a GPU, leave the memory to the trainers."""
        await self._all("sleep", self._config.rollout.generate_timeout_s)

    async def wake(self) -> None:
        """End `sleep`; a GPU engine then needs its weights pushed."""
        await self._all("wake", self._config.rollout.start_timeout_s)

    async def shutdown(self) -> None:
        """Stop every engine and its processes."""
        calls = [asyncio.ensure_future(awaited(actor.shutdown.remote())) for actor in self.actors]
        await asyncio.wait(calls, timeout=SHUTDOWN_S)
        for actor in self.actors:
            ray.kill(actor)

    async def _all(self, method: str, timeout_s: float) -> list[Any]:
        calls = [awaited(getattr(actor, method).remote()) for actor in self.actors]
        try:
            return await asyncio.wait_for(asyncio.gather(*calls), timeout_s)
        except TimeoutError as error:
            raise TimeoutError(
                f"the driver waited {timeout_s:g} s for {len(calls)} rollout engine(s) to answer {method}"
            ) from error
