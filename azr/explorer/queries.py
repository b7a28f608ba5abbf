"""Queries of a run's index; texts that it does not hold come from the records."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, cycle, pairwise
from typing import Any

from azr.explorer.index import RunIndex, SampleRow, kept, made
from azr.explorer.record_files import Problem, read_places, read_samples
from azr.records import CORPUS, VALID, Sample, grouped
from azr.runs.run_dir import RunDirectory
from azr.tasks.base import RejectReason, Verdict

CHILDREN = "(SELECT count(*) FROM children WHERE parent = id)"
TASK_ORDERS = {
    "newest": "step DESC, n DESC",
    "oldest": "step, n",
    "hardest": "solve_rate IS NULL, solve_rate, n",
    "easiest": "solve_rate DESC, n",
    "longest": "lines DESC, n",
    "shortest": "lines, n",
    "most complex": "nodes DESC, n",
    "simplest": "nodes IS NULL, nodes, n",
    "most children": f"{CHILDREN} DESC, n",
}
TASK_COLUMNS = {
    "step": ("newest", "oldest"), "solve rate": ("hardest", "easiest"), "lines": ("longest", "shortest"),
    "nodes": ("most complex", "simplest"),
}  # fmt: skip
"""Orders of a column, the first one first."""
SAMPLE_ORDERS = {
    "step": "step DESC, n", "reward": "reward DESC, n", "lowest reward": "reward IS NULL, reward, n",
    "longest": "response_tokens DESC, n", "shortest": "response_tokens IS NULL, response_tokens, n",
    "advantage": "abs(advantage) DESC, n", "mismatch": "mismatch DESC, n",
}  # fmt: skip
SAMPLE_COLUMNS = {
    "reward": ("reward", "lowest reward"), "advantage": ("advantage",), "mismatch": ("mismatch",),
    "tokens": ("longest", "shortest"),
}  # fmt: skip
REFUSED = "refused"
"""A verdict that stands for those of all proposals that are not valid."""
VERDICTS = tuple(dict.fromkeys([VALID, *map(str, Verdict), *map(str, RejectReason)]))
ANY_RULE = "any rule"
AROUND = 120
"""Characters before and after what was found."""
Around = tuple[str, str, str]
"""The text before what was found, what was found, and the text after it."""
SEARCHING_S = 2.0
"""Time after which a search begins with no further step."""
ORIGINS = {"sampled": "", "trace": "another model's trace"}
"""Words for `azr.records.Sample.origin`."""


_TASKS = {
    "kind": "kind = ?", "step_from": "step >= ?", "step_to": "step <= ?", "rate_from": "solve_rate >= ?",
    "rate_to": "solve_rate <= ?", "lines_from": "lines >= ?", "lines_to": "lines <= ?", "nodes_from": "nodes >= ?",
    "nodes_to": "nodes <= ?", "parent": "id IN (SELECT child FROM children WHERE parent = ?)",
}  # fmt: skip
"""Conditions on tasks. ``parent``: a task or a function of the corpus that the proposer was shown."""
_OF_RULE = f"SELECT 1 FROM json_each(flags) WHERE ? IN ('{ANY_RULE}', json_extract(value, '$[0]'))"
_FLAGGED = f"flags IS NOT NULL AND EXISTS ({_OF_RULE})"
"""Condition on samples."""


def find_tasks(
    index: RunIndex, *, text: str = "", order: str = "newest", offset: int = 0, limit: int = 50, **wanted: Any
) -> tuple[list[sqlite3.Row], int]:
    """Return tasks in the asked order, with the beginning of their programs as ``head``, and how many match.

    ``text``: anywhere in the program, its inputs, outputs, message or id; letters in either case. ``wanted``: values
    for some of `_TASKS`; what is None or empty matches all.
    """
    asked = {_TASKS[name]: value for name, value in wanted.items()}
    if text:
        # Every text is read, at a microsecond each; an index of words would not find parts of expressions.
        pattern = text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        rows = index.select("SELECT n FROM texts WHERE text LIKE ? ESCAPE '\\'", f"%{pattern}%")
        asked["n IN (SELECT value FROM json_each(?))"] = json.dumps([row[0] for row in rows])
    where, values, total = _counted(index, "tasks", asked)
    order = TASK_ORDERS[order]
    rows = index.select(
        f"SELECT t.*, {CHILDREN} AS children, substr(json_extract(x.record, '$.program'), 1, 200) AS head "
        f"FROM (SELECT * FROM tasks {where} ORDER BY {order} LIMIT ? OFFSET ?) t JOIN task_records x ON x.n = t.n "
        f"ORDER BY {order}",
        *values, limit, offset,
    )  # fmt: skip
    return rows, total


def _counted(index: RunIndex, table: str, asked: Mapping[str, Any]) -> tuple[str, list[Any], int]:
    """Return the WHERE clause of those conditions that have a value, their values, and how many rows match."""
    given = {condition: value for condition, value in asked.items() if value not in (None, "")}
    where, values = f"WHERE {' AND '.join(given)}" if given else "", [*given.values()]
    return where, values, int(index.select(f"SELECT count(*) FROM {table} {where}", *values)[0][0])


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


_OF_CORPUS = f"parent >= '{CORPUS}:' AND parent < '{CORPUS};'"


def has_corpus(index: RunIndex) -> bool:
    """Whether a task was made from a function of a corpus."""
    return bool(index.select(f"SELECT 1 FROM children WHERE {_OF_CORPUS} LIMIT 1"))


def corpus(index: RunIndex) -> list[sqlite3.Row]:
    """Return the functions of the corpus that tasks were made from, hardest first: id, numbers of tasks and of answers;
    of tasks about the function itself their number, and mean solve rates when proposed and by their last answers."""
    return index.select(
        f"""
        WITH made AS (
            SELECT c.parent AS parent, t.solve_rate AS proposed, json_array_length(t.parents) = 1 AS is_given,
                (SELECT count(*) FROM samples WHERE problem_id = t.id AND role = 'solver') AS answers,
                (SELECT avg(accuracy) FROM samples WHERE problem_id = t.id AND role = 'solver' AND step = (
                    SELECT max(step) FROM samples WHERE problem_id = t.id AND role = 'solver' AND accuracy NOT NULL
                )) AS newest
            FROM children c JOIN tasks t ON t.id = c.child WHERE {_OF_CORPUS}
        )
        SELECT parent AS id, count(*) AS tasks, sum(is_given) AS given, sum(answers) AS answers,
            avg(CASE WHEN is_given THEN proposed END) AS first, avg(CASE WHEN is_given THEN newest END) AS last
        FROM made GROUP BY parent ORDER BY last IS NULL, last, parent
        """
    )


def find_samples(
    index: RunIndex, *, verdict: str = "", flag: str = "", order: str = "step", offset: int = 0, limit: int = 50,
    **wanted: Any,
) -> tuple[list[SampleRow], int]:  # fmt: skip
    """Return samples in the asked order, and how many there are in all.

    ``verdict``: one of `VERDICTS`, or `REFUSED`; ``flag``: a rule of the safety screen, or `ANY_RULE`; ``wanted``:
    values of other columns. What is None or empty matches all.
    """
    asked = {f"{name} = ?": value for name, value in wanted.items()} | {_FLAGGED: flag}
    asked |= {"role = 'proposer' AND verdict IS NOT ?": VALID} if verdict == REFUSED else {"verdict = ?": verdict}
    where, values, total = _counted(index, "samples", asked)
    rows = index.select(
        f"SELECT * FROM samples {where} ORDER BY {SAMPLE_ORDERS[order]} LIMIT ? OFFSET ?",
        *values, limit, offset,
    )  # fmt: skip
    return [made(row) for row in rows], total


def flag_counts(index: RunIndex) -> dict[str, dict[int, int]]:
    """Flagged responses by rule and step; a rule has the steps in which it found something."""
    rows = index.select(
        "SELECT json_extract(f.value, '$[0]'), r.step, count(DISTINCT r.n) FROM samples r, json_each(r.flags) f "
        "WHERE r.flags IS NOT NULL GROUP BY 1, 2 ORDER BY 1, 2"
    )
    return {rule: dict(counts) for rule, counts in grouped((rule, pair) for rule, *pair in rows).items()}


def flags_with_text(sample: Sample) -> Iterator[tuple[str, Around]]:
    """Yield each rule with what it found."""
    for rule, start, end in sample.flags:
        yield rule, _around(sample.response, start, end)


def _around(text: str, start: int, end: int) -> Around:
    return text[max(0, start - AROUND) : start], text[start:end], text[end : end + AROUND]


def turns(sample: Sample) -> Iterator[tuple[str, str]]:
    """Yield the parts of a conversation in order, each as ``response`` or ``environment`` and its text."""
    borders = pairwise([0, *chain(*sample.observed), len(sample.response)])
    for writer, (start, end) in zip(cycle(("response", "environment")), borders, strict=False):
        yield writer, sample.response[start:end]


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
    path = RunDirectory(index.run).rollouts(row.sample.step)
    (sample,) = read_places(path, [row.place])
    if kept([sample.problem_id, sample.group]) != [row.sample.problem_id, row.sample.group]:
        raise Problem(f"{path.name} has changed since it was indexed: load the page again")
    return sample


def search(
    index: RunIndex, steps: Sequence[int], text: str, *, offset: int, limit: int, **wanted: Any
) -> tuple[list[tuple[SampleRow, Around]], tuple[int, int] | None]:
    """Return the samples of these steps whose response holds a text, in either case, with the text around it; and the
    step and the line to continue at when there are more than ``limit``, or time is over. ``offset``: line of the first
    step to begin with."""
    found, pattern = list[tuple[SampleRow, Around]](), re.compile(re.escape(text), re.IGNORECASE)
    until = time.monotonic() + SEARCHING_S
    for at, step in enumerate(steps):
        rows, _ = find_samples(index, **wanted, step=step, limit=-1)
        by_line = {row.line: row for row in rows if at or row.line >= offset}
        for line, (_, sample) in enumerate(read_samples(RunDirectory(index.run).rollouts(step), [])) if by_line else ():
            if line in by_line and (match := pattern.search(sample.response)):
                if len(found) == limit:
                    return found, (step, line)
                found.append((by_line[line], _around(sample.response, *match.span())))
        if time.monotonic() > until and at + 1 < len(steps):
            return found, (steps[at + 1], 0)
    return found, None


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


def steps(index: RunIndex) -> list[int]:
    """Those that have samples."""
    return [row[0] for row in index.select("SELECT DISTINCT step FROM samples ORDER BY step")]


def verdicts(index: RunIndex, step: int) -> dict[tuple[str, ...], dict[str, int]]:
    """Return how many samples of a step have each verdict, by kind and role; empty stands for no verdict."""
    return _counts(index, step, "kind, role", "coalesce(verdict, '')")


def reasons(index: RunIndex, step: int) -> dict[tuple[str, ...], dict[str, int]]:
    """Return how many malformed and ungraded samples of a step have each reason, by kind, role and verdict."""
    return _counts(index, step, "kind, role, verdict", "nullif(reason, '')")


def _counts(index: RunIndex, step: int, by: str, of: str) -> dict[tuple[str, ...], dict[str, int]]:
    """Count the samples of a step by these columns and by another that is not null, the most first."""
    query = f"SELECT {by}, {of} AS what, count(*) FROM samples WHERE step = ? AND what IS NOT NULL GROUP BY {by}, what"
    rows = index.select(f"{query} ORDER BY {by}, count(*) DESC", step)
    return {
        player: dict(counts) for player, counts in grouped((row[:-2], row[-2:]) for row in map(tuple, rows)).items()
    }


def kinds(index: RunIndex) -> list[str]:
    """Those of any task or sample."""
    rows = index.select("SELECT DISTINCT kind FROM tasks UNION SELECT DISTINCT kind FROM samples ORDER BY 1")
    return [row[0] for row in rows]


def problems(index: RunIndex) -> list[tuple[str, str]]:
    """Files and what is wrong with them; of many files with the same sentence, the first and how many."""
    rows = index.select("SELECT min(path), sentence, count(*) FROM problems GROUP BY sentence ORDER BY 1")
    return [(path if count == 1 else f"{path} and {count - 1} more", sentence) for path, sentence, count in rows]
