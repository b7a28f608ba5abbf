"""An actor that keeps what a policy sends it, in place of a vLLM engine."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable

import numpy as np
import ray
from ray.actor import ActorHandle
from torch import Tensor

from azr.cluster.supervisor import SupervisedActor
from azr.cluster.weight_buckets import RemoteBucketStaging, WeightBucket, read_bucket
from azr.cluster.weight_sync import WeightUpdate


class ReceivingEngine:
    """Keeps clones of the weights, as an engine would load them."""

    def __init__(self) -> None:
        self.mischief: str | None = None
        self.staging = RemoteBucketStaging()
        self.served = 0

    async def start(self) -> None:
        pass

    async def ping(self) -> int:
        return self.served

    def misbehave(self, mischief: str | None) -> None:
        """`far`: says it is on another node. `fail`, `die`, `hang` for a second: over a bucket. `lie`: at the end."""
        self.mischief = mischief

    def begin_update(self, version: int) -> str:
        self.version, self.weights = version, {}
        self.buckets: list[WeightBucket] = []
        return "elsewhere" if self.mischief == "far" else ray.get_runtime_context().get_node_id()

    def load_bucket(self, bucket: WeightBucket, block: np.ndarray | None = None) -> None:
        assert (block is not None) == (self.mischief == "far")
        if block is not None:
            bucket = self.staging.stage(bucket, block)
        if self.mischief == "fail":
            raise ValueError("no room")
        if self.mischief == "die":
            os._exit(1)
        if self.mischief == "hang":
            time.sleep(1.0)
        self.buckets.append(bucket)
        self.weights |= {name: tensor.clone() for name, tensor in read_bucket(bucket)}

    def finish_update(self, version: int, digest: str) -> WeightUpdate:
        assert self.buckets[-1].last and self.buckets[-1].version == version
        self.served = version
        nbytes = sum(bucket.nbytes for bucket in self.buckets)
        return WeightUpdate(version, "0" * 64 if self.mischief == "lie" else self.buckets[-1].digest, nbytes)

    def updating(self) -> int:
        return self.version

    def received(self) -> dict[str, Tensor]:
        return self.weights

    def bucket_count(self) -> int:
        return len(self.buckets)


async def _create() -> ActorHandle:
    return ray.remote(ReceivingEngine).options(num_cpus=0.1).remote()


async def start_receiver(
    index: int = 0, resync: Callable[[SupervisedActor], Awaitable[None]] | None = None
) -> SupervisedActor:
    """`resync`: brings an engine that replaces this one up to date."""
    engine = SupervisedActor(
        f"rollout engine {index}",
        _create,
        start_timeout_s=60,
        max_restarts=2,
        bring_up_to_date=None if resync is None else lambda: resync(engine),
    )
    await engine.start()
    return engine
