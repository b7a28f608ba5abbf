"""Makes the exam of ``data/exam``, the same bytes every time: ``python -m tools.exam [--out FOLDER]``.

Every program is one that pretraining holds out (`is_held_out`), and the hardest have a form that the generator of the
pretraining corpus cannot emit at all. Nothing is chosen by whether some model solves it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from azr.config import ExecutorConfig
from azr.evaluation.suites.exam import ExamTask, write_exam
from azr.executor.pool import SandboxPool
from azr.records import Task
from azr.tasks.base import Proposal, ProposalLimits, Run
from azr.tasks.normalize import fingerprint
from azr.tasks.registry import KINDS
from tools.pretrain.compositions import FORMS
from tools.pretrain.corpus import as_task
from tools.pretrain.generator import ProgramTemplate, Sample, is_held_out, random_template, with_inputs

SEED = 20
DRAWS = 600_000
"""Programs drawn from the generator, of which the held-out ones are the pool of short and long tasks."""
COMMON = 1 / 2000
"""A program that is drawn more often than this is left to self-play, which would run into it all the time."""
TASKS = {"deduction": 320, "abduction": 320, "induction": 160}
DIFFICULTIES: dict[str, dict[str, int]] = {
    "short": {"expression": 6, "statement": 26, "2 steps": 48},
    "long": {"3 steps": 20, "4 steps": 12},
    "novel": {"nested": 30, "branch in loop": 6, "two-step loop": 6, "branch in branch": 6},
}
"""How many of 160 tasks are of which form. Steps are operations; a ``return x`` is none."""
INDUCTION_INPUTS = 6
TRIES = 10
"""Draws of inputs for one program."""


def template_pool(rng: random.Random) -> dict[str, list[ProgramTemplate]]:
    """Different held-out programs of the generator by form, each list in random order."""
    drawn: Counter[str] = Counter()
    templates: dict[str, ProgramTemplate] = {}
    for _ in range(DRAWS):
        template = random_template(rng)
        if is_held_out(template.source):
            drawn[template.source] += 1
            templates[template.source] = template
    forms: dict[str, list[ProgramTemplate]] = {}
    for source, times in drawn.items():
        if times <= COMMON * DRAWS:
            forms.setdefault(_form(templates[source]), []).append(templates[source])
    for programs in forms.values():
        rng.shuffle(programs)
    return forms


def _form(template: ProgramTemplate) -> str:
    if template.operations > 1:
        return f"{template.operations} steps"
    return "expression" if template.source.count("\n") == 1 else "statement"


def choose_samples(
    rng: random.Random, kind: str, pool: dict[str, list[ProgramTemplate]]
) -> Iterator[tuple[str, Sample]]:
    """Difficulties and samples of one kind, no two with the same normalised program."""
    known: set[str] = set()
    total = sum(sum(shares.values()) for shares in DIFFICULTIES.values())
    for difficulty, forms in DIFFICULTIES.items():
        for form, share in forms.items():
            missing = share * TASKS[kind] // total
            for sample in _samples(rng, kind, _templates(rng, form, pool)):
                program = fingerprint(sample.program)
                if program not in known:
                    known.add(program)
                    missing -= 1
                    yield difficulty, sample
                if missing == 0:
                    break


def _templates(rng: random.Random, form: str, pool: dict[str, list[ProgramTemplate]]) -> Iterator[ProgramTemplate]:
    if form not in FORMS:
        yield from rng.sample(pool[form], len(pool[form]))
        raise RuntimeError(f"There are too few programs of the form {form!r}: raise DRAWS.")
    while True:
        template = FORMS[form](rng)
        if is_held_out(template.source):
            yield template


def _samples(rng: random.Random, kind: str, templates: Iterator[ProgramTemplate]) -> Iterator[Sample]:
    """Programs with inputs; the output of a lone input is another value than the input."""
    for template in templates:
        for _ in range(TRIES):
            sample = with_inputs(rng, template, INDUCTION_INPUTS if kind == "induction" else 1)
            if sample is not None and sample.inputs != sample.outputs:
                yield sample
                break


async def validate(kind_name: str, samples: Sequence[tuple[str, Sample]], run: Run) -> list[ExamTask]:
    """The samples as tasks, through the checks that proposals go through; all of them must pass."""
    kind = KINDS[kind_name]
    limits = ProposalLimits(source_bytes=4096, induction_inputs=INDUCTION_INPUTS, repeats=2)
    proposals = []
    for index, (_, sample) in enumerate(samples):
        task = as_task(kind_name, sample)
        id = f"exam-{kind_name}-{index:03d}"
        proposals.append(Proposal(id=id, sections=kind.proposal(task), references=(task,)))
    outcomes = await asyncio.gather(*(kind.validate(proposal, limits, run) for proposal in proposals))
    benchmark = []
    for (difficulty, sample), outcome in zip(samples, outcomes, strict=True):
        assert isinstance(outcome, Task), f"{sample.program}\nwas rejected: {outcome}"
        assert outcome.outputs == sample.outputs, f"{sample.program}\nreturned {outcome.outputs}, not {sample.outputs}"
        benchmark.append(ExamTask(difficulty, outcome))
    return benchmark


async def make(run: Run) -> list[ExamTask]:
    """The whole exam; ``run`` is, for example, ``SandboxPool.execute``."""
    rng = random.Random(SEED)
    pool = template_pool(rng)
    benchmark: list[ExamTask] = []
    for kind in TASKS:
        benchmark += await validate(kind, list(choose_samples(rng, kind, pool)), run)
    return benchmark


async def make_files(out: Path) -> None:
    """Writes one file per kind, the same bytes every time."""
    async with SandboxPool(ExecutorConfig(workers=2, wall_s=10.0)) as executor:
        write_exam(out, await make(executor.execute))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the held-out exam.")
    parser.add_argument("--out", type=Path, default=Path("data/exam"), help="folder that is written")
    asyncio.run(make_files(parser.parse_args().out))
