import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from azr.files import HashedFile, hash_file, write_hashed
from azr.runs.checkpoint_store import (
    MANIFEST,
    PIN_FILE,
    AsyncCheckpointer,
    CheckpointStore,
    CorruptCheckpoint,
    Staging,
    step_of,
    verify,
)
from tests import tables

BROKEN = {
    "broken manifest": "{", "nested manifest": "[" * 100_000, "a manifest of a list": '{"files": ["driver.json"]}',
    "a manifest of files elsewhere": '{"files": {"../step_000001/driver.json": {"bytes": 2, "blake3": ""}}}',
    "a manifest of the system's": '{"files": {"/etc/passwd": {"bytes": 2, "blake3": ""}}}',
}  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path, keep=2)


async def save_text(store: CheckpointStore, step: int, text: str = "weights") -> Path:
    async with store.stage(step) as staging:
        folder = staging.folder
        (folder / "trainers").mkdir()
        (folder / "trainers" / "policy").write_text(text)
        (folder / "driver.json").write_text("{}")
    return store.path(step)


async def test_a_checkpoint_appears_whole_with_sizes_and_checksums(store):
    path = await save_text(store, 7)
    files = json.loads((path / MANIFEST).read_text())["files"]
    assert files["trainers/policy"]["bytes"] == 7 and set(files) == {"trainers/policy", "driver.json"}
    verify(path, "full")
    assert store.steps() == [7] and step_of(path) == 7 and step_of(path.parent) == -1


async def test_the_newest_and_the_marked_stay(store):
    for step in (1, 2, 3):
        await save_text(store, step)
        if step == 1:
            (store.path(1) / PIN_FILE).touch()
    await save_text(store, 4)
    assert store.steps() == [1, 3, 4]


async def test_a_failed_draft_leaves_what_was_there_and_another_replaces_it(store, tmp_path):
    await save_text(store, 1, "old")
    with pytest.raises(OSError, match="full"):
        async with store.stage(1) as staging:
            (staging.folder / "half").write_text("...")
            raise OSError("disk full")
    assert (store.path(1) / "trainers" / "policy").read_text() == "old"
    await save_text(store, 1, "new")
    assert (store.path(1) / "trainers" / "policy").read_text() == "new"
    verify(store.path(1), "full")
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


@pytest.mark.parametrize("damage", ["cut", "altered", "missing", "no manifest", "a folder as manifest", *BROKEN])
async def test_what_is_damaged_is_named(store, damage):
    await save_text(store, 1)
    path = await save_text(store, 2)
    victim = path / ("trainers/policy" if "manifest" not in damage else MANIFEST)
    if damage == "cut":
        os.truncate(victim, 3)
    elif damage == "altered":
        victim.write_text("wEights")
    elif damage in BROKEN:
        victim.write_text(BROKEN[damage])
    else:
        victim.unlink()
    if "folder" in damage:
        victim.mkdir()
    with pytest.raises(CorruptCheckpoint, match=str(victim)):
        verify(path, "headers")
    verify(store.path(1), "headers")


def shard(path: Path) -> HashedFile:
    """A safetensors file, written as a trainer writes its own."""
    return write_hashed(path, [save({"weight": np.arange(9.0)})])


async def save_shard(store: CheckpointStore, step: int) -> Path:
    async with store.stage(step) as staging:
        staging.written.append(shard(staging.folder / "rank_000.safetensors"))
    return store.path(step) / "rank_000.safetensors"


async def test_what_was_hashed_while_it_was_written_is_not_read_again(store, monkeypatch):
    read: list[Path] = []
    monkeypatch.setattr("azr.runs.checkpoint_store.hash_file", lambda path: read.append(path) or hash_file(path))
    path = await save_shard(store, 1)
    assert not read
    verify(path.parent, "headers")
    assert not read
    verify(path.parent, "full")
    assert read == [path]


async def test_a_flipped_byte_of_weights_is_found_by_full_verification_and_one_of_their_header_always(store):
    path = await save_shard(store, 1)
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    verify(path.parent, "headers")
    with pytest.raises(CorruptCheckpoint, match=f"^{path} has another content than was written"):
        verify(path.parent, "full")
    path.write_bytes(sound.replace(b"F64", b"F32"))
    with pytest.raises(CorruptCheckpoint, match=f"^{path} has a damaged header"):
        verify(path.parent, "headers")


async def test_a_file_that_is_not_where_the_driver_looks_makes_no_checkpoint(store, tmp_path_factory, tmp_path):
    """As when the nodes of a cluster do not share the run's folder."""
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "rank_001.safetensors"
    with pytest.raises(OSError, match=f"{elsewhere} was written, but not where the driver looks"):
        async with store.stage(1) as staging:
            staging.written.append(shard(elsewhere))
    with pytest.raises(OSError, match=r"bytes and not the \d+ that were written"):
        async with store.stage(1) as staging:
            staging.written.append(shard(staging.folder / "x.safetensors"))
            os.truncate(staging.folder / "x.safetensors", 20)
    assert not list(tmp_path.iterdir())


async def test_pruning_spares_the_newest_when_older_ones_are_damaged(store):
    for step in (1, 2, 3):
        path = await save_text(store, step)
    (path / MANIFEST).unlink()
    await save_text(store, 4)
    verify(store.path(4), "full")


async def test_later_steps_are_named_and_half_written_ones_go(store, tmp_path):
    for step in (1, 2):
        await save_text(store, step)
    (tmp_path / ".draft_x").mkdir()
    assert store.later(1) == [store.path(2)] and store.later(2) == []
    store.clear_staging()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000001", "step_000002"]


async def test_a_commit_that_is_cancelled_leaves_a_whole_checkpoint(store, monkeypatch):
    renaming, rename = threading.Event(), os.rename

    def slow_rename(source: Path, target: Path) -> None:
        renaming.set()
        time.sleep(0.05)
        rename(source, target)

    monkeypatch.setattr(os, "rename", slow_rename)
    saving = asyncio.create_task(save_text(store, 1))
    await asyncio.to_thread(renaming.wait)
    for _ in range(2):  # a second signal while the first is served
        saving.cancel()
        await asyncio.sleep(0.01)
    with pytest.raises(asyncio.CancelledError):
        await saving
    verify(store.path(1), "full")


async def test_an_error_of_the_disk_is_no_damage(store, monkeypatch):
    path = await save_text(store, 1)

    def fails(*args: object, **kwargs: object) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "read_text", fails)
    with pytest.raises(OSError, match="Input/output error"):
        verify(path, "headers")


async def test_a_checkpoint_is_as_open_as_the_umask_says(store):
    before = os.umask(0o027)
    try:
        path = await save_text(store, 1)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o750


WRITER = tables.programs(Path(__file__).with_name("programs.txt"), "process")["writer"]


@pytest.mark.parametrize("after_s", [0.0, 0.011, 0.023, 0.031, 0.047])
async def test_a_kill_at_any_instant_leaves_a_whole_checkpoint(store, tmp_path, after_s):
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    for _ in range(5):
        told = int(process.stdout.readline())
    time.sleep(after_s)
    process.kill()
    told = max([told, *map(int, process.stdout.read().split())])
    process.wait()
    newest = store.steps()[-1]
    verify(store.path(newest), "headers")
    assert newest >= told
    assert {(store.path(newest) / "0").read_bytes()} == {bytes([newest % 256]) * 10_000}
    store.clear_staging()
    assert len(list(tmp_path.iterdir())) <= 3


async def write_step(step: int, staging: Staging) -> None:
    (staging.folder / "state").write_text(str(step))


def checkpointer(folder: Path, every: int = 2, done: int = 0, write=write_step) -> tuple[AsyncCheckpointer, list[str]]:
    log: list[str] = []
    return AsyncCheckpointer(CheckpointStore(folder, keep=3), every, write, log.append, done), log


async def test_checkpoints_come_when_they_are_due_and_at_the_end_but_not_twice(tmp_path):
    one, _ = checkpointer(tmp_path, done=4)
    await one.finish_last()
    assert not list(tmp_path.iterdir())
    one, log = checkpointer(tmp_path)
    for step in range(1, 6):
        one.step_done(step)
        await one.finish()
    await one.finish_last()
    assert CheckpointStore(tmp_path, 3).steps() == [2, 4, 5] and not log
    assert one.saved == 5 and one.seconds > 0


async def test_work_goes_on_while_a_checkpoint_is_written_and_giving_up_leaves_nothing_of_it(tmp_path):
    free = asyncio.Event()

    async def slow(step: int, staging: Staging) -> None:
        await free.wait()

    one, _ = checkpointer(tmp_path, every=1, write=slow)
    one.step_done(1)
    await asyncio.sleep(0.01)
    assert one.saved == 0
    free.set()
    await one.finish()
    assert one.saved == 1
    free.clear()
    one.step_done(2)
    await asyncio.sleep(0.05)
    await one.cancel()
    await one.cancel()
    assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]


async def test_a_full_disk_costs_a_line_and_no_checkpoint(small_disk):
    size = 100_000

    async def big(step: int, staging: Staging) -> None:
        await asyncio.to_thread((staging.folder / "state").write_bytes, bytes(size))

    one, log = checkpointer(small_disk, every=1, write=big)
    one.step_done(1)
    await one.finish()
    size = 3_000_000
    one.step_done(2)
    await one.finish()
    assert len(log) == 1 and "step 2" in log[0]
    assert "No space left on device" in log[0]
    assert [path.name for path in small_disk.iterdir()] == ["step_000001"]
    with pytest.raises(OSError, match="step 2 could not be saved; the last checkpoint is of step 1"):
        await one.finish_last()
    size = 100_000
    one.step_done(3)
    await one.finish_last()
    verify(small_disk / "step_000003", "headers")
