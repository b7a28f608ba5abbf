"""Fill an empty buffer from a seed file, from one identity program per kind, or from both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from azr.answering import Executor, Sampler
from azr.concurrency import Phase
from azr.config import Config
from azr.errors import UserError
from azr.prompts.codec import PromptCodec
from azr.records import Sample, Task
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.journal import Journal
from azr.selfplay.play import SelfPlayStep
from azr.selfplay.proposer import proposal_limits, reject_reason
from azr.selfplay.seeds import SeedLine, check_seeds, reasons, seeds_line, write_lines
from azr.tasks.registry import KINDS

MAX_SEED_ROUNDS = 20
"""Rounds of proposals after which seeding ends, even if the buffer is small."""


async def fill_buffer(
    buffer: TaskBuffer,
    config: Config,
    lines: Sequence[SeedLine] | None,
    *,
    codec: PromptCodec,
    engines: Sampler,
    executor: Executor,
    phase: Phase,
    store: Callable[[Sequence[Task]], None],
    log: Callable[[str], None],
    refused: Path,
    watch: Callable[[str, Sequence[Sample]], None],
    record: Callable[[Sequence[Sample]], Awaitable[None]] | None = None,
) -> None:
    """Load the seed file, give a kind without tasks the identity program, and propose until there are enough.

    Without a file every kind grows until the smallest has `selfplay.seed_tasks`; with one, only kinds that have fewer.

    ``lines``: those of `selfplay.seeds`, if any; ``refused``: file of those that are rejected. ``store`` is called with
    every task that entered the buffer, in order; ``watch`` after every round with its name and samples, and may raise
    RunEnded; ``record`` after every round with the proposals of all rounds so far.

    Raises UserError when no task of a file is accepted.
    """
    selfplay = config.selfplay
    if lines is not None:
        limits, reject = proposal_limits(selfplay.induction_inputs), partial(reject_reason, config=config, codec=codec)
        with phase("check seeds"):
            tasks, rejected, num_changed = await check_seeds(lines, buffer, limits, executor.execute, reject)
            if rejected:
                await asyncio.to_thread(write_lines, refused, rejected)
            else:
                refused.unlink(missing_ok=True)
        path = Path(str(selfplay.seeds))
        if not tasks:
            raise UserError(
                f"None of the {len(rejected)} lines of {path} became a task ({reasons(rejected)}): read "
                f"{refused}, set selfplay.seeds to another file, and use --resume."
            )
        store(tasks)
        log(seeds_line(path, len(tasks), rejected, num_changed, refused))
    for kind in selfplay.kinds:
        if not buffer.sizes()[kind]:
            buffer.add(KINDS[kind].seed())
            store([KINDS[kind].seed()])
    proposals: list[Sample] = []
    for index in range(MAX_SEED_ROUNDS):
        short = [kind for kind, size in buffer.sizes().items() if size < selfplay.seed_tasks]
        if not short:
            break
        step = SelfPlayStep(
            config=config,
            step=0,
            name=f"seed{index}",
            buffer=buffer,
            codec=codec,
            executor=executor,
            journal=Journal(engines),
            phase=phase,
        )
        grown = await step.seed(selfplay.kinds if lines is None else short)
        store(grown.stored)
        proposals += grown.samples
        if record is not None:
            await record(tuple(proposals))
        watch(f"seeding round {index + 1}", grown.samples)
    sizes = ", ".join(f"{size} {kind}" for kind, size in buffer.sizes().items())
    log(f"tasks to start from: {sizes}")
