"""Weight sync: pushes the policy's weights after each update, and sends them again to restarted engines.

`WeightSync` is the driver's side, `send_weights` that of the policy's ranks.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

import ray
from ray import ObjectRef
from torch import Tensor

from azr.cluster.supervisor import DEATHS, ActorLost, SupervisedActor, ping, root_cause
from azr.cluster.weight_buckets import Outbox, Receiver, WeightBucket
from azr.concurrency import task_group, wait_for_all

MAX_ATTEMPTS = 3
"""Attempts per push: engines may be lost twice."""
GRACE_S = 10.0
"""The sender's deadline for an engine ends so much before the driver's deadline, which cannot name an engine."""
SETTLE_S = 10.0
"""Seconds in which engines must drop their loads after a failed push."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PushReport:
    """One push of the weights to every engine."""

    version: int
    nbytes: int
    """Bytes of the weights, counted once for all engines."""
    seconds: float
    """From the first engine's preparation to the last engine that serves the weights."""
    transfer: str = ""
    """Name in `azr.cluster.weight_transfers`."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase of the policy's rank 0. ``gather``: of sharded parameters, as far as the CPU waits for it.
    ``pack``: copying into the block, and the digest. ``load``: waiting for slower engines."""
    digest: str = ""
    """Digest of names, types, shapes and bytes, see `azr.cluster.weight_buckets.WeightDigest`."""


class Role(Protocol):
    """All ranks of a model, see `azr.train.worker_group` and, for what they are called, `azr.train.model_worker`."""

    def call(self, method: str, *args: object, timeout_s: float, to: str) -> Awaitable[list[Any]]: ...


class WeightSync:
    """Keeps the weights of all engines equal to the policy's. The driver owns one.

    Timeline of `push(version)`; each arrow is a call with a deadline:

        driver                       policy's ranks                        engines
        begin_update(version) ────────────────────────────────────────────► hold new prompts, wait for those in flight
        send_weights ──────────────► all: gather ZeRO-3 parameters,
                                     a bucket at a time, and copy it
                                     where engines reach it
                                     rank 0: add up its bits
                                     load_bucket(bucket) ─────────────────► take it, compare the digest, load
                                     … until the last bucket, the next
                                     gathered while one is loaded
        PushReport ◄────────────────
        finish_update(version, digest) ───────────────────────────────────► repack layers, compare digest and names,
                                                                            reset the prefix cache, serve
        its version ◄──────────────────────────────────────────────────────

    Three checks, each for another fault. A worker compares the digest of every bucket before it loads it: bytes were
    damaged, or a bucket was lost or comes out of turn. At the end it compares the last digest and the names: the last
    bucket was lost, or the policy lacks a parameter. The driver compares the version that the engine's core serves.

    If an engine dies during a push, it is replaced, and the push is repeated for the engines that do not serve this
    version yet, `MAX_ATTEMPTS` times in all. An engine that is replaced later gets the same weights (`resync`), unless
    the policy may have changed (`policy_moves`): then it serves nothing before the next push.
    """

    def __init__(self, policy: Role, engines: Sequence[SupervisedActor], timeout_s: float) -> None:
        """`policy`: its rank 0 answers ``send_weights(version, receivers, timeout_s)`` with a `PushReport`.

        `timeout_s`: deadline of each call, which may wait for running prompts or for all of the sending."""
        self._policy, self._engines, self._timeout_s = policy, engines, timeout_s
        self._version = 0
        self._policy_has_it = False
        """Whether the policy still has the weights of that version."""

    async def push(self, version: int) -> PushReport:
        """Send the policy's weights to every engine. Raises the errors of the policy and of living engines, and
        RuntimeError if engines keep dying."""
        self._version, self._policy_has_it = version, False
        due = self._engines
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                report = await self._send(due)
                break
            except Exception as error:  # the policy's own too: which engine is to blame shows when they are asked
                lost = [engine for engine, its in await self._served() if its is None]
                if attempt == MAX_ATTEMPTS or not lost:
                    raise
                async with task_group() as restarting:
                    for engine in lost:
                        cause = f"{engine.name} died over weight version {version} ({root_cause(error)})"
                        restarting.create_task(engine.restart(ActorLost(cause, engine.actor)))
            due = [engine for engine, its in await self._served() if its != version]
        for engine in self._engines:
            engine.succeeded()
        self._policy_has_it = True
        return report

    def policy_moves(self) -> None:
        """Note that the policy's weights may differ from the engines' until the next push."""
        self._policy_has_it = False

    async def resync(self, engine: SupervisedActor) -> None:
        """Send a fresh engine the weights of the others. Raises ActorLost if it dies meanwhile."""
        if not self._version:
            return  # it has loaded the same folder as the policy
        if not self._policy_has_it:
            # Serves nothing until the next push, which brings what is to be sampled from.
            await engine.call(
                "begin_update", self._version + 1, timeout_s=self._timeout_s, to="hold prompts until the next push"
            )
            return
        try:
            await self._send([engine])
        except Exception as error:  # the policy's own too: whether the engine is to blame shows when it is asked
            if isinstance(error, ActorLost) or await ping(engine.actor) is not None:
                raise
            raise ActorLost(f"{engine.name} died over its weights ({root_cause(error)})", engine.actor) from error

    async def _send(self, engines: Sequence[SupervisedActor]) -> PushReport:
        version, limit, started = self._version, self._timeout_s, time.perf_counter()
        nodes = await wait_for_all(
            engine.call("begin_update", version, timeout_s=limit, to=f"get ready for weight version {version}")
            for engine in engines
        )
        receivers = [Receiver(engine.name, engine.actor, node) for engine, node in zip(engines, nodes, strict=True)]
        (sent, *_) = await self._policy.call(
            "send_weights", version, receivers, limit, timeout_s=limit + GRACE_S, to="send their weights"
        )
        served = await wait_for_all(
            engine.call("finish_update", version, sent.digest, timeout_s=limit, to=f"serve weight version {version}")
            for engine in engines
        )
        for engine, its in zip(engines, served, strict=True):
            if its != version:
                raise RuntimeError(f"{engine.name} was sent weight version {version} and serves {its}")
        return replace(sent, seconds=time.perf_counter() - started)

    async def _served(self) -> list[tuple[SupervisedActor, int | None]]:
        """Return the version of each engine; None of one that is lost."""
        versions = await wait_for_all(ping(engine.actor) for engine in self._engines)
        return list(zip(self._engines, versions, strict=True))


def send_weights(
    outbox: Outbox,
    version: int,
    weights: Iterator[list[tuple[str, Tensor]]],
    bucket_nbytes: int,
    receivers: Sequence[Receiver],
    timeout_s: float,
    *,
    full_check: bool = False,
) -> PushReport | None:
    """Send all weights to every receiver. Collective: all ranks pass equal arguments, except for the receivers.

    While the engines load a bucket, the ranks gather and pack the next one into the other half of their block. They
    meet when all have packed it, and again when the engines have loaded the one before, whose half is overwritten next.

    `bucket_nbytes`: at least that of the largest tensor. Only rank 0 returns a value. `weights` is consumed to its end,
    even if an engine fails half-way, and the ranks stay usable. Raises TimeoutError, which names the late engines, if a
    bucket takes longer than `timeout_s`; RuntimeError, which names the dead one, if an engine dies; and the errors of
    engines.
    """
    seconds, nbytes, started = dict.fromkeys(("gather", "pack", "load"), 0.0), 0, time.perf_counter()
    failure: Exception | None = None  # engines are not called after one, but the ranks continue gathering together
    try:
        if not (outbox.leads or outbox.every_rank):
            return None
        outbox.open(bucket_nbytes, receivers, timeout_s)
        packed = outbox.pack(version, _timed(weights, "gather", seconds), full_check=full_check)
        for bucket in _timed(packed, "pack", seconds):
            outbox.meet()
            failure = failure or _load(outbox, bucket, seconds)
            outbox.meet()
            nbytes += bucket.nbytes
        if failure := failure or _load(outbox, None, seconds):
            _late(outbox.loading, min(timeout_s, SETTLE_S))
        outbox.meet()
        if failure is not None:
            raise failure
        if not outbox.keeps_block:
            outbox.close()
    finally:
        for _ in weights:
            pass
    if not outbox.leads:
        return None
    seconds["pack"] -= seconds["gather"]
    return PushReport(version, nbytes, time.perf_counter() - started, bucket.transfer, seconds, bucket.digest)


def _timed(items: Iterator[T], name: str, seconds: dict[str, float]) -> Iterator[T]:
    """Yield the items, and add up the seconds that it takes to make them."""
    started = time.perf_counter()
    for item in items:
        seconds[name] += time.perf_counter() - started
        yield item
        started = time.perf_counter()
    seconds[name] += time.perf_counter() - started


def _load(outbox: Outbox, bucket: WeightBucket | None, seconds: dict[str, float]) -> Exception | None:
    """Rank 0: let engines load the bucket, if it is one, and wait until they have loaded the one before. Returns the
    first failure."""
    if not outbox.leads:
        return None
    before, started = outbox.loading, time.perf_counter()
    try:
        if bucket is not None:
            outbox.loading = outbox.deliver(bucket)
        if late := _late(before, outbox.timeout_s):
            waited = f"the policy waited {outbox.timeout_s:g} s"
            raise TimeoutError(f"{waited} for {', '.join(late)} to load a weight bucket")
        raise_failures(before)
    except Exception as error:
        return error
    finally:
        seconds["load"] += time.perf_counter() - started
    return None


def _late(answers: Mapping[ObjectRef, str], timeout_s: float) -> list[str]:
    """Wait for the answers; return the names of the engines that are late."""
    late = ray.wait(list(answers), num_returns=len(answers), timeout=timeout_s)[1] if answers else []
    return [name for answer, name in answers.items() if answer in late]


def raise_failures(answered: Mapping[ObjectRef, str]) -> None:
    """Raise the error of the first engine that failed; `answered`: its answer and its name."""
    for answer, name in answered.items():
        try:
            ray.get(answer)
        except DEATHS as error:
            # Not as itself: to the driver it would look like the death of this rank.
            raise RuntimeError(f"{name} died while the policy waited for it to take weights") from error
