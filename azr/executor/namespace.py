"""The weakest backend: what a bare Linux machine offers. Behind it the zygote's own walls stand all the same."""

from __future__ import annotations

import os
import sys

from azr.config import ExecutorConfig
from azr.executor.process import ProcessLauncher
from azr.executor.sandbox import UnusableError

_NAMESPACES = ("--net", "--ipc", "--pid", "--fork", "--kill-child")


def prepare(config: ExecutorConfig) -> tuple[ProcessLauncher, str]:
    """Namespaces where this machine permits them, a plain process where it does not.

    Raises UnusableError when not even a plain process can be a zygote.
    """
    root = os.geteuid() == 0
    user = () if root else ("--user", "--map-root-user")
    own = "a user of its own and an empty root folder, limits and a system call filter"
    behind = ProcessLauncher(("unshare", *user, *_NAMESPACES), sys.executable)
    try:
        behind.probe()
    except UnusableError as problem:
        plain = ProcessLauncher((), sys.executable)
        plain.probe()
        return plain, f"a plain process with {own if root else _FILTER}, because namespaces are refused ({problem})"
    return behind, f"network, process and IPC namespaces, {own if root else 'an empty root folder, ' + _FILTER}"


_FILTER = "limits and a system call filter"
