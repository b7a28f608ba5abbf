"""All engines of a run as one object: requests go to the least busy engine, and dead engines are replaced.

Requests of a dead engine are sent again to another one. Every wait has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import ray
from ray.actor import ActorHandle

from azr.cluster.supervisor import ActorLost, SupervisedActor, within
from azr.cluster.weight_sync import WeightSync
from azr.concurrency import gather
from azr.config import Config
from azr.records import Completion, PromptIds, Stops
from azr.rollout.engine import MemoryPart, RolloutEngine

MAX_ATTEMPTS = 3
"""Attempts per request: two engines may die over it."""
MAX_RESTARTS = 2
"""Restarts of one engine in a row without a success. A run on such an engine would never end."""
MAX_CONCURRENCY = 10_000
"""Calls a Ray actor may have in flight; the engine queues them itself."""
SHUTDOWN_S, CUT_SHORT_S = 30.0, 2.0
"""For the end of the engines' processes, and of those that have not started yet."""
COUNTS_S = 120.0
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EnginePlacement:
    """Placement of an engine, and of any that replaces it."""

    options: Mapping[str, object] = field(default_factory=dict)
    """Ray options of its actor."""
    find_gpus: Callable[[], Awaitable[tuple[str, ...]]] | None = None
    """Returns the names of its GPUs at its start; None if it has only the GPU that Ray gives its actor."""


def engine_seed(seed: int, index: int, from_step: int, replaced: int) -> int:
    """Return a 32-bit seed of the engine at ``index``, for a run resumed at a step and a number of restarts.

    Requests of a deterministic run carry seeds. In other runs they draw from the engine's generator: a fresh engine
    with the seed of the previous one would repeat its noise.
    """
    return random.Random(f"engine/{seed}/{index}/{from_step}/{replaced}").getrandbits(32)


class EngineSlot(SupervisedActor):
    """One engine of the group, and any that replaces it."""

    def __init__(self, index: int, group: EngineGroup, placement: EnginePlacement) -> None:
        super().__init__(
            f"rollout engine {index}",
            self._create_actor,
            start_timeout_s=group.config.timeout.start_s,
            max_restarts=MAX_RESTARTS,
            bring_up_to_date=lambda: group.resync(self),
        )
        self._index, self._group, self._placement, self._num_created = index, group, placement, 0
        self.num_inflight = 0
        """Samples requested and not answered."""
        self.lost_asleep: ActorLost | None = None
        """Why the engine is missing until `wake`; None if it lives."""

    async def _create_actor(self) -> ActorHandle:
        config, find_gpus, gpus = self._group.config, self._placement.find_gpus, ()
        replaced, self._num_created = self._num_created, self._num_created + 1
        if find_gpus is not None:
            gpus = await within(find_gpus(), config.timeout.start_s, "Ray", f"find the GPUs of {self.name}")
        actor = (
            ray.remote(RolloutEngine)
            .options(**self._placement.options, max_concurrency=MAX_CONCURRENCY)
            .remote(
                config,
                stops=self._group.stops,
                seed=engine_seed(config.run.seed, self._index, self._group.from_step, replaced),
                gpus=gpus,
            )
        )
        # Takes long and no GPU; what goes wrong with it goes wrong in its start again.
        actor.load_code.remote()
        return actor


class EngineGroup:
    """The rollout engines of a run. Call `start` first and `shutdown` last."""

    def __init__(self, config: Config, stops: Stops, placements: Sequence[EnginePlacement], from_step: int = 0) -> None:
        """One engine per placement; responses end at ``stops``. ``from_step``: the step at which the run resumes."""
        self.config, self.stops, self.from_step = config, stops, from_step
        self.slots = [EngineSlot(index, self, place) for index, place in enumerate(placements)]
        self.weights: WeightSync | None = None
        """Sends the policy's weights to replaced engines; None before there is a policy."""
        self.given_up = 0
        """Number of responses so far that took longer than `timeout.generate_s`."""
        self._request_ids = itertools.count(1)

    async def start(self, when: asyncio.Future[None] | None = None) -> None:
        """Start the engines. ``when``: they load their code at once, and use their GPUs after it.

        Raises TimeoutError if one is not ready within `timeout.start_s`. Nothing is left running after an error.
        """
        try:
            await gather(*(slot.start(when) for slot in self.slots))
        except BaseException:
            await self.shutdown(within_s=CUT_SHORT_S)
            raise

    @property
    def actors(self) -> tuple[ActorHandle, ...]:
        """Handles of the present engines; a dead engine is replaced by another."""
        return tuple(slot.actor for slot in self.slots if slot.actor is not None)

    @property
    def restarts(self) -> int:
        """Number of engines replaced so far."""
        return sum(slot.restarts for slot in self.slots)

    @property
    def kv_cache_tokens(self) -> int:
        """Tokens in the smallest KV cache of the engines."""
        return min(slot.start_report.kv_cache_tokens for slot in self.slots)

    @property
    def start_seconds(self) -> dict[str, float]:
        """Seconds by phase of an engine's start, of the slowest engine."""
        starts = [slot.start_report.seconds for slot in self.slots]
        return {name: max(seconds[name] for seconds in starts) for name in starts[0]}

    async def stats(self) -> dict[str, float]:
        """Return metrics of all engines together since the last call."""
        counts: Counter[str] = Counter()
        for taken in await asyncio.gather(*(self._take_counts(slot) for slot in self.slots)):
            counts.update(taken)
        return {
            "restarts": self.restarts,
            "given_up": self.given_up,
            "kv_cache_tokens": self.kv_cache_tokens,
            # Requests that had to leave the KV cache to others, and the share of all computing that repeating them was.
            "preemptions": counts["preemptions"],
            "recomputed_share": counts["recomputed_tokens"] / max(counts["tokens"], 1),
            "cached_prompt_share": counts["cached_prompt_tokens"] / max(counts["prompt_tokens"], 1),
        }

    async def _take_counts(self, slot: EngineSlot) -> dict[str, int]:
        try:
            counts: dict[str, int] = await slot.call("take_counts", timeout_s=COUNTS_S, to="say what it counted")
        except ActorLost:
            return {}  # with what it had counted; the next request replaces the engine
        return counts

    async def generate(
        self,
        prompt_ids: PromptIds,
        *,
        n: int,
        max_tokens: int,
        temperature: float | None = None,
        seed: int | None = None,
        stop_strings: Sequence[str] = (),
    ) -> list[Completion]:
        """Draw `n` samples from the engine with the fewest running, by default at the rollout temperature.

        Only evaluation, whose answers are never trained on, passes another temperature; 0 is greedy. `seed` fixes the
        samples in an evaluation and a deterministic run, whichever engine draws them. Other rollouts omit it: it would
        cost time without making them repeatable. Responses that took longer than `timeout.generate_s` are missing, and
        counted in `given_up`. Raises RuntimeError if `MAX_ATTEMPTS` engines died over this request, or one engine more
        than `MAX_RESTARTS` times in a row.
        """
        request_id = next(self._request_ids)
        for attempt in itertools.count(1):
            while not (free := [slot for slot in self.slots if not slot.restarting.locked()]):
                async with self.slots[0].restarting:
                    pass
            slot = min(free, key=lambda slot: slot.num_inflight)
            slot.num_inflight += n
            try:
                completions: list[Completion] = await slot.call_together(
                    "generate",
                    prompt_ids,
                    n=n,
                    max_tokens=max_tokens,
                    temperature=self.config.rollout.temperature if temperature is None else temperature,
                    seed=seed if self.config.run.deterministic or temperature is not None else None,
                    stop_strings=stop_strings,
                    # The engine has deadlines of its own, and is looked after meanwhile; waiting in it has none.
                    timeout_s=math.inf,
                    to="generate",
                )
            except ActorLost as error:
                if attempt == MAX_ATTEMPTS:
                    raise RuntimeError(
                        f"request {request_id} ({len(prompt_ids)} prompt tokens, {n} samples) is given up, because "
                        f"{attempt} engines were lost over it; the last: {error}"
                    ) from error
                lost = error
            else:
                slot.succeeded()
                if len(completions) < n and not self.given_up:
                    log.warning(
                        "%s sampled a response for more than %g s (timeout.generate_s); it is given up and not graded, "
                        "and so is every other such response from now on without a line here",
                        slot.name, self.config.timeout.generate_s,
                    )  # fmt: skip
                self.given_up += n - len(completions)
                return completions
            finally:
                slot.num_inflight -= n
            # One of the requests that lost this engine replaces it; the others look for a free one.
            if not slot.restarting.locked():
                await slot.restart(lost)
        raise AssertionError("unreachable")

    async def resync(self, slot: EngineSlot) -> None:
        """Give a fresh engine the weights of the others."""
        slot.lost_asleep = None
        if self.weights is not None:
            await self.weights.resync(slot)

    async def sleep(self) -> None:
        """Finish running responses and, on a GPU, free the memory for the trainers.

        `wake` replaces an engine that dies meanwhile.
        """
        await gather(*(self._sleep(slot) for slot in self.slots))

    async def _sleep(self, slot: EngineSlot) -> None:
        async with slot.restarting:
            try:
                await slot.call("sleep", timeout_s=self.config.timeout.generate_s, to="sleep")
            except ActorLost as error:
                # A fresh engine would take the memory that the trainers are about to need.
                slot.lost_asleep = error
                ray.kill(error.actor)

    async def wake(self, part: MemoryPart) -> None:
        """End `sleep`, first for "weights", which a GPU engine then needs, and then for "kv_cache"."""
        await gather(*(self._wake(slot, part) for slot in self.slots))

    async def _wake(self, slot: EngineSlot, part: MemoryPart) -> None:
        try:
            if slot.lost_asleep is not None:
                raise slot.lost_asleep
            await slot.call("wake", part, timeout_s=self.config.timeout.start_s, to="wake")
        except ActorLost as error:
            await slot.restart(error)

    async def shutdown(self, within_s: float = SHUTDOWN_S) -> None:
        """Stop every engine and its processes; those that take longer are killed."""
        ended = asyncio.gather(*(actor.shutdown.remote() for actor in self.actors), return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(ended, within_s)
        for actor in self.actors:
            ray.kill(actor)
