from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from azr.runs.checkpoint_store import CheckpointStore
from azr.runs.checkpointer import Saver


class Notes(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


async def fill(step: int, folder: Path) -> None:
    (folder / "state").write_text(str(step))


def saver(folder: Path, every: int = 2, done: int = 0, fill=fill) -> tuple[Saver, Notes]:
    notes = Notes()
    return Saver(CheckpointStore(folder, keep=3), every, fill, notes, done), notes


async def test_checkpoints_come_when_they_are_due_and_at_the_end(tmp_path):
    one, notes = saver(tmp_path)
    for step in range(1, 6):
        one.step_done(step)
        await one.finish()
    await one.finish_last()
    assert CheckpointStore(tmp_path, 3).steps() == [2, 4, 5] and not notes
    assert one.saved == 5 and one.seconds > 0


async def test_work_goes_on_while_a_checkpoint_is_written(tmp_path):
    free = asyncio.Event()

    async def slow(step: int, folder: Path) -> None:
        await free.wait()

    one, _ = saver(tmp_path, every=1, fill=slow)
    one.step_done(1)
    await asyncio.sleep(0.01)
    assert one.saved == 0
    free.set()
    await one.finish()
    assert one.saved == 1


async def test_what_was_done_before_is_not_saved_again(tmp_path):
    one, _ = saver(tmp_path, done=4)
    await one.finish_last()
    assert not list(tmp_path.iterdir())


async def test_giving_up_leaves_nothing(tmp_path):
    async def never(step: int, folder: Path) -> None:
        await asyncio.sleep(1000)

    one, _ = saver(tmp_path, every=1, fill=never)
    one.step_done(1)
    await asyncio.sleep(0.05)
    await one.cancel()
    await one.cancel()
    assert not list(tmp_path.iterdir())


async def test_a_full_disk_costs_a_note_and_no_checkpoint(tmp_path):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)], check=True)
    try:
        size = 100_000

        async def big(step: int, folder: Path) -> None:
            await asyncio.to_thread((folder / "state").write_bytes, bytes(size))

        one, notes = saver(tmp_path, every=1, fill=big)
        one.step_done(1)
        await one.finish()
        size = 2_000_000
        one.step_done(2)
        await one.finish()
        assert len(notes) == 1 and "step 2" in notes[0]
        assert "No space left on device" in notes[0]
        assert [path.name for path in tmp_path.iterdir()] == ["step_000001"]
        with pytest.raises(OSError, match="step 2 could not be saved; the last checkpoint is of step 1"):
            await one.finish_last()
        size = 100_000
        one.step_done(3)
        await one.finish_last()
        assert CheckpointStore(tmp_path, 3).newest(pytest.fail) == 3
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
