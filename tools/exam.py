"""Makes the exams of ``data``, the same bytes every time: ``python -m tools.exam [PLAN] [--out FOLDER]``.

Every program is one that pretraining holds out (`is_held_out`), and the novel ones have a form that the generator of
the pretraining corpus cannot emit at all. Nothing is chosen by whether some model solves it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from azr.config import ExecutorConfig
from azr.executor.pool import SandboxPool
from azr.records import Task
from azr.tasks.base import Proposal, Run
from azr.tasks.normalize import fingerprint
from azr.tasks.registry import KINDS
from tools.pretrain.compositions import FORMS
from tools.pretrain.corpus import as_task
from tools.pretrain.generator import (
    ALL,
    Domain,
    ProgramTemplate,
    Sample,
    is_held_out,
    random_template,
    straight,
    with_inputs,
)

COMMON = 1 / 2000
"""A program that is drawn more often than this is left to self-play, which would run into it all the time."""


@dataclass(frozen=True, kw_only=True)
class ExamPlan:
    """What an exam is made of."""

    seed: int
    domain: Domain
    """Of the programs of its pool."""
    draws: int
    """Programs drawn from the domain, of which the held-out ones are the pool of all that are not novel."""
    tasks: dict[str, int]
    """By kind."""
    difficulties: dict[str, dict[str, int]]
    """How many of a number of tasks are of which form. Steps are operations; a ``return x`` is none."""
    without: str | None = None
    """Plan whose programs are left out."""


_BY_STEPS = {name: {f"{steps} steps": 1} for steps, name in enumerate(("two", "three", "four", "five", "six"), 2)}
_WORKED = ExamPlan(
    seed=21,
    domain=straight(0.0, 0.2, 0.2, 0.2, 0.2, 0.2),
    draws=400_000,
    tasks={"deduction": 480},
    difficulties=_BY_STEPS,
)
PLANS = {
    "exam": ExamPlan(
        seed=20,
        domain=ALL,
        draws=600_000,
        tasks={"deduction": 320, "abduction": 320, "induction": 160},
        difficulties={
            "short": {"expression": 6, "statement": 26, "2 steps": 48},
            "long": {"3 steps": 20, "4 steps": 12},
            "novel": {"nested": 30, "branch in loop": 6, "two-step loop": 6, "branch in branch": 6},
        },
    ),
    "exam_worked": _WORKED,
    "exam_worked/sealed": replace(_WORKED, seed=22, without="exam_worked"),
}
"""By their folders in ``data``. A run grades itself on none that is called sealed, and takes no task near it."""
INDUCTION_INPUTS = 6
TRIES = 10
"""Draws of inputs for one program."""


def template_pool(rng: random.Random, plan: ExamPlan) -> dict[str, list[ProgramTemplate]]:
    """Different held-out programs of the plan's domain by form, each list in random order."""
    drawn: Counter[str] = Counter()
    templates: dict[str, ProgramTemplate] = {}
    for _ in range(plan.draws):
        template = random_template(rng, domain=plan.domain)
        if is_held_out(template.source):
            drawn[template.source] += 1
            templates[template.source] = template
    forms: dict[str, list[ProgramTemplate]] = {}
    for source, times in drawn.items():
        if times <= COMMON * plan.draws:
            forms.setdefault(_form(templates[source]), []).append(templates[source])
    for programs in forms.values():
        rng.shuffle(programs)
    return forms


def _form(template: ProgramTemplate) -> str:
    if template.operations > 1:
        return f"{template.operations} steps"
    return "expression" if template.source.count("\n") == 1 else "statement"


def choose_samples(
    rng: random.Random,
    kind: str,
    plan: ExamPlan,
    pool: dict[str, list[ProgramTemplate]],
    left_out: Iterable[str] = (),
) -> Iterator[tuple[str, Sample]]:
    """Difficulties and samples of one kind, no two with the same normalised program and none with a fingerprint that is
    left out."""
    known = set(left_out)
    total = sum(sum(shares.values()) for shares in plan.difficulties.values())
    for difficulty, forms in plan.difficulties.items():
        for form, share in forms.items():
            missing = share * plan.tasks[kind] // total
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
        raise RuntimeError(f"There are too few programs of the form {form!r}: draw more.")
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


async def validate(kind_name: str, samples: Sequence[tuple[str, Sample]], run: Run) -> list[tuple[str, Task]]:
    """The samples as tasks, through the checks that proposals go through; all of them must pass."""
    kind = KINDS[kind_name]
    bounds = {"source_bytes": 4096, "induction_inputs": INDUCTION_INPUTS, "repeats": 2}
    proposals = []
    for index, (_, sample) in enumerate(samples):
        task = as_task(kind_name, sample)
        id = f"exam-{kind_name}-{index:03d}"
        proposals.append(Proposal(id=id, sections=kind.proposal(task), references=(task,), **bounds))
    outcomes = await asyncio.gather(*(kind.validate(proposal, run) for proposal in proposals))
    benchmark = []
    for (difficulty, sample), outcome in zip(samples, outcomes, strict=True):
        assert isinstance(outcome, Task), f"{sample.program}\nwas rejected: {outcome}"
        assert outcome.outputs == sample.outputs, f"{sample.program}\nreturned {outcome.outputs}, not {sample.outputs}"
        benchmark.append((difficulty, outcome))
    return benchmark


def samples_by_kind(plan: ExamPlan) -> dict[str, list[tuple[str, Sample]]]:
    """Difficulties and samples of the whole exam."""
    left_out = set[str]()
    if plan.without is not None:
        others = samples_by_kind(PLANS[plan.without])
        left_out = {fingerprint(sample.program) for samples in others.values() for _, sample in samples}
    rng = random.Random(plan.seed)
    pool = template_pool(rng, plan)
    return {kind: list(choose_samples(rng, kind, plan, pool, left_out)) for kind in plan.tasks}


def write_exam(folder: Path, tasks: Iterable[tuple[str, Task]]) -> None:
    """Write ``<kind>.jsonl`` for every kind, one task with its difficulty per line, in the given order."""
    lines: dict[str, list[str]] = {}
    for difficulty, task in tasks:
        record = {"id": task.id, "difficulty": difficulty, "program": task.program, "inputs": task.inputs}
        record |= {"outputs": task.outputs, "message": task.message, "fingerprint": fingerprint(task.program)}
        lines.setdefault(task.kind, []).append(json.dumps(record) + "\n")
    folder.mkdir(parents=True, exist_ok=True)
    for kind, of_kind in lines.items():
        (folder / f"{kind}.jsonl").write_text("".join(of_kind))


async def make_files(plan: ExamPlan, out: Path) -> None:
    """Writes one file per kind, the same bytes every time."""
    async with SandboxPool(ExecutorConfig(workers=2, wall_s=10.0)) as executor:
        exam = [await validate(kind, each, executor.execute) for kind, each in samples_by_kind(plan).items()]
    write_exam(out, [task for of_kind in exam for task in of_kind])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes a held-out exam.")
    parser.add_argument("plan", nargs="?", choices=PLANS, default="exam", help="which")
    parser.add_argument("--out", type=Path, help="folder that is written; data/PLAN when not given")
    options = parser.parse_args()
    asyncio.run(make_files(PLANS[options.plan], options.out or Path("data") / options.plan))
