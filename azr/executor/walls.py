"""Backends: what is put around a zygote before it starts, as a command in front of its own.

Behind every backend the zygote seals its children alike (limits, user, empty root, seccomp filter) and tries
the walls out before it serves. A backend adds what only its launcher can give. A new one is one entry below.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

_PROBE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One way to launch a zygote."""

    offers: str
    """What it puts around the program, for the log."""
    prefix: Callable[[], tuple[str, ...]]
    """Command line in front of the zygote's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """The backend that was chosen."""

    name: str
    prefix: tuple[str, ...]
    reason: str
    """One line: which backend, what it offers, and why no stronger one."""


def _namespace_prefix() -> tuple[str, ...]:
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return ("unshare", *user, "--net", "--ipc", "--pid", "--fork", "--kill-child")


BACKENDS: dict[str, Backend] = {
    "namespace": Backend(offers="network, process and IPC namespaces of its own", prefix=_namespace_prefix),
    "process": Backend(offers="a plain process", prefix=tuple),
}
"""Strongest first."""


def choose(name: str) -> Walls:
    """The named backend, or the strongest that works here for ``auto``.

    Raises ValueError when the named backend does not work on this machine.
    """
    passed_over: list[str] = []
    for candidate in BACKENDS if name == "auto" else (name,):
        backend = BACKENDS[candidate]
        prefix = backend.prefix()
        problem = _problem(prefix)
        if problem is None:
            reason = "; ".join([f"{candidate}: {backend.offers}", *passed_over])
            return Walls(name=candidate, prefix=prefix, reason=reason)
        passed_over.append(f"{candidate} does not work here ({problem})")
    raise ValueError(f"executor.backend: {'; '.join(passed_over)}; choose another backend or auto.")


def _problem(prefix: tuple[str, ...]) -> str | None:
    """Why a command behind this prefix cannot run here; None when it can."""
    try:
        run = subprocess.run([*prefix, "true"], capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except FileNotFoundError as error:
        return f"{error.filename} is not installed"
    except subprocess.TimeoutExpired:
        return f"no answer in {_PROBE_S:g} s"
    return None if run.returncode == 0 else run.stderr.strip() or f"exit code {run.returncode}"
