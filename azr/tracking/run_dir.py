"""The run directory: what it holds, and how it comes to be whole or not at all."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from azr.config import Config, RunConfig


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Paths inside one run's folder."""

    path: Path

    @classmethod
    def create(cls, config: Config) -> RunDirectory:
        """Makes ``<run.root>/<run.name>`` with its ``config.yaml``, by one rename of a finished folder.

        Raises:
            ValueError: the folder holds a run already, cannot be made, or its name is not a folder name.
        """
        path = folder(config.run)
        check_free(config.run)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        except OSError as error:
            raise ValueError(
                f"Nothing can be written into {path.parent} ({error}): choose another --run.root."
            ) from error
        try:
            draft.chmod(0o755)
            for name in ("rollouts", "checkpoints"):
                (draft / name).mkdir()
            (draft / "config.yaml").write_text(yaml.safe_dump(asdict(config), sort_keys=False))
            # Renaming onto a folder that is not empty fails, so two runs can never get the same one.
            os.rename(draft, path)
        except OSError:
            shutil.rmtree(draft)
            check_free(config.run)
            raise
        return cls(path)

    @property
    def config(self) -> Path:
        return self.path / "config.yaml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    @property
    def tasks(self) -> Path:
        return self.path / "tasks.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    def rollouts(self, step: int) -> Path:
        return self.path / "rollouts" / f"step_{step:06d}.jsonl.gz"


def folder(run: RunConfig) -> Path:
    """Where a run goes.

    Raises:
        ValueError: the name is empty or names more than one folder.
    """
    if run.name in ("", ".", "..") or Path(run.name).name != run.name:
        raise ValueError(f"--run.name must be the name of one folder, not {run.name!r}; the place goes in --run.root.")
    return Path(run.root) / run.name


def check_free(run: RunConfig) -> None:
    """Finds a taken folder before anything is started.

    Raises:
        ValueError: it holds something already.
    """
    path = folder(run)
    if path.is_dir():
        if any(path.iterdir()):
            raise ValueError(f"{path} already holds a run: choose another --run.name, or remove or rename that folder.")
    elif path.exists():
        raise ValueError(f"{path} is a file: choose another --run.name, or remove or rename that file.")


def log_to(path: Path) -> logging.Handler:
    """Sends everything logged below ``azr`` to a file, one flushed line each. Detach with `stop_logging`."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("azr")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    return handler


def stop_logging(handler: logging.Handler) -> None:
    """Undoes `log_to`."""
    logging.getLogger("azr").removeHandler(handler)
    handler.close()
