"""A handful of a step's answers and tasks, short enough to be looked at in passing; the explorer shows all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from azr.records import Sample, Task
from azr.runs.trackers.base import Table

EVERY = 10
"""Steps from one sample to the next; seeding, as step 0, and the first step have one too."""
TASKS = 8
"""At most, of all that were stored in the step."""
CHARACTERS = 2000
"""Of a text; the middle is left out."""
ROLLOUT_COLUMNS = (
    *("step", "kind", "role", "task", "reward", "outcome", "detail", "tokens", "finish", "prompt", "response"),
)  # fmt: skip
TASK_COLUMNS = ("step", "kind", "id", "solve rate", "program", "inputs", "outputs", "message")


def is_due(step: int) -> bool:
    """Whether samples of this step are taken."""
    return step == 1 or step % EVERY == 0


def sample_tables(step: int, samples: Sequence[Sample], tasks: Sequence[Task]) -> dict[str, Table]:
    """Return tables ``rollouts`` and ``tasks`` of a step, whose samples have their texts; one without rows is left
    out."""
    tables = {"rollouts": _rollout_table(step, samples), "tasks": _task_table(step, tasks)}
    return {name: table for name, table in tables.items() if table.rows}


def cut(text: str, most: int = CHARACTERS) -> str:
    """The text, without its middle where it is too long."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}"


def _rollout_table(step: int, samples: Sequence[Sample]) -> Table:
    """Return the best and the worst rewarded sample of each kind and role."""
    players: defaultdict[tuple[str, str], list[Sample]] = defaultdict(list)
    for each in samples:
        players[each.kind, each.role.value].append(each)
    rows = []
    for player, played in sorted(players.items()):
        ranked = sorted(played, key=lambda each: -(each.reward or 0.0))
        for each in ranked[:: max(1, len(ranked) - 1)]:
            verdict, detail = (each.verdict or None), "" if each.judgement is None else each.judgement.detail
            rows.append((
                *(step, *player, each.problem_id, each.reward, verdict, cut(detail)),
                *(each.response_tokens, each.finish_reason.value, cut(each.prompt), cut(each.response)),
            ))  # fmt: skip
    return Table(columns=ROLLOUT_COLUMNS, rows=tuple(rows))


def _task_table(step: int, tasks: Sequence[Task]) -> Table:
    """Evenly over the tasks of a step, so that each kind is among them."""
    chosen = [tasks[at * len(tasks) // TASKS] for at in range(TASKS)] if len(tasks) > TASKS else tasks
    rows = [
        (
            *(step, task.kind, task.id, task.solve_rate, cut(task.program)),
            *(cut("\n".join(task.inputs)), cut("\n".join(task.outputs)), cut(task.message)),
        )
        for task in chosen
    ]
    return Table(columns=TASK_COLUMNS, rows=tuple(rows))
