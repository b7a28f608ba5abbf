"""Seeding alone: starts engines and executor but no trainers, fills a buffer, and ends what it started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ray.exceptions import RayTaskError

from azr.actor_system import RolloutSystem
from azr.cluster.ray_start import start_ray
from azr.config import Config
from azr.evaluation.periodic import PeriodicEval
from azr.plugins import plugin_processes
from azr.prompts.codec import PromptCodec
from azr.records import Sample, Task
from azr.runs.malformed_alarm import MalformedAlarm
from azr.runs.progress import Progress, open_progress
from azr.runs.stop_signal import StopSignal
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.seeding import Seeding


async def grow_seeds(config: Config, refused: Path) -> list[Task]:
    """The tasks that a run of this config would start from, in their order. Nothing is written but ``refused``, and
    that only for a config with a seed file of its own.

    Raises UserError for a user's mistake, TimeoutError when a wait passed its deadline, and StopRequested after a
    signal; in each case nothing is left running.
    """
    # No trainers: what the engines need is all that is reserved.
    alone = replace(
        config, train=replace(config.train, data_parallel=1), cluster=replace(config.cluster, colocate=True)
    )
    progress, stop = open_progress(), StopSignal()
    try:
        with progress.showing_warnings(), stop.listening(progress.log):
            async with plugin_processes():
                return await _grow(alone, refused, progress, stop)
    except RayTaskError as error:
        # Ray wraps what an actor raised; the reader wants the error, not the way it came.
        raise error.cause from error
    finally:
        progress.close()


async def _not_recorded(proposals: Sequence[Sample]) -> None:
    """There is no run directory that they could go into."""


async def _grow(config: Config, refused: Path, progress: Progress, stop: StopSignal) -> list[Task]:
    codec = PromptCodec.load(config)
    buffer = TaskBuffer(config.selfplay.kinds, benchmark=PeriodicEval(config, codec).programs)
    progress.start(total_steps=0)
    with progress.busy("start Ray"):
        start_ray(config.cluster, config.num_gpus)
    # Ray's own handler of SIGTERM, which it has just installed, would abort the process.
    stop.install_handlers()
    system = await stop.cancel_on_stop(RolloutSystem.start(config, codec.stops, progress.busy))
    tasks: list[Task] = []
    try:
        seeding = Seeding(
            config=config,
            codec=codec,
            engines=system.engines,
            executor=system.executor,
            buffer=buffer,
            phase=progress.busy,
            store=tasks.extend,
            record=_not_recorded,
            log=progress.log,
            refused=refused,
            watch=MalformedAlarm(codec.decode, progress.log, stop=config.run.stop_when_malformed).watch,
        )
        await stop.cancel_on_stop(seeding.run())
    finally:
        await system.stop()
    return tasks
