"""A seed set is grown and saved by the real engine and executor, and a real run starts from exactly it."""

import json
from dataclasses import replace

import pytest

from azr.runs.sample_file import read_tasks
from tests.e2e.runs import succeed

FEW = ("--selfplay.proposer-prompts", "4", "--selfplay.seed-tasks", "2", "--selfplay.kinds", "deduction")
SHORT = ("--run.steps", "1", "--selfplay.solver-prompts", "4", "--selfplay.group-size", "2", "--eval.every", "0")


@pytest.mark.long
def test_a_run_starts_from_the_seeds_that_were_saved(tmp_path):
    file = tmp_path / "seeds.jsonl"
    said = succeed("azr", "seeds", "azr_14m_mini", "--out", str(file), *FEW)
    saved = read_tasks(file)
    assert len(saved) >= 2 and saved[0].id == "seed-deduction" and f"{len(saved)} tasks are now in {file}" in said
    file.write_text(file.read_text() + "{broken\n")
    started = succeed(
        "playground.azr_14m_mini", "--run.root", str(tmp_path), "--selfplay.seeds", str(file), *FEW, *SHORT
    )
    folder = tmp_path / "azr_14m_mini"
    tasks = read_tasks(folder / "tasks.jsonl")
    seeds = [task for task in tasks if task.step == 0]
    assert seeds == [replace(task, id=f"seed-{n:06d}", parents=()) for n, task in enumerate(saved, 1)]
    assert all(set(task.parents) <= {seed.id for seed in seeds} for task in tasks if task.step == 1)
    (refused,) = map(json.loads, (folder / "seeds_rejected.jsonl").read_text().splitlines())
    assert (refused["line"], refused["reason"]) == (len(saved) + 1, "broken")
    assert f"seeds: {len(saved)} of {len(saved) + 1} tasks of {file} pass; refused 1 broken" in started
