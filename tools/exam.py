"""Makes the exam that is committed in ``data/exam``, the same every time.

Every program is one that pretraining holds out (`is_held_out`), and the last band has programs that the generator of
the pretraining corpus cannot emit at all. Nothing is chosen by whether some model solves it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence

from azr.evaluation.suite import ExamTask
from azr.records import Task
from azr.tasks.base import Proposal, ProposalLimits, Run
from azr.tasks.normalize import fingerprint
from azr.tasks.registry import KINDS
from tools.pretrain.compositions import FORMS
from tools.pretrain.corpus import as_task
from tools.pretrain.generator import Sample, Sketch, is_held_out, sketch, with_inputs

SEED = 20
DRAWS = 600_000
"""Programs drawn from the generator, of which the held-out ones are the pool of the first two bands."""
COMMON = 1 / 2000
"""A program that is drawn more often than this is left to self-play, which would run into it all the time."""
TASKS = {"deduction": 320, "abduction": 320, "induction": 160}
BANDS: dict[str, dict[str, int]] = {
    "short": {"expression": 6, "statement": 26, "2 steps": 48},
    "long": {"3 steps": 20, "4 steps": 12},
    "novel": {"nested": 30, "branch in loop": 6, "two-step loop": 6, "branch in branch": 6},
}
"""How many of 160 tasks are of which form. Steps are operations; a ``return x`` is none."""
INDUCTION_INPUTS = 6
TRIES = 10
"""Draws of inputs for one program."""


def pool(rng: random.Random) -> dict[str, list[Sketch]]:
    """Different held-out programs of the generator by form, each list in random order."""
    drawn: Counter[str] = Counter()
    known: dict[str, Sketch] = {}
    for _ in range(DRAWS):
        made = sketch(rng)
        if is_held_out(made.source):
            drawn[made.source] += 1
            known[made.source] = made
    forms: dict[str, list[Sketch]] = {}
    for source, times in drawn.items():
        if times <= COMMON * DRAWS:
            forms.setdefault(_form(known[source]), []).append(known[source])
    for programs in forms.values():
        rng.shuffle(programs)
    return forms


def _form(made: Sketch) -> str:
    if made.operations > 1:
        return f"{made.operations} steps"
    return "expression" if made.source.count("\n") == 1 else "statement"


def questions(rng: random.Random, kind: str, programs: dict[str, list[Sketch]]) -> Iterator[tuple[str, Sample]]:
    """Bands and samples of one kind, no two with the same normalized program."""
    known: set[str] = set()
    for band, forms in BANDS.items():
        for form, share in forms.items():
            wanted = share * TASKS[kind] // sum(sum(shares.values()) for shares in BANDS.values())
            for made in _samples(rng, kind, _programs(rng, form, programs)):
                program = fingerprint(made.program)
                if program not in known:
                    known.add(program)
                    wanted -= 1
                    yield band, made
                if wanted == 0:
                    break


def _programs(rng: random.Random, form: str, programs: dict[str, list[Sketch]]) -> Iterator[Sketch]:
    if form not in FORMS:
        yield from rng.sample(programs[form], len(programs[form]))
        raise ValueError(f"There are too few programs of the form {form!r}: raise DRAWS.")
    while True:
        made = FORMS[form](rng)
        if is_held_out(made.source):
            yield made


def _samples(rng: random.Random, kind: str, programs: Iterator[Sketch]) -> Iterator[Sample]:
    """Programs with inputs; where one input is all there is, it does not just come back."""
    for made in programs:
        for _ in range(TRIES):
            found = with_inputs(rng, made, INDUCTION_INPUTS if kind == "induction" else 1)
            if found is not None and found.inputs != found.outputs:
                yield found
                break


async def validated(kind_name: str, made: Sequence[tuple[str, Sample]], run: Run) -> list[ExamTask]:
    """The samples as tasks, through the checks that proposals go through; all of them must pass."""
    kind = KINDS[kind_name]
    limits = ProposalLimits(source_bytes=4096, induction_inputs=INDUCTION_INPUTS, repeats=2)
    proposals = []
    for index, (_, stated) in enumerate(made):
        sample = as_task(kind_name, stated)
        id = f"exam-{kind_name}-{index:03d}"
        proposals.append(Proposal(id=id, sections=kind.proposal(sample), references=(sample,)))
    tasks = await asyncio.gather(*(kind.validate(proposal, limits, run) for proposal in proposals))
    paper = []
    for (band, stated), task in zip(made, tasks, strict=True):
        assert isinstance(task, Task), f"{stated.program}\nwas refused: {task}"
        assert task.outputs == stated.outputs, f"{stated.program}\nreturned {task.outputs}, not {stated.outputs}"
        paper.append(ExamTask(band, task))
    return paper


async def make(run: Run) -> list[ExamTask]:
    """The whole exam; ``run`` is, for example, ``SandboxPool.execute``."""
    rng = random.Random(SEED)
    programs = pool(rng)
    paper: list[ExamTask] = []
    for kind in TASKS:
        paper += await validated(kind, list(questions(rng, kind, programs)), run)
    return paper
