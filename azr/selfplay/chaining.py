"""Tasks made of two stored ones, f(x) = second(first(x)), whose solve rate is the product of theirs if nothing else.

No response is sampled for them. They are as hard as is wanted, and longer than what is proposed.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice

from azr.concurrency import gather
from azr.config import Config
from azr.prompts.codec import PromptCodec
from azr.records import CHAIN, Task, grouped
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.proposer import reject_reason
from azr.tasks.base import Proposal, RejectReason, Run
from azr.tasks.chains import chain, num_lines
from azr.tasks.registry import KINDS

BAND = 0.4, 0.9
"""Products of two solve rates that are taken at first."""
WANTED = 0.5
"""Solve rate of chained tasks that the band is moved for."""
GAIN = 0.2
"""How far the band moves in a step, for each unit by which their mean solve rate is off."""
MOST_MOVED = 0.35
"""Farthest that the band moves, up or down."""
FIRST_LINES = 6
"""Most lines of a chained task at first."""
DEEPER_ABOVE = 0.3
"""Mean solve rate of the newest `ENOUGH` tasks with most lines above which there may be one line more."""
ENOUGH = 16
DRAWS, TRIES = 200, 8
"""Pairs that are looked at, and programs that are run, for each wanted task."""


def bounds_after(tasks: Sequence[Task]) -> tuple[float, float, int]:
    """Return the bounds that the chained tasks among stored ones lead to: least and largest product of two solve rates,
    and most lines of a program."""
    chained = [*filter(is_chained, tasks)]
    moved, by_lines = 0.0, grouped((num_lines(task.program), task.solve_rate or 0.0) for task in chained)
    for _, of_step in groupby(chained, key=lambda task: task.step):
        rates = [task.solve_rate or 0.0 for task in of_step]
        moved += GAIN * (WANTED - sum(rates) / len(rates))
        moved = max(-MOST_MOVED, min(MOST_MOVED, moved))
    lines = FIRST_LINES
    while len(rates := by_lines.get(lines, [])) >= ENOUGH and sum(rates[-ENOUGH:]) > DEEPER_ABOVE * ENOUGH:
        lines += 1
    return BAND[0] + moved, BAND[1] + moved, lines


def is_chained(task: Task) -> bool:
    return f"-{task.kind}-{CHAIN}" in task.id


async def chain_tasks(
    kind: str,
    buffer: TaskBuffer,
    taken: Collection[str],
    *,
    config: Config,
    codec: PromptCodec,
    execute: Run,
    name: str,
    step: int,
) -> tuple[list[Task], dict[str, float]]:
    """Chain up to `selfplay.chained_tasks` pairs of stored tasks of a kind that have been answered.

    Returns the tasks, and numbers by name: ``tried`` programs, ``made`` tasks, mean ``predicted`` solve rate, and the
    bounds.

    A chain is rejected as a proposal would be, and if its fingerprint is ``taken`` by another task of the step. It is
    also rejected if its output is the second task's own: then it may not depend on the first half.
    """
    bounds, wanted = bounds_after(buffer.tasks(kind)), config.selfplay.chained_tasks
    rng = random.Random(f"{config.run.seed}/{name}/{kind}/chain")
    pairs = islice(_pairs(kind, buffer, bounds, step, DRAWS * wanted, rng), TRIES * wanted)
    found: dict[str, tuple[Task, float]] = {}
    tried = 0

    async def validated(first: Task, second: Task, program: str) -> Task | None:
        message = " Then: ".join(filter(None, [first.message, second.message]))
        stated = KINDS[kind].make_task("", program, first.inputs, (), message=message)
        # An induction's proposal is about the program of its reference.
        sections, count = KINDS[kind].proposal(stated), config.selfplay.induction_inputs
        proposal = Proposal(id="", sections=sections, references=(stated,), step=step, induction_inputs=count)
        task = await KINDS[kind].validate(proposal, execute)
        if isinstance(task, RejectReason) or reject_reason(task, config, codec) or buffer.reject_reason(task):
            return None
        return None if len({*task.outputs, *second.outputs}) == 1 else task

    while len(found) < wanted and (batch := [*islice(pairs, 2 * (wanted - len(found)))]):
        tried += len(batch)
        tasks = await gather(*(validated(first, second, program) for first, second, program, _ in batch))
        for (first, second, _, predicted), task in zip(batch, tasks, strict=True):
            if task is not None and task.fingerprint not in taken and len(found) < wanted:
                id = f"{name}-{kind}-{CHAIN}{len(found):04d}"
                made = replace(task, id=id, parents=(first.id, second.id))
                found.setdefault(task.fingerprint, (made, predicted))
    numbers = {"tried": tried, "made": len(found), **dict(zip(("low", "high", "lines"), bounds, strict=True))}
    if found:
        numbers["predicted"] = sum(predicted for _, predicted in found.values()) / len(found)
    return [task for task, _ in found.values()], numbers


def _pairs(
    kind: str, buffer: TaskBuffer, bounds: tuple[float, float, int], step: int, draws: int, rng: random.Random
) -> Iterator[tuple[Task, Task, str, float]]:
    """Yield two different tasks within the bounds, their chain, and the product of their solve rates; none twice."""
    (low, high, most), seen = bounds, set[tuple[str, str]]()
    rates = [(task, buffer.rate(task.id, step)) for task in buffer.tasks(kind) if buffer.is_answered(task.id)]
    for _ in range(draws if len(rates) > 1 else 0):
        (first, one), (second, two) = rng.sample(rates, 2)
        if not low <= one * two <= high or (first.id, second.id) in seen:
            continue
        seen.add((first.id, second.id))
        if num_lines(first.program) + num_lines(second.program) > most:
            continue
        program = chain(first.program, second.program)
        if program is not None and num_lines(program) <= most:
            yield first, second, program, one * two
