"""Sends one version of the weights from the policy's ranks to all engines, which load while the ranks still gather.

While the engines load a bucket, the ranks gather and pack the next one into the other half of their block:

    all ranks that send     gather and pack bucket n
    meet                    every rank has packed n
    rank 0                  tells the engines to load n, behind n - 1; waits until they have loaded n - 1
    meet                    the half of n - 1 may be overwritten
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import ray
import torch
from ray import ObjectRef
from ray.exceptions import RayActorError

from azr.cluster.weight_buckets import WeightBucket
from azr.cluster.weight_endpoints import Outbox, Receiver

SETTLE_S = 10.0
"""Seconds in which engines must drop their loads after a failed push."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class WeightUpdate:
    """One version of the weights, as reported by its sender and by every engine; the reports must be equal."""

    version: int
    digest: str
    """Digest of names, types, shapes and bytes, see `azr.cluster.weight_buckets.WeightDigest`."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class SentWeights:
    """Weights sent by rank 0, and the seconds of its phases."""

    update: WeightUpdate
    transfer: str
    gather_s: float
    """Gathering of sharded parameters, as far as the CPU waits for it."""
    pack_s: float
    """Copying into the block, and the digest."""
    load_s: float
    """Waiting for slower engines."""


def send_weights(
    outbox: Outbox,
    version: int,
    weights: Iterator[tuple[str, torch.Tensor]],
    bucket_nbytes: int,
    receivers: Sequence[Receiver],
    timeout_s: float,
    *,
    full_check: bool = False,
) -> SentWeights | None:
    """Send all weights to every receiver. Collective: all ranks pass equal arguments, except for the receivers.

    `bucket_nbytes`: at least that of the largest tensor. Only rank 0 returns a value. `weights` is consumed to its end,
    even if an engine fails half-way, and the ranks stay usable. Raises TimeoutError, which names the late engines, if a
    bucket takes longer than `timeout_s`; RuntimeError, which names the dead one, if an engine dies; and the errors of
    engines.
    """
    leads = outbox.rank.index == 0
    try:
        if leads or outbox.every_rank:
            return _send(outbox, version, weights, bucket_nbytes, receivers, timeout_s, full_check)
        return None
    finally:
        for _ in weights:
            pass


def _send(
    outbox: Outbox,
    version: int,
    weights: Iterator[tuple[str, torch.Tensor]],
    bucket_nbytes: int,
    receivers: Sequence[Receiver],
    timeout_s: float,
    full_check: bool,
) -> SentWeights | None:
    leads = outbox.rank.index == 0
    load = _Loading(outbox, receivers, timeout_s)
    gathered, packed = _Stopwatch(), _Stopwatch()
    writer = outbox.open(bucket_nbytes, receivers, timeout_s)
    buckets = writer.pack(version, gathered.each(weights), full_check=full_check, with_digest=leads)
    nbytes = 0
    for bucket in packed.each(buckets):
        outbox.meet()
        if leads:
            load.next(bucket)
        outbox.meet()
        nbytes += bucket.nbytes
    if leads:
        load.finish()
    outbox.meet()
    if not leads:
        outbox.close()
        return None
    if load.failure is not None:
        raise load.failure
    outbox.close()
    update = WeightUpdate(version, bucket.digest, nbytes)
    return SentWeights(
        update, bucket.transfer, gathered.seconds, packed.seconds - gathered.seconds, load.waited.seconds
    )


class _Loading:
    """Buckets that engines are loading, at most two at a time."""

    def __init__(self, outbox: Outbox, receivers: Sequence[Receiver], timeout_s: float) -> None:
        self._outbox, self._receivers, self._timeout_s = outbox, receivers, timeout_s
        self._loading: list[ObjectRef] = []
        self.failure: Exception | None = None
        """First failure; engines are not called after it, but the ranks go on gathering together."""
        self.waited = _Stopwatch()

    def next(self, bucket: WeightBucket) -> None:
        """Start loading this bucket; returns when the previous one is loaded."""
        if self.failure is None:
            before = self._loading
            self._attempt(lambda: self._deliver(bucket))
            self._attempt(lambda: self._wait(before))

    def finish(self) -> None:
        """Wait until the last bucket is loaded or, after a failure, until no engine loads any more."""
        self._attempt(lambda: self._wait(self._loading))
        if self.failure is not None and self._loading:
            ray.wait(self._loading, num_returns=len(self._loading), timeout=min(self._timeout_s, SETTLE_S))

    def _deliver(self, bucket: WeightBucket) -> None:
        self._loading = self._outbox.deliver(bucket, self._receivers, self._timeout_s)

    def _attempt(self, act: Callable[[], None]) -> None:
        if self.failure is None:
            try:
                self.waited.during(act)
            except Exception as error:
                self.failure = error

    def _wait(self, loading: Sequence[ObjectRef]) -> None:
        if not loading:
            return
        _, late = ray.wait(loading, num_returns=len(loading), timeout=self._timeout_s)
        if late:
            pairs = zip(self._receivers, loading, strict=True)
            names = ", ".join(receiver.name for receiver, ref in pairs if ref in late)
            raise TimeoutError(f"the policy waited {self._timeout_s:g} s for {names} to load a weight bucket")
        for receiver, ref in zip(self._receivers, loading, strict=True):
            try:
                ray.get(ref)
            except RayActorError as error:
                # Not as itself: to the driver it would look like the death of this rank.
                raise RuntimeError(f"{receiver.name} died while the policy waited for it to load weights") from error


class _Stopwatch:
    """Sum of measured times."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def during(self, act: Callable[[], T]) -> T:
        started = time.perf_counter()
        try:
            return act()
        finally:
            self.seconds += time.perf_counter() - started

    def each(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items and count the time that the iterator takes for each."""
        iterator, end = iter(items), object()
        while (item := self.during(lambda: next(iterator, end))) is not end:
            yield item  # type: ignore[misc]
