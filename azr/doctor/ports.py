"""Ports that `ray start --head` wants. A run that starts a cluster of its own takes free ones, so none is required."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Callable, Collection
from pathlib import Path

from azr.doctor.findings import Finding, Section, ok, warning

HEAD = 6379
_PORTS = {
    HEAD: ("head", "--port"),
    8265: ("dashboard", "--dashboard-port"),
    10001: ("clients", "--ray-client-server-port"),
}
_GCS_PORT = re.compile(rb"--gcs_server_port=(\d+)")


def is_free(port: int) -> bool:
    """Whether nothing listens there, at whichever address of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return False
    return True


def heads(proc: Path = Path("/proc")) -> set[int]:
    """Ports of the Ray clusters whose head runs here, of those that were started with a port of the user's choice."""
    found: set[int] = set()
    for process in proc.glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() == "gcs_server":
                found.update(int(port) for port in _GCS_PORT.findall((process / "cmdline").read_bytes()))
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended meanwhile, or is hidden from us
    return found - {0}


def check(clusters: Collection[int], free: Callable[[int], bool] = is_free) -> Section:
    """`clusters`: ports of the Ray heads of this machine."""
    return Section(title="Ports of a Ray head", findings=[_port(port, clusters, free(port)) for port in _PORTS])


def _port(port: int, clusters: Collection[int], free: bool) -> Finding:
    purpose, option = _PORTS[port]
    name = f"{port} {purpose}"
    if port in clusters:
        return ok(name, "a Ray cluster answers: --cluster.address auto joins it, azr doctor --cluster auto looks at it")
    if free:
        return ok(name, "free")
    if clusters:
        return ok(name, "taken, as a Ray head runs here")
    return warning(name, f"taken by another program: ray start --head {option} PORT takes another one")
