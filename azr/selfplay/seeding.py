"""Fill an empty buffer from a seed file, from one identity program per kind, or from both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path

from azr.answering import Generate
from azr.concurrency import Phase
from azr.config import Config
from azr.errors import UserError
from azr.prompts.codec import PromptCodec
from azr.records import Task
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.journal import Journal
from azr.selfplay.play import SelfPlayStep, StepResult
from azr.selfplay.proposer import reject_reason
from azr.selfplay.seeds import SeedLine, check_seeds, reasons, seeds_line, write_lines
from azr.tasks.base import Run
from azr.tasks.registry import KINDS

MAX_SEED_ROUNDS = 20
"""Rounds of proposals after which seeding ends, even if the buffer is small."""


async def fill_buffer(
    buffer: TaskBuffer,
    config: Config,
    lines: Sequence[SeedLine] | None,
    *,
    codec: PromptCodec,
    generate: Generate,
    execute: Run,
    phase: Phase,
    log: Callable[[str], None],
    refused: Path,
) -> AsyncIterator[tuple[str, StepResult]]:
    """Load the seed file, give a kind without tasks the identity program, and propose until there are enough.

    Yields the name of each round with its proposals and the tasks that entered the buffer, in order; the file and the
    identity programs come without proposals.

    Without a file every kind grows until the smallest has `selfplay.seed_tasks`; with one, only kinds that have fewer.

    ``lines``: those of `selfplay.seeds`, if any; ``refused``: file of those that are rejected.

    Raises UserError when no task of a file is accepted.
    """
    selfplay = config.selfplay
    if lines is not None:
        reject = partial(reject_reason, config=config, codec=codec)
        with phase("check seeds"):
            tasks, rejected, num_changed = await check_seeds(lines, buffer, execute, reject)
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
        yield "seed file", StepResult(samples=[], stored=tasks)
        log(seeds_line(path, len(tasks), rejected, num_changed, refused))
    identities = first_tasks(buffer, [kind for kind in selfplay.kinds if not buffer.sizes()[kind]])
    for task in identities:
        buffer.add(task)
    yield "identity programs", StepResult(samples=[], stored=identities)
    for index in range(MAX_SEED_ROUNDS):
        short = [kind for kind, size in buffer.sizes().items() if size < selfplay.seed_tasks]
        if not short:
            break
        journal = Journal(generate, config.rollout.temperature)
        step = SelfPlayStep(
            config=config,
            step=0,
            name=f"seed{index}",
            buffer=buffer,
            codec=codec,
            execute=execute,
            journal=journal,
            phase=phase,
        )
        try:
            grown = await step.seed(selfplay.kinds if lines is None else short)
        finally:
            await journal.close()
        yield f"seeding round {index + 1}", grown
    sizes = ", ".join(f"{size} {kind}" for kind, size in buffer.sizes().items())
    log(f"tasks to start from: {sizes}")


def first_tasks(buffer: TaskBuffer, kinds: Sequence[str]) -> list[Task]:
    """Return the first task of each kind. Raises UserError for one that the buffer takes not."""
    tasks = [KINDS[kind].seed() for kind in kinds]
    for task in tasks:
        if buffer.reject_reason(task) is not None:
            raise UserError(
                f"The first task of the kind {task.kind} cannot be stored, for it equals {buffer.twin(task)}: leave "
                "that out of the evaluation or of the kind's worked examples, or give the kind's tasks by "
                "selfplay.seeds."
            )
    return tasks
