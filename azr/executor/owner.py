"""Who a sandbox container belongs to, and whether that process still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def label() -> str:
    """Host, boot, process namespace, process and its start time: no two processes ever share it."""
    return " ".join((*_place(), str(os.getpid()), _started(os.getpid())))


def is_gone(owner: str) -> bool:
    """Whether the process with this label has certainly ended; false for one that cannot be seen from here."""
    *place, process, started = owner.split(" ")
    host, boot, namespace = _place()
    if place[0] != host:
        return False
    if place[1] != boot:
        return True
    return place[2] == namespace and _started(int(process)) != started


def _place() -> tuple[str, str, str]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return socket.gethostname(), boot, os.readlink("/proc/self/ns/pid")


def _started(process: int) -> str:
    """Start time in clock ticks since boot; empty when there is no such process."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return stat.rpartition(")")[2].split()[19]
