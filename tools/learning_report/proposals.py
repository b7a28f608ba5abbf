"""What a run proposed in a step, one program a line."""

from __future__ import annotations

import gzip
from pathlib import Path

from azr.records import Sample
from azr.runs.run_dir import RunDirectory
from azr.runs.sample_file import read_sample, read_tasks


def proposals(run: Path, step: int, count: int) -> str:
    """The first ``count`` proposals of a step in the order of their prompts, none left out: the share of right answers
    or why it is not a task, the program's lines with semicolons between them, and its input."""
    folder = RunDirectory(run)
    rates = {task.id: task.solve_rate for task in read_tasks(folder.tasks)}
    with gzip.open(folder.rollouts(step)) as file:
        samples = [read_sample(line) for line in file]
    made = sorted((each for each in samples if each.role == "proposer"), key=lambda each: each.problem_id)
    return "\n".join(_line(each, rates.get(each.problem_id)) for each in made[:count])


def _line(sample: Sample, rate: float | None) -> str:
    told = sample.verdict if rate is None else f"{100 * rate:.0f}%"
    sections = dict(sample.judgement.answer or ()) if sample.judgement is not None else {}
    if not sections:
        return f"{told:13} {sample.response}"
    head, *lines = (line.strip() for line in sections.get("program", "").split("\n"))
    return f"{told:13} {'; '.join(lines) or head}    f({sections.get('input', '')})"
