"""The checkpoints of one run: one folder per step, complete or not there."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from azr.runs import manifest
from azr.runs.manifest import Damaged

MARK = "KEEP"
"""A file of this name in a checkpoint's folder protects it from pruning."""
_STEP = re.compile(r"step_(\d{6,})")
_DRAFT = ".draft_"


class CheckpointStore:
    """Folders ``step_000010`` below one folder, of which the newest ``keep`` stay, and any with a mark."""

    def __init__(self, folder: Path, keep: int) -> None:
        assert keep >= 1, "the newest checkpoint always stays"
        self._folder, self._keep = folder, keep

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is, or would be."""
        return self._folder / f"step_{step:06d}"

    def steps(self) -> list[int]:
        """Steps with a checkpoint, damaged or not, oldest first."""
        return sorted(step for path in self._folder.iterdir() if (step := step_of(path)) >= 0)

    def newest(self, warn: Callable[[str], None]) -> int | None:
        """The newest step whose checkpoint is whole; ``warn`` hears of every damaged one that is passed over."""
        for step in reversed(self.steps()):
            try:
                manifest.check(self.path(step))
            except Damaged as damage:
                warn(f"the checkpoint of step {step} is not used: {damage}")
            else:
                return step
        return None

    @asynccontextmanager
    async def draft(self, step: int) -> AsyncIterator[Path]:
        """A folder to fill; leaving the context commits it as the step's checkpoint and prunes old ones.

        After an error nothing of it is left, and what was there stays. Raises OSError when the disk is full.
        """
        self.clear_drafts()
        draft = Path(tempfile.mkdtemp(prefix=_DRAFT, dir=self._folder))
        try:
            draft.chmod(0o755)
            yield draft
            await asyncio.to_thread(self._commit, draft, self.path(step))
        except BaseException:
            await asyncio.to_thread(shutil.rmtree, draft, ignore_errors=True)
            raise

    def forget_after(self, step: int) -> None:
        """Removes checkpoints of later steps: the run goes on from this one."""
        for later in self.steps():
            if later > step:
                _remove(self.path(later))

    def clear_drafts(self) -> None:
        """Removes what a killed process left half-written."""
        for left in self._folder.glob(f"{_DRAFT}*"):
            shutil.rmtree(left)

    def _commit(self, draft: Path, path: Path) -> None:
        manifest.write(draft)
        if path.exists():
            _remove(path)
        os.rename(draft, path)
        self._prune()

    def _prune(self) -> None:
        for step in self.steps()[: -self._keep]:
            if not (self.path(step) / MARK).exists():
                _remove(self.path(step))


def step_of(path: Path) -> int:
    """The step of a checkpoint's folder; -1 for any other."""
    match = _STEP.fullmatch(path.name)
    return int(match[1]) if match else -1


def _remove(path: Path) -> None:
    """By way of a draft's name, so that a kill in the middle leaves no half checkpoint."""
    doomed = path.with_name(f"{_DRAFT}{path.name}")
    os.rename(path, doomed)
    shutil.rmtree(doomed)
