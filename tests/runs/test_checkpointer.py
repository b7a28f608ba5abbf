from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from azr.runs.checkpoint_store import AsyncCheckpointer, CheckpointStore, Staging


class Log(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


async def write(step: int, staging: Staging) -> None:
    (staging.folder / "state").write_text(str(step))


def checkpointer(folder: Path, every: int = 2, done: int = 0, write=write) -> tuple[AsyncCheckpointer, Log]:
    log = Log()
    return AsyncCheckpointer(CheckpointStore(folder, keep=3), every, write, log, done), log


async def test_checkpoints_come_when_they_are_due_and_at_the_end(tmp_path):
    one, log = checkpointer(tmp_path)
    for step in range(1, 6):
        one.step_done(step)
        await one.finish()
    await one.finish_last()
    assert CheckpointStore(tmp_path, 3).steps() == [2, 4, 5] and not log
    assert one.saved == 5 and one.seconds > 0


async def test_work_goes_on_while_a_checkpoint_is_written(tmp_path):
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


async def test_what_was_done_before_is_not_saved_again(tmp_path):
    one, _ = checkpointer(tmp_path, done=4)
    await one.finish_last()
    assert not list(tmp_path.iterdir())


async def test_giving_up_leaves_nothing(tmp_path):
    async def never(step: int, staging: Staging) -> None:
        await asyncio.sleep(1000)

    one, _ = checkpointer(tmp_path, every=1, write=never)
    one.step_done(1)
    await asyncio.sleep(0.05)
    await one.cancel()
    await one.cancel()
    assert not list(tmp_path.iterdir())


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
    assert CheckpointStore(small_disk, 3).newest(pytest.fail) == 3
