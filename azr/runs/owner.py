"""One owner per run directory: a second process that would write into a run is refused."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import msgspec

from azr.errors import UserError

FILE = "owner.json"
HEARTBEAT_S = 15.0
"""Seconds between two signs of life of an owner."""
STALE_S = 90.0
"""An owner on another machine without a sign of life for so long is gone."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)
"""Errors of file systems that have no locks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The process that owns a run.

    Example: ``{"host": "node7", "boot": "3f…", "pid": 4711, "started": 123456, "since": "2026-11-26 10:00:00"}``
    """

    host: str
    boot: str
    """Id of the machine's boot, which tells machines and their restarts apart."""
    pid: int
    started: int
    """Start time of the process in clock ticks since boot, which tells a process from a later one with its pid."""
    since: str
    """Local time."""

    @classmethod
    def here(cls) -> Self:
        started = _started(os.getpid())
        assert started is not None, "/proc does not know this process"
        since = time.strftime("%Y-%m-%d %H:%M:%S")
        return cls(host=socket.gethostname(), boot=_boot(), pid=os.getpid(), started=started, since=since)


class RunOwner:
    """Ownership of a run directory by this process; it ends with `release`, or with the process.

    A lock of the operating system decides wherever there is one, so a crash leaves nothing behind. For network disks
    whose locks do not reach other machines, the owner also touches its file every `HEARTBEAT_S` seconds.
    """

    def __init__(self, run: Path) -> None:
        """Raises UserError, which names the owner, if a process that is alive owns the run."""
        self._path = run / FILE
        # Without buffering, and unlike "w" this leaves the content of another owner alone.
        try:
            self._file = self._path.open("a+b", buffering=0)
        except OSError as error:
            raise UserError(f"{run} cannot be written ({error.strerror}), so its run cannot go on there.") from error
        try:
            has_lock = self._lock()
            owner, age_s = self._read()
            if owner is not None and _is_alive(owner, age_s, has_lock):
                raise UserError(
                    f"{run} is in use by process {owner.pid} on {owner.host} since {owner.since}: wait for its end, "
                    "or stop it first."
                )
            if owner is None and not has_lock:
                raise UserError(f"{run} belongs to another process that is alive: wait until it ends, or stop it.")
            self._file.truncate(0)
            self._file.write(json.dumps(asdict(Owner.here())).encode() + b"\n")
        except BaseException:
            self._file.close()
            raise
        self._released = threading.Event()
        threading.Thread(target=self._show_life, name="run owner", daemon=True).start()

    def _lock(self) -> bool:
        """Whether this process has the lock, or the file system has none."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        return True

    def _read(self) -> tuple[Owner | None, float]:
        """Return the last owner, None if it released the run, and the seconds since its last sign of life."""
        before = os.fstat(self._file.fileno()).st_mtime
        probe = self._path.with_name(f".{FILE}.{os.getpid()}")
        probe.touch()  # so that the disk's clock counts, not this machine's
        age_s = probe.stat().st_mtime - before
        probe.unlink()
        self._file.seek(0)
        try:
            return msgspec.json.decode(self._file.read(), type=Owner), age_s
        except msgspec.DecodeError:
            return None, age_s

    def _show_life(self) -> None:
        while not self._released.wait(HEARTBEAT_S):
            os.utime(self._file.fileno())

    def release(self) -> None:
        """Let other processes have the run. May be called again."""
        if not self._file.closed:
            self._released.set()
            self._file.truncate(0)
            self._file.close()


def _is_alive(owner: Owner, age_s: float, has_lock: bool) -> bool:
    if owner.boot == _boot():
        return not has_lock or (_started(owner.pid) == owner.started and owner.pid != os.getpid())
    return not has_lock or age_s < STALE_S


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _started(pid: int) -> int | None:
    try:
        # The name, in brackets, may hold blanks.
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None
