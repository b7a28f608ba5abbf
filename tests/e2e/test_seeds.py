"""A real run starts from exactly the tasks of a seed file, records of the Absolute Zero authors among them."""

import json

import pytest

from azr.runs.sample_file import read_tasks
from azr.selfplay.seeds import write_lines
from azr.tasks.registry import KINDS
from tests.e2e.runs import succeed

FEW = ("--selfplay.proposer-prompts", "4", "--selfplay.seed-tasks", "2", "--selfplay.kinds", "deduction")
SHORT = ("--run.steps", "1", "--selfplay.solver-prompts", "4", "--selfplay.group-size", "2", "--eval.every", "0")
PROGRAMS = ["def f(a):\n    return a + 1", "def f(a):\n    return a * 3"]
RECORD = {"snippet": "def f(a):\n    return math.gcd(a, 6)", "input": "4", "output": "2", "imports": ["import math"]}


@pytest.mark.long
def test_a_run_starts_from_the_tasks_of_its_seed_file(tmp_path):
    file, kind = tmp_path / "seeds.jsonl", KINDS["deduction"]
    write_lines(file, [*(kind.make_task("x", each, ("1",), ("0",)).record() for each in PROGRAMS), RECORD])
    file.write_text(file.read_text() + "{broken\n")
    started = succeed(
        "playground.azr_14m_mini", "--run.root", str(tmp_path), "--selfplay.seeds", str(file), *FEW, *SHORT
    )
    folder = tmp_path / "azr_14m_mini"
    tasks = read_tasks(folder / "tasks.jsonl")
    seeds = [task for task in tasks if task.step == 0]
    assert [(task.id, task.outputs) for task in seeds] == [
        ("seed-000001", ("2",)), ("seed-000002", ("3",)), ("seed-000003-deduction", ("2",)),
    ]  # fmt: skip
    assert all(set(task.parents) <= {seed.id for seed in seeds} for task in tasks if task.step == 1)
    (refused,) = map(json.loads, (folder / "seeds_rejected.jsonl").read_text().splitlines())
    assert (refused["line"], refused["reason"]) == (4, "broken")
    assert f"seeds: 3 of 4 tasks of {file} pass, 2 with another output than stated; refused 1 broken" in started
