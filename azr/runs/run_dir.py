"""The run directory: the paths in it, how it is made complete or not at all, and its one owner."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec
import yaml

from azr.config import Config, RunConfig
from azr.config_tree import to_tree
from azr.errors import UserError
from azr.files import atomic_folder, atomic_write, open_regular
from azr.own_data import code_version
from azr.records import Stops
from azr.runs.sample_file import LogOffsets
from azr.text import brief

RUN_CONFIG = "config.yaml"
"""File in the folders of runs and checkpoints."""
MAX_NAME = 200
"""Bytes of a run's name. File systems take 255, and a folder that makes way or is being written has a longer one."""
OWNER_FILE = "owner.txt"
_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems that have no locks, or none for folders."""


class RunDirectory:
    """Paths inside one run's folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config = path / RUN_CONFIG
        self.prompt_form = path / "prompts.json"
        self.data = path / "data.json"
        """Which file of rows the run answers."""
        self.metrics = path / "metrics.jsonl"
        self.tensorboard = path / "tensorboard"
        self.tasks = path / "tasks.jsonl"
        self.seeds_refused = path / "seeds_rejected.jsonl"
        """Lines of the seed file that became no task, and why."""
        self.checkpoints = path / "checkpoints"
        self.log = path / "log.txt"

    @classmethod
    def of(cls, run: RunConfig) -> RunDirectory:
        """Return ``<run.root>/<run.name>``. Raises UserError when there can be no such folder."""
        name, path = run.name, Path(run.root) / run.name
        if name in ("", ".", "..") or Path(name).name != name:
            raise UserError(f"--run.name must be the name of one folder, not {name!r}; the place goes in --run.root.")
        if len(os.fsencode(name)) > MAX_NAME or not name.isprintable():
            raise UserError(f"--run.name must be printable and of at most {MAX_NAME} bytes, not {brief(name)}.")
        if "\0" in run.root:
            raise UserError(f"--run.root {brief(run.root)} cannot be the name of a folder: choose another.")
        try:
            path.exists()
        except OSError as error:
            raise UserError(f"--run.root {brief(run.root)}: {error.strerror}; choose another.") from error
        return cls(path)

    def create(self, config: Config) -> RunDirectory:
        """Make the folder with its ``config.yaml``, by one rename of a finished folder. Raises UserError when it holds
        a run already or cannot be made."""
        self.check_free()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_folder(self.path) as staging:
                for name in ("rollouts", "checkpoints"):
                    (staging / name).mkdir()
                write_config(config, staging / RUN_CONFIG, command_comment())
        except OSError as error:
            self.check_free()  # another run may have taken the name meanwhile
            raise UserError(f"{self.path.parent} cannot be written ({error}): choose another --run.root.") from error
        return self

    def check_free(self, *, restart: bool = False) -> None:
        """Raise UserError when the folder holds something already. ``restart``: it may be a run, which makes way."""
        path = self.path
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file: choose another --run.name, or remove or rename that file.")
        if not path.is_dir() or not any(path.iterdir()):
            return
        if not self.config.is_file():
            raise UserError(f"{path} holds other files and no run: choose another --run.name.")
        if not restart:
            there = "continue it by --resume, begin again with --restart"
            if not any(self.checkpoints.glob("step_*")):
                there = "it has no checkpoint, so --resume begins it again; --restart does so beside it"
            raise UserError(f"{path} already holds a run: {there}, or choose another --run.name.")

    def keep_aside(self) -> Path | None:
        """Rename the folder, so that another run can have its name. Returns the new path, None if there is no run.
        Raises UserError if a process that is alive owns the run, or the folder is not a run's."""
        self.check_free(restart=True)
        if not self.path.is_dir() or not any(self.path.iterdir()):
            return None
        owner = RunOwner(self.path)
        try:
            return self.path.rename(self.path.with_name(f"{self.path.name}.{time.strftime('%Y%m%d-%H%M%S')}"))
        finally:
            owner.release()

    def exported(self, step: int) -> Path:
        """Return the path of the exported Hugging Face folder of a step; it exists after the first export."""
        return self.path / "exports" / f"step_{step:06d}"

    def rollouts(self, step: int) -> Path:
        return self.path / "rollouts" / f"step_{step:06d}.jsonl.gz"

    def answers(self, step: int) -> Path:
        """Answers of the evaluation after a step."""
        return self.path / "evaluations" / f"step_{step:06d}.jsonl.gz"

    def check_logs(self, offsets: LogOffsets) -> None:
        """Read the logs. Raises UserError when they are not what they were there, apart from what came later."""
        for path in (self.metrics, self.tasks, self.log):
            if path.is_symlink() or (path.exists() and not path.is_file()):
                raise UserError(f"{path} is a link or no file, and a run writes none but its own: put the file there.")
        offsets.metrics.check(self.metrics)
        offsets.tasks.check(self.tasks)

    def set_aside_after(self, step: int, offsets: LogOffsets, checkpoints: Sequence[Path]) -> Path | None:
        """Move what later steps wrote, with their ``checkpoints``, into a folder of their own and return it. None if
        there is nothing. Drafts go, and TensorBoard's files, which are made again from the metrics."""
        aside = self.path / "passed_over" / time.strftime("%Y%m%d-%H%M%S")
        while aside.exists():
            aside = aside.with_name(f"{aside.name}+")
        aside.mkdir(parents=True)
        offsets.metrics.truncate(self.metrics, aside / self.metrics.name)
        offsets.tasks.truncate(self.tasks, aside / self.tasks.name)
        for last in (self.rollouts(step), self.answers(step)):
            for path in last.parent.glob("*.gz"):
                if path.name.startswith("."):
                    path.unlink()
                # A run that continues from step 0 seeds its buffer again.
                elif path.name > last.name or step == 0:
                    _move(path, aside / last.parent.name)
        for path in checkpoints:
            _move(path, aside / self.checkpoints.name)
        if self.tensorboard.exists():
            shutil.rmtree(self.tensorboard)
        if any(aside.iterdir()):
            return aside
        aside.rmdir()
        return None

    def rewrite_config(self, config: Config) -> None:
        """Replace ``config.yaml`` by one rename, with the commands so far and this one: the run continues with other
        options."""
        before = self.config.read_text(encoding="utf-8")
        commands = [line for line in before.splitlines(keepends=True) if line.startswith("# ")]
        with atomic_write(self.config) as staging:
            write_config(config, staging, "".join([*commands, command_comment()]))


@dataclass(frozen=True, slots=True)
class PromptForm:
    """Template of prompts and ends of responses, kept for whoever uses the model: config and tokenizer files do
    not tell it."""

    template: str | None
    """Text of the Jinja chat template; None where prompts have none."""
    stops: Stops

    @classmethod
    def read(cls, path: Path) -> PromptForm | None:
        """Read a file; None when there is none. Raises UserError when it holds something else."""
        try:
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error!r}): remove it to use the model's template.") from error

    def keep(self, path: Path) -> None:
        """Write it for a new run, whole or not at all: that may be killed meanwhile. For a resumed one, `check` it."""
        self.check(path)
        if not path.exists():
            with atomic_write(path) as staging:
                staging.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    def check(self, path: Path) -> None:
        """Raise UserError when the run of this file began with another template or other stops."""
        before = PromptForm.read(path)
        if before is not None and before != self:
            what = "chat template" if before.template != self.template else "list of end tokens"
            raise UserError(
                f"The {what} of this run has changed, though model.template is the same: restore the old one from "
                f"{path.name} in the run directory, or start another run."
            )


def write_config(config: Config, path: Path, comments: str = "") -> None:
    """Write a config as `azr run` reads it, below these lines."""
    tree = yaml.safe_dump(to_tree(config), sort_keys=False, allow_unicode=True)
    path.write_text(comments + tree, encoding="utf-8")


def command_comment() -> str:
    """Return time, version and command line of this process as a line of YAML that says nothing."""
    command = shlex.join([Path(sys.argv[0]).name.replace("__main__.py", "azr"), *sys.argv[1:]])
    return f"# {time.strftime('%Y-%m-%d %H:%M')}, azr {code_version()}: {ascii(command)[1:-1]}\n"


def _move(path: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    path.rename(folder / path.name)


class RunOwner:
    """Ownership of a run directory by this process; it ends with `release`, or with the process.

    The lock is on the folder, so it goes along when the folder is renamed, and a copy of the folder has none. Network
    disks lock files alone: there it is on `OWNER_FILE`, which otherwise only names the owner to others.
    """

    def __init__(self, run: Path) -> None:
        """Raises UserError, which names the owner, if another process owns the run."""
        self._locks: list[int] = []
        try:
            folder = os.open(run, os.O_RDONLY | os.O_DIRECTORY)
            self._locks.append(folder)
            file = os.open(run / OWNER_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
            self._locks.append(file)
            if not (_lock(folder) and _lock(file)):
                owner = os.read(file, 1000).decode(errors="replace").strip() or "another process"
                raise UserError(f"{run} is in use by {owner}: wait for its end, or stop it first.")
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            os.ftruncate(file, 0)
            os.write(file, f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode())
        except OSError as error:
            self.release()
            raise UserError(f"{run} cannot be written ({error.strerror}), so its run cannot continue there.") from error
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """Let other processes have the run. May be called again."""
        while self._locks:
            os.close(self._locks.pop())


def _lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Return False if another process has the lock; True with it, or where the file system has none."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    return True


def is_owned(run: Path) -> bool:
    """Return whether a process runs it; see `RunOwner`."""
    try:
        with open_regular(run / OWNER_FILE) as file:
            return not _lock(file.fileno(), fcntl.LOCK_SH)
    except OSError:  # nobody has run it
        return False
