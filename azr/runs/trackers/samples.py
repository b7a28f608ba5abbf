"""A handful of a step's answers and tasks, short enough to be looked at in passing; the explorer shows all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from azr.records import Learned, Sample, Task
from azr.runs.rollout_record import Decode, rollout_record
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


def sample_tables(
    step: int, rollouts: Sequence[tuple[Sample, Learned | None]], tasks: Sequence[Task], decode: Decode
) -> dict[str, Table]:
    """Tables ``rollouts`` and ``tasks`` of a step; a table without rows is left out. Decodes texts: slow."""
    tables = {"rollouts": _rollout_table(step, rollouts, decode), "tasks": _task_table(step, tasks)}
    return {name: table for name, table in tables.items() if table.rows}


def cut(text: str, most: int = CHARACTERS) -> str:
    """The text, without its middle where it is too long."""
    half = most // 2
    return text if len(text) <= most else f"{text[:half]}\n[… {len(text) - 2 * half} characters …]\n{text[-half:]}"


def _rollout_table(step: int, rollouts: Sequence[tuple[Sample, Learned | None]], decode: Decode) -> Table:
    """The best and the worst rewarded trajectory of each kind and role."""
    players: defaultdict[tuple[str, str], list[tuple[Sample, Learned | None]]] = defaultdict(list)
    for each in rollouts:
        players[each[0].kind, each[0].role.value].append(each)
    rows = []
    for _, played in sorted(players.items()):
        ranked = sorted(played, key=lambda each: -each[0].reward)
        for trajectory, learned in ranked[:: max(1, len(ranked) - 1)]:
            prompt = decode(trajectory.completion.prompt_ids)
            record = rollout_record(step, trajectory, learned, prompt, decode)
            rows.append((
                *(step, record.kind, record.role, record.task_id, record.reward, record.outcome, cut(record.detail)),
                *(record.response_tokens, record.finish_reason, cut(record.prompt), cut(record.response)),
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
