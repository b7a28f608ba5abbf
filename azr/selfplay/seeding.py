"""Fill an empty buffer from a seed file, from one identity program per kind, or from both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
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
from azr.selfplay.proposer import Proposer
from azr.selfplay.seeds import SeedLine, check_seeds, seeds_line, write_refused
from azr.tasks.registry import KINDS

MAX_SEED_ROUNDS = 20
"""Rounds of proposals after which seeding ends, even if the buffer is small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeding:
    """Fills an empty buffer before the first step."""

    config: Config
    seeds: Sequence[SeedLine] | None
    """Lines of `selfplay.seeds`, if any."""
    codec: PromptCodec
    engines: Sampler
    executor: Executor
    buffer: TaskBuffer
    phase: Phase
    store: Callable[[Sequence[Task]], None]
    """Called with every task that entered the buffer, in order."""
    log: Callable[[str], None]
    refused: Path
    """File of the rejected lines of a seed file."""
    watch: Callable[[str, Sequence[Sample]], None]
    """Called after every round with its name and samples; may raise RunEnded."""
    record: Callable[[Sequence[Sample]], Awaitable[None]] | None = None
    """Called after every round with the proposals of all rounds so far, if there is a run to keep them."""

    async def run(self) -> None:
        """Load the seed file, give a kind without tasks the identity program, and propose until there are enough.

        Without a file every kind grows until the smallest has `selfplay.seed_tasks`; with one, only kinds that have
        fewer. Raises UserError when no task of a file is accepted.
        """
        selfplay = self.config.selfplay
        if self.seeds is not None:
            await self._load(self.seeds)
        for kind in selfplay.kinds:
            if not self.buffer.sizes()[kind]:
                self.buffer.add(KINDS[kind].seed())
                self.store([KINDS[kind].seed()])
        proposals: list[Sample] = []
        for index in range(MAX_SEED_ROUNDS):
            short = [kind for kind, size in self.buffer.sizes().items() if size < selfplay.seed_tasks]
            if not short:
                break
            step = SelfPlayStep(
                config=self.config,
                step=0,
                name=f"seed{index}",
                buffer=self.buffer,
                codec=self.codec,
                executor=self.executor,
                journal=Journal(self.engines),
                phase=self.phase,
            )
            grown = await step.seed(selfplay.kinds if self.seeds is None else short)
            self.store(grown.stored)
            proposals += grown.samples
            if self.record is not None:
                await self.record(tuple(proposals))
            self.watch(f"seeding round {index + 1}", grown.samples)
        sizes = ", ".join(f"{size} {kind}" for kind, size in self.buffer.sizes().items())
        self.log(f"tasks to start from: {sizes}")

    async def _load(self, lines: Sequence[SeedLine]) -> None:
        path = Path(str(self.config.selfplay.seeds))
        proposer = Proposer(self.config, self.codec, self.executor)
        with self.phase("check seeds"):
            checked = await check_seeds(
                lines, self.buffer, proposer.limits, self.executor.execute, proposer.reject_reason
            )
        await asyncio.to_thread(write_refused, self.refused, checked.refused)
        if not checked.tasks:
            raise UserError(
                f"None of the {len(checked.refused)} lines of {path} became a task ({checked.reasons()}): read "
                f"{self.refused}, set selfplay.seeds to another file, and use --resume."
            )
        self.store(checked.tasks)
        self.log(seeds_line(path, checked, self.refused))
