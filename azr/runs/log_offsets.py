"""How far a run's logs had come, and how they are cut back to there."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Mark:
    """The beginning of a file: so many bytes, with this SHA-256."""

    size: int = 0
    sha256: str = hashlib.sha256().hexdigest()

    @classmethod
    def of(cls, path: Path) -> Mark:
        """The whole of a file as it is now."""
        with path.open("rb") as file:
            return cls(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())

    def check(self, path: Path) -> None:
        """Raises ValueError when the file no longer begins as it did; it may have grown."""
        if not self.size:
            return
        try:
            with path.open("rb") as file:
                begins = hashlib.sha256(file.read(self.size)).hexdigest()
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror}), so the run cannot go on.") from error
        if begins != self.sha256:
            raise ValueError(f"{path} was altered since the checkpoint was saved, so the run cannot go on from it.")

    def cut(self, path: Path) -> None:
        """Takes away what came later. A run that was killed before its first line may have no file at all."""
        if self.size or path.exists():
            os.truncate(path, self.size)


@dataclass(frozen=True, slots=True)
class Position:
    """Of the logs that grow with every step; the default is the beginning of a run."""

    metrics: Mark = Mark()
    tasks: Mark = Mark()
