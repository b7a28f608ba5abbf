"""How the buffer first fills: from a seed file, from one identity program per kind, or from both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from azr.concurrency import Phase
from azr.config import Config
from azr.errors import UserError
from azr.prompts.codec import PromptCodec
from azr.records import Role, Sample, Task
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.form import FormCount
from azr.selfplay.play import SelfPlayStep
from azr.selfplay.roles import Executor, Proposer, Sampler, Solver
from azr.selfplay.seeds import check_seeds, read_seeds, seeds_line, write_refused
from azr.tasks.registry import KINDS

MAX_SEED_ROUNDS = 20
"""Rounds of proposals spent on seeding before going on with what there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seeding:
    """Fills an empty buffer before the first step."""

    config: Config
    codec: PromptCodec
    engines: Sampler
    executor: Executor
    buffer: TaskBuffer
    phase: Phase
    store: Callable[[Sequence[Task]], None]
    """Is given every task that entered the buffer, in order."""
    record: Callable[[Sequence[Sample]], Awaitable[None]]
    """Is given after every round the proposals of all rounds so far."""
    log: Callable[[str], None]
    refused: Path
    """Where the refused lines of a seed file are written."""
    watch: Callable[[str, Mapping[Role, FormCount]], None]
    """Is told every round's name and how many responses were not in the asked form, and may end the run over it."""

    async def run(self) -> None:
        """Loads the seed file, gives a kind without any task the identity program, and grows what is too few.

        Without a file every kind grows until the smallest has `selfplay.seed_tasks`; with one, only kinds that have
        fewer. Raises UserError when a seed file cannot be read or no task of it is accepted.
        """
        selfplay = self.config.selfplay
        if selfplay.seeds is not None:
            await self._load(Path(selfplay.seeds))
        for kind in selfplay.kinds:
            if not self.buffer.sizes()[kind]:
                self.buffer.add(KINDS[kind].seed())
                self.store([KINDS[kind].seed()])
        proposals: list[Sample] = []
        for index in range(MAX_SEED_ROUNDS):
            short = [kind for kind, size in self.buffer.sizes().items() if size < selfplay.seed_tasks]
            if not short:
                break
            grown = await self._round(index).seed(selfplay.kinds if selfplay.seeds is None else short)
            self.store(grown.stored)
            proposals += grown.untrained
            await self.record(tuple(proposals))
            self.watch(f"seeding round {index + 1}", grown.forms)
        sizes = ", ".join(f"{size} {kind}" for kind, size in self.buffer.sizes().items())
        self.log(f"tasks to start from: {sizes}")

    def _round(self, index: int) -> SelfPlayStep:
        parts = (self.config, self.codec, self.engines, self.executor)
        return SelfPlayStep(self.config, 0, f"seed{index}", self.buffer, Proposer(*parts), Solver(*parts), self.phase)

    async def _load(self, path: Path) -> None:
        seeds, broken = await asyncio.to_thread(read_seeds, path)
        proposer = Proposer(self.config, self.codec, self.engines, self.executor)
        with self.phase("check seeds"):
            checked = await check_seeds(
                seeds, self.buffer, proposer.limits, self.executor.execute, proposer.reject_reason
            )
        checked.add_refused(broken)
        await asyncio.to_thread(write_refused, self.refused, checked.refused)
        if not checked.tasks:
            raise UserError(
                f"None of the {len(checked.refused)} lines of {path} became a task ({checked.reasons()}): see "
                f"{self.refused}, give selfplay.seeds another file and go on with --resume."
            )
        self.store(checked.tasks)
        self.log(seeds_line(path, checked, self.refused))
