"""Backends: what is put around a zygote before it starts.

Behind every backend the zygote seals its children alike (limits, user, empty root, seccomp filter) and tries
the walls out before it serves. A backend adds what only its launcher can give. A new one is one entry below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from azr.config import ExecutorConfig
from azr.executor import bubblewrap, namespace
from azr.executor.sandbox import Launcher, UnusableError

Prepare = Callable[[ExecutorConfig], tuple[Launcher, str]]
"""Try a backend out; its launcher and what it offers. Raises UnusableError, with the remedy. May take a minute."""


def _docker(config: ExecutorConfig) -> tuple[Launcher, str]:
    # Its client costs a third of a second to import, which other backends need not pay.
    from azr.executor import container

    return container.prepare(config)


BACKENDS: dict[str, Prepare] = {
    "docker": _docker,
    "bubblewrap": bubblewrap.prepare,
    "namespace": namespace.prepare,
}
"""Strongest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Walls:
    """The backend that was chosen."""

    name: str
    launcher: Launcher
    reason: str
    """One line: which backend, what it offers, and why no stronger one."""


def choose(config: ExecutorConfig) -> Walls:
    """The configured backend, or the strongest that works here for ``auto``. Blocks; the first use builds an image.

    Raises ValueError when the named backend does not work on this machine.
    """
    passed_over: list[str] = []
    for name in BACKENDS if config.backend == "auto" else (config.backend,):
        try:
            launcher, offers = BACKENDS[name](config)
        except UnusableError as problem:
            passed_over.append(f"{name} does not work here: {problem}")
        else:
            return Walls(name=name, launcher=launcher, reason="; ".join([f"{name}: {offers}", *passed_over]))
    raise ValueError(f"executor.backend: {'; '.join(passed_over)}.")


def report(config: ExecutorConfig) -> list[tuple[str, bool, str]]:
    """Each backend, strongest first: its name, whether it works here, and what it offers or what to do. Blocks."""
    return [(name, *_verdict(prepare, config)) for name, prepare in BACKENDS.items()]


def _verdict(prepare: Prepare, config: ExecutorConfig) -> tuple[bool, str]:
    try:
        _, offers = prepare(config)
    except UnusableError as problem:
        return False, str(problem)
    return True, offers
