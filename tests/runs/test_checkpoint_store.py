from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from azr.runs import manifest
from azr.runs.checkpoint_store import MARK, CheckpointStore, step_of
from azr.runs.manifest import Damaged


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path, keep=2)


async def save(store: CheckpointStore, step: int, text: str = "weights") -> Path:
    async with store.draft(step) as folder:
        (folder / "trainers").mkdir()
        (folder / "trainers" / "policy").write_text(text)
        (folder / "driver.json").write_text("{}")
    return store.path(step)


async def test_a_checkpoint_appears_whole_with_sizes_and_checksums(store):
    path = await save(store, 7)
    files = json.loads((path / manifest.NAME).read_text())["files"]
    assert files["trainers/policy"]["bytes"] == 7 and set(files) == {"trainers/policy", "driver.json"}
    manifest.check(path)
    assert store.steps() == [7] and step_of(path) == 7 and step_of(path.parent) == -1


async def test_the_newest_and_the_marked_stay(store):
    for step in (1, 2, 3):
        await save(store, step)
        if step == 1:
            (store.path(1) / MARK).touch()
    await save(store, 4)
    assert store.steps() == [1, 3, 4]


async def test_a_failed_draft_leaves_what_was_there(store, tmp_path):
    await save(store, 1, "old")
    with pytest.raises(OSError, match="full"):
        async with store.draft(1) as folder:
            (folder / "half").write_text("...")
            raise OSError("disk full")
    assert (store.path(1) / "trainers" / "policy").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


@pytest.mark.parametrize("damage", ["cut", "altered", "missing", "no manifest", "broken manifest"])
async def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(store, damage):
    await save(store, 1)
    path = await save(store, 2)
    victim = path / ("trainers/policy" if "manifest" not in damage else manifest.NAME)
    if damage == "cut":
        os.truncate(victim, 3)
    elif damage == "altered":
        victim.write_text("wEights")
    elif damage == "broken manifest":
        victim.write_text("{")
    else:
        victim.unlink()
    with pytest.raises(Damaged, match=str(victim)):
        manifest.check(path)
    warnings: list[str] = []
    assert store.newest(warnings.append) == 1
    assert len(warnings) == 1 and "step 2 is not used" in warnings[0] and str(victim) in warnings[0]


async def test_pruning_spares_the_newest_when_older_ones_are_damaged(store):
    for step in (1, 2, 3):
        path = await save(store, step)
    (path / manifest.NAME).unlink()
    await save(store, 4)
    assert store.newest(lambda _: None) == 4


async def test_going_back_forgets_later_steps_and_half_written_ones(store, tmp_path):
    for step in (1, 2):
        await save(store, step)
    (tmp_path / ".draft_x").mkdir()
    store.forget_after(1)
    store.clear_drafts()
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


WRITER = """
import asyncio, sys
from pathlib import Path
from azr.runs.checkpoint_store import CheckpointStore

async def main():
    store = CheckpointStore(Path(sys.argv[1]), keep=2)
    step = 0
    while True:
        step += 1
        async with store.draft(step) as folder:
            for number in range(20):
                (folder / str(number)).write_bytes(bytes([step % 256]) * 10_000)
        print(step, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize("after_s", [0.0, 0.011, 0.023, 0.031, 0.047])
async def test_a_kill_at_any_instant_leaves_a_whole_checkpoint(store, tmp_path, after_s):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    for _ in range(5):
        told = int(process.stdout.readline())
    time.sleep(after_s)
    process.kill()
    told = max([told, *map(int, process.stdout.read().split())])
    process.wait()
    newest = store.newest(pytest.fail)
    assert newest is not None and newest >= told
    assert {(store.path(newest) / "0").read_bytes()} == {bytes([newest % 256]) * 10_000}
    store.clear_drafts()
    assert len(list(tmp_path.iterdir())) <= 3


async def test_what_is_written_may_be_replaced(store):
    await save(store, 1, "old")
    await asyncio.gather(save(store, 1, "new"))
    assert (store.path(1) / "trainers" / "policy").read_text() == "new"
    manifest.check(store.path(1))
