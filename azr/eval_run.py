"""Evaluating with several engines at once: they are actors of Ray, each on its share of the GPUs, as in a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace

import ray

from azr.actor_system import start_engines
from azr.answering import Sampler
from azr.cluster.placement import place
from azr.cluster.ray_start import start_ray
from azr.evaluation.standalone import Evaluation


@asynccontextmanager
async def serve_by_ray(evaluation: Evaluation) -> AsyncIterator[Sampler]:
    """``rollout.engines`` engines, on this machine or the cluster at ``cluster.address``; they end with the block.

    Raises UserError when there are not enough GPUs, or the cluster does not answer.
    """
    config = evaluation.engine_config
    # No trainers: what the engines need is all that is reserved.
    config = replace(
        config, train=replace(config.train, data_parallel=1), cluster=replace(config.cluster, colocate=True)
    )
    start_ray(config.cluster, config.num_gpus)
    try:
        placement = await place(config)
        try:
            engines = await start_engines(config, evaluation.model.codec.stops, placement, lambda name: nullcontext())
            try:
                yield engines
            finally:
                await engines.shutdown()
        finally:
            placement.remove()
    finally:
        ray.shutdown()
