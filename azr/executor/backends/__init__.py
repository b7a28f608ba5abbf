"""Isolation backends: what is put around a zygote before it starts. A new one is one entry in ``BACKENDS``.

Behind every backend the zygote seals its children alike (limits, user, empty root, system call filter) and tests the
seal before it serves. A backend adds what only its launcher can give.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from azr.config import ExecutorConfig
from azr.errors import UserError
from azr.executor.backends import bubblewrap, process
from azr.executor.backends.sandbox import BackendUnavailable, Launcher

Prepare = Callable[[ExecutorConfig], tuple[Launcher, str]]
"""Tries a backend: its launcher, and what it offers in words. Raises BackendUnavailable, with the remedy. May take a
minute."""

BACKENDS: dict[str, Prepare] = {
    # Its client costs a third of a second to import, which other backends need not pay.
    "docker": lambda config: import_module("azr.executor.backends.docker").prepare(config),
    "bubblewrap": bubblewrap.prepare,
    "namespace": process.prepare_namespace,
}
"""Strongest first."""


def select_backend(config: ExecutorConfig) -> tuple[Launcher, str]:
    """The strongest backend that works here, of those that the config allows, and one line: its name, what it offers,
    why no stronger one. Who names a container runtime wants containers.

    Blocks; the first use builds an image. Raises UserError when none works.
    """
    skipped: list[str] = []
    wanted = "docker" if config.backend == "auto" and config.docker_runtime is not None else config.backend
    for name in BACKENDS if wanted == "auto" else (wanted,):
        try:
            launcher, description = BACKENDS[name](config)
        except BackendUnavailable as error:
            skipped.append(f"{name} does not work here: {error}")
        else:
            return launcher, "; ".join([f"{name}: {description}", *skipped])
    raise UserError(f"executor.backend: {'; '.join(skipped)}.")


def report(config: ExecutorConfig) -> list[tuple[str, bool, str]]:
    """Each backend, strongest first: its name, whether it works here, and what it offers or what to do. Blocks."""
    rows = []
    for name, prepare in BACKENDS.items():
        try:
            rows.append((name, True, prepare(config)[1]))
        except BackendUnavailable as error:
            rows.append((name, False, str(error)))
    return rows
