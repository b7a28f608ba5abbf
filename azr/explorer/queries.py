"""Queries of a run's index; texts that it does not hold come from the records."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from azr.explorer.index import RunIndex, SampleRow, kept, made
from azr.explorer.record_files import Problem, read_places
from azr.records import VALID, Sample

TASK_ORDERS = {
    "newest": "step DESC, n DESC",
    "oldest": "step, n",
    "hardest": "solve_rate IS NULL, solve_rate, n",
    "easiest": "solve_rate DESC, n",
    "longest": "lines DESC, n",
    "shortest": "lines, n",
    "most complex": "nodes DESC, n",
    "simplest": "nodes IS NULL, nodes, n",
}
TASK_COLUMNS = {
    "step": ("newest", "oldest"), "solve rate": ("hardest", "easiest"), "lines": ("longest", "shortest"),
    "nodes": ("most complex", "simplest"),
}  # fmt: skip
"""Orders of a column, the first one first."""
SAMPLE_ORDERS = {
    "step": "step DESC, n",
    "reward": "reward DESC, n",
    "lowest reward": "reward IS NULL, reward, n",
    "longest": "response_tokens DESC, n",
    "shortest": "response_tokens IS NULL, response_tokens, n",
    "advantage": "abs(advantage) DESC, n",
    "mismatch": "mismatch DESC, n",
}
SAMPLE_COLUMNS = {
    "reward": ("reward", "lowest reward"), "advantage": ("advantage",), "mismatch": ("mismatch",),
    "tokens": ("longest", "shortest"),
}  # fmt: skip
REFUSED = "refused"
"""A verdict that stands for those of all proposals that are not valid."""
ANY_RULE = "any rule"
AROUND = 120
"""Characters before and after what was found."""
ORIGINS = {"sampled": "", "trace": "another model's trace"}
"""Words for `azr.records.Sample.origin`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks; what is None or empty matches all."""

    kind: str = ""
    text: str = ""
    """Anywhere in the program, its inputs, outputs, message or id; letters in either case."""
    step_from: int | None = None
    step_to: int | None = None
    rate_from: float | None = None
    rate_to: float | None = None
    lines_from: int | None = None
    lines_to: int | None = None
    nodes_from: int | None = None
    nodes_to: int | None = None
    order: str = "newest"
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleFilter:
    """Which samples; what is None or empty matches all."""

    step: int | None = None
    role: str = ""
    kind: str = ""
    verdict: str = ""
    problem_id: str = ""
    used: str = ""
    reason: str = ""
    """A `azr.records.Reason`."""
    flag: str = ""
    """A rule of the safety screen, or `ANY_RULE`."""
    order: str = "step"
    offset: int = 0
    limit: int = 50


def find_tasks(index: RunIndex, wanted: TaskFilter) -> tuple[list[sqlite3.Row], int]:
    """Return tasks in the asked order, with the beginning of their programs as ``head``, and how many match."""
    where, values = _given({
        "kind = ?": wanted.kind,
        "step >= ?": wanted.step_from, "step <= ?": wanted.step_to,
        "solve_rate >= ?": wanted.rate_from, "solve_rate <= ?": wanted.rate_to,
        "lines >= ?": wanted.lines_from, "lines <= ?": wanted.lines_to,
        "nodes >= ?": wanted.nodes_from, "nodes <= ?": wanted.nodes_to,
    })  # fmt: skip
    if wanted.text:
        # Every text is read, at a microsecond each; an index of words would not find parts of expressions.
        pattern = wanted.text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        rows = index.select("SELECT n FROM texts WHERE text LIKE ? ESCAPE '\\'", f"%{pattern}%")
        where.append("n IN (SELECT value FROM json_each(?))")
        values.append(json.dumps([row[0] for row in rows]))
    conditions, total = _counted(index, "tasks", where, values)
    order = TASK_ORDERS[wanted.order]
    rows = index.select(
        f"SELECT t.*, substr(json_extract(x.record, '$.program'), 1, 200) AS head "
        f"FROM (SELECT * FROM tasks {conditions} ORDER BY {order} LIMIT ? OFFSET ?) t JOIN task_records x ON x.n = t.n "
        f"ORDER BY {order}",
        *values, wanted.limit, wanted.offset,
    )  # fmt: skip
    return rows, total


def _given(conditions: Mapping[str, Any]) -> tuple[list[str], list[Any]]:
    """Return those conditions that have a value, and their values."""
    given = {condition: value for condition, value in conditions.items() if value not in (None, "")}
    return [*given], [*given.values()]


def _counted(index: RunIndex, table: str, where: Sequence[str], values: Sequence[Any]) -> tuple[str, int]:
    """Return the WHERE clause, and how many rows match."""
    conditions = f"WHERE {' AND '.join(where)}" if where else ""
    return conditions, int(index.select(f"SELECT count(*) FROM {table} {conditions}", *values)[0][0])


def find_task(index: RunIndex, id: str) -> dict[str, Any] | None:
    """Return a task of the table with the ids of its parents and its texts; None when there is none of this id."""
    for row in index.select("SELECT t.*, x.record FROM tasks t JOIN task_records x ON x.n = t.n WHERE id = ?", id):
        return {**row, **json.loads(row["record"]), "parents": json.loads(row["parents"])}
    return None


def neighbours(index: RunIndex, id: str) -> list[tuple[str, str]]:
    """Return ``previous`` and ``next`` with the tasks stored before and after one, as far as there are any."""
    query = "SELECT id FROM tasks WHERE n = (SELECT n FROM tasks WHERE id = ?) + ?"
    return [(name, row[0]) for name, by in (("previous", -1), ("next", 1)) for row in index.select(query, id, by)]


def children(index: RunIndex, id: str, limit: int = 100) -> tuple[list[str], int]:
    """Return tasks whose proposer was shown this one, and how many there are."""
    (total,) = index.select("SELECT count(*) FROM children WHERE parent = ?", id)[0]
    query = "SELECT t.id FROM children c JOIN tasks t ON t.id = c.child WHERE c.parent = ? ORDER BY t.n LIMIT ?"
    return [row[0] for row in index.select(query, id, limit)], int(total)


def most_children(index: RunIndex, limit: int) -> list[tuple[str, str, int, float | None, int]]:
    """Id, kind, step, solve rate and number of children of the tasks that have most."""
    rows = index.select(
        "SELECT t.id, t.kind, t.step, t.solve_rate, c.count FROM (SELECT parent, count(*) AS count FROM children "
        "GROUP BY parent ORDER BY count DESC LIMIT ?) c JOIN tasks t ON t.id = c.parent ORDER BY c.count DESC, t.n",
        limit,
    )  # fmt: skip
    return [tuple(row) for row in rows]


def solve_rates(index: RunIndex, ids: Sequence[str]) -> dict[str, float | None]:
    """Return the solve rates of those tasks that were stored."""
    query = "SELECT id, solve_rate FROM tasks WHERE id IN (SELECT value FROM json_each(?))"
    return {row["id"]: row["solve_rate"] for row in index.select(query, json.dumps(ids))}


def find_samples(index: RunIndex, wanted: SampleFilter) -> tuple[list[SampleRow], int]:
    """Return samples in the asked order, and how many there are in all."""
    where, values = _given({
        "step = ?": wanted.step, "role = ?": wanted.role, "kind = ?": wanted.kind,
        "verdict = ?": "" if wanted.verdict == REFUSED else wanted.verdict,
        "problem_id = ?": wanted.problem_id, "used = ?": wanted.used, "reason = ?": wanted.reason,
    })  # fmt: skip
    if wanted.verdict == REFUSED:
        where.append(f"role = 'proposer' AND verdict IS NOT '{VALID}'")
    if wanted.flag == ANY_RULE:
        where.append("flags IS NOT NULL")
    elif wanted.flag:
        where.append(
            "flags IS NOT NULL AND EXISTS (SELECT 1 FROM json_each(flags) WHERE json_extract(value, '$[0]') = ?)"
        )
        values.append(wanted.flag)
    conditions, total = _counted(index, "samples", where, values)
    rows = index.select(
        f"SELECT * FROM samples {conditions} ORDER BY {SAMPLE_ORDERS[wanted.order]} LIMIT ? OFFSET ?",
        *values, wanted.limit, wanted.offset,
    )  # fmt: skip
    return [made(row) for row in rows], total


def flag_counts(index: RunIndex) -> dict[str, dict[int, int]]:
    """Flagged responses by rule and step; a rule has the steps in which it found something."""
    counts: dict[str, dict[int, int]] = {}
    for rule, step, count in index.select(
        "SELECT json_extract(f.value, '$[0]'), r.step, count(DISTINCT r.n) FROM samples r, json_each(r.flags) f "
        "WHERE r.flags IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2"
    ):
        counts.setdefault(rule, {})[step] = count
    return counts


def flags_with_text(sample: Sample) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """Yield each rule with the text before what it found, what it found, and the text after it."""
    response = sample.response
    for rule, start, end in sample.flags:
        before, after = response[max(0, start - AROUND) : start], response[end : end + AROUND]
        yield rule, (before, response[start:end], after)


def derived_attempts(index: RunIndex, id: str) -> list[tuple[str, int, float | None]]:
    """Id, attempts and share of right ones of the tasks that were derived from one, which are not stored."""
    # From the id and a hyphen up to the id and what comes after a hyphen: an index finds these.
    rows = index.select(
        "SELECT problem_id, count(*), avg(accuracy) FROM samples WHERE problem_id >= ? AND problem_id < ? "
        "GROUP BY problem_id",
        f"{id}-", f"{id}.",
    )  # fmt: skip
    return [tuple(row) for row in rows]


def read_texts(index: RunIndex, row: SampleRow) -> Sample:
    """Return the whole sample of a row, with its texts. Raises `Problem`."""
    path = index.run / "rollouts" / f"step_{row.sample.step:06d}.jsonl.gz"
    (sample,) = read_places(path, [row.place])
    if kept([sample.problem_id, sample.group]) != [row.sample.problem_id, row.sample.group]:
        raise Problem(f"{path.name} has changed since it was indexed: load the page again")
    return sample


def find_sample(index: RunIndex, step: int, line: int) -> SampleRow | None:
    """Return a sample by its step and its line in the step's file; None when there is none."""
    rows = index.select("SELECT * FROM samples WHERE step = ? AND line = ?", step, line)
    return made(rows[0]) if rows else None


def metrics(index: RunIndex) -> list[dict[str, Any]]:
    """Numbers of every step, with their ``step``."""
    return [json.loads(row["numbers"]) for row in index.select("SELECT numbers FROM metrics ORDER BY step")]


def given_up(index: RunIndex, step: int) -> int:
    """Responses of a step, evaluations included, that took an engine too long."""
    rows = index.select("SELECT numbers FROM metrics WHERE step <= ? ORDER BY step DESC LIMIT 2", step)
    counts = [(each["step"], int(each.get("engines/given_up", 0))) for row in rows for each in [json.loads(row[0])]]
    if not counts or counts[0][0] != step:
        return 0
    # A counter of the process, which begins at 0 again when a run is resumed.
    before = counts[1][1] if len(counts) > 1 else 0
    return counts[0][1] - (before if before <= counts[0][1] else 0)


def lengths(index: RunIndex) -> list[sqlite3.Row]:
    """Response lengths in tokens by role, kind and step: count, truncated, mean, p10, p50, p90, longest."""
    return index.select("SELECT * FROM lengths ORDER BY role, kind, step")


def steps(index: RunIndex) -> list[int]:
    """Those that have samples."""
    return [row[0] for row in index.select("SELECT DISTINCT step FROM samples ORDER BY step")]


def verdicts(index: RunIndex, step: int) -> dict[tuple[str, str], dict[str, int]]:
    """Return how many samples of a step have each verdict, by kind and role; empty stands for no verdict."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for row in index.select(
        "SELECT kind, role, coalesce(verdict, ''), count(*) FROM samples WHERE step = ? GROUP BY 1, 2, 3 "
        "ORDER BY 1, 2, 4 DESC", step,
    ):  # fmt: skip
        counts.setdefault((row[0], row[1]), {})[row[2]] = row[3]
    return counts


def reasons(index: RunIndex, step: int) -> dict[tuple[str, str, str], dict[str, int]]:
    """Return how many malformed and ungraded samples of a step have each reason, by kind, role and verdict."""
    counts: dict[tuple[str, str, str], dict[str, int]] = {}
    for kind, role, verdict, reason, count in index.select(
        "SELECT kind, role, verdict, reason, count(*) FROM samples WHERE step = ? AND reason != '' "
        "GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 5 DESC", step,
    ):  # fmt: skip
        counts.setdefault((kind, role, verdict), {})[reason] = count
    return counts


def kinds(index: RunIndex) -> list[str]:
    """Those of any task or sample."""
    rows = index.select("SELECT DISTINCT kind FROM tasks UNION SELECT DISTINCT kind FROM lengths ORDER BY 1")
    return [row[0] for row in rows]


def problems(index: RunIndex) -> list[tuple[str, str]]:
    """Files and what is wrong with them; of many files with the same sentence, the first and how many."""
    rows = index.select("SELECT min(path), sentence, count(*) FROM problems GROUP BY sentence ORDER BY 1")
    return [(path if count == 1 else f"{path} and {count - 1} more", sentence) for path, sentence, count in rows]
