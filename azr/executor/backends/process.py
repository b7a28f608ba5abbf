"""Zygotes as processes of this machine, behind a command that isolates them; `namespace` is the weakest backend."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from azr.config import ExecutorConfig
from azr.executor.backends.sandbox import OPTIONS, ROOT, ZYGOTE, BackendUnavailable, LaunchError, require_filter

_PROBE_S = 20.0
_NAMESPACES = ("--net", "--ipc", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child")
_FILTER = "limits and a system call filter"
_FIRST_VICTIM = ("/bin/sh", "-c", 'echo 1000 >/proc/self/oom_score_adj && exec "$0" "$@"')
"""Becomes the command that follows. When the machine runs out of memory the kernel ends its processes before any other;
they inherit that."""
_SETPRIV = shutil.which("setpriv")


class ProcessSandbox:
    """A zygote that leads a session of its own, with the command in front of it."""

    multiplexed = False

    def __init__(self, process: asyncio.subprocess.Process, end: socket.socket, *, fronted: bool) -> None:
        self._process = process
        self._fronted = fronted
        self.socket = end

    def kill(self) -> None:
        if self._process.returncode is not None:
            return
        # The command in front ends once it has seen the zygote end, so that its own end says nothing is left.
        pid = self._process.pid
        children, behind = Path(f"/proc/{pid}/task/{pid}/children"), ""
        if self._fronted:
            with contextlib.suppress(OSError):  # it has ended, or this process has too many files open to look
                behind = children.read_text(encoding="ascii")
        for process in [int(number) for number in behind.split()] or [pid]:
            # It may have ended without the event loop having heard of it yet.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    async def wait(self) -> None:
        await self._process.wait()


class ProcessLauncher:
    """Runs ``prefix interpreter OPTIONS zygote``, with paths from the root: the environment names no folders."""

    def __init__(self, prefix: tuple[str, ...], interpreter: str) -> None:
        self.prefix = prefix
        # A zygote ends when its input ends. The kernel's signal also ends one that looks at no input.
        with_parent = (_SETPRIV, "--pdeathsig", "KILL") if _SETPRIV else ()
        self._command = (*_FIRST_VICTIM, *with_parent, *prefix, interpreter, *OPTIONS, str(ROOT / ZYGOTE))
        self._name = prefix[0] if prefix else interpreter

    async def launch(self, hash_seed: int) -> ProcessSandbox:
        ours: socket.socket | None = None
        try:
            ours, theirs = socket.socketpair()
            ours.setblocking(False)
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    env=_environment(hash_seed),
                    cwd="/",
                    start_new_session=True,
                )
        except OSError as error:
            if ours is not None:
                ours.close()
            raise LaunchError(f"no process could be started ({error.strerror})") from error
        return ProcessSandbox(process, ours, fronted=bool(self.prefix))

    async def close(self) -> None:
        """Nothing is shared."""

    def probe(self) -> None:
        """Start a zygote that has nothing to do. Raises BackendUnavailable with what it printed."""
        require_filter(platform.machine())
        try:
            run = subprocess.run(
                self._command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                env=_environment(0),
                cwd="/",
                timeout=_PROBE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise BackendUnavailable(f"{self._name} gave no answer in {_PROBE_S:g} s") from error
        if run.returncode:
            said = run.stderr.decode(errors="replace").strip().splitlines()
            raise BackendUnavailable(said[-1] if said else f"{self._name} exited with code {run.returncode}")


def path_of(name: str, package: str) -> str:
    """Return a command's absolute path. Raises BackendUnavailable if it is not installed."""
    path = shutil.which(name)
    if path is None:
        raise BackendUnavailable(f"{name} is not installed: install {package}")
    return os.path.abspath(path)


def _environment(hash_seed: int) -> dict[str, str]:
    return {"PYTHONHASHSEED": str(hash_seed), "PYTHONUTF8": "1"}


def prepare_namespace(config: ExecutorConfig) -> tuple[ProcessLauncher, str]:
    """Namespaces where this machine permits them, a plain process where it does not.

    Raises BackendUnavailable when not even a plain process can be a zygote.
    """
    root = os.geteuid() == 0
    user = () if root else ("--user", "--map-root-user")
    own = "a user of its own and an empty root folder, limits and a system call filter"
    try:
        behind = ProcessLauncher((path_of("unshare", "util-linux"), *user, *_NAMESPACES), sys.executable)
        behind.probe()
    except BackendUnavailable as problem:
        plain = ProcessLauncher((), sys.executable)
        plain.probe()
        return plain, f"a plain process with {own if root else _FILTER}, because namespaces are refused ({problem})"
    return behind, f"network, process, mount and IPC namespaces, {own if root else 'an empty root folder, ' + _FILTER}"
