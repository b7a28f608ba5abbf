"""What a run proposed in a step, one program a line."""

from __future__ import annotations

from pathlib import Path

from azr.evaluation.suites.files import read_rows
from azr.runs.run_dir import RunDirectory
from azr.runs.sinks import read_tasks


def proposals(run: Path, step: int, count: int) -> str:
    """The first ``count`` proposals of a step in the order of their prompts, none left out: the share of right answers
    or why it is no task, the program's lines with semicolons between them, and its input."""
    folder = RunDirectory(run)
    rates = {task.id: task.solve_rate for task in read_tasks(folder.tasks)}
    records = read_rows(folder.rollouts(step))
    made = sorted((each for each in records if each["role"] == "proposer"), key=lambda each: str(each["task_id"]))
    return "\n".join(_line(each, rates.get(each["task_id"])) for each in made[:count])


def _line(record: dict[str, object], rate: float | None) -> str:
    told = record["outcome"] if rate is None else f"{100 * rate:.0f}%"
    sections = dict(record["answer"] or [])  # type: ignore[call-overload]
    if not sections:
        return f"{told:13} {record['response']}"
    head, *lines = (line.strip() for line in sections.get("program", "").split("\n"))
    return f"{told:13} {'; '.join(lines) or head}    f({sections.get('input', '')})"
