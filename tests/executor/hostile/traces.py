"""What sandboxes could leave behind on this machine: taken before and after, and compared."""

import asyncio
import contextlib
import os
import time
from pathlib import Path

import docker

from azr.executor.backends.docker import is_stale, owner_id
from tests.executor.conftest import descendants

_PATIENCE_S = 15.0
_TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue")


def take(backend: str) -> set[str]:
    """Every process, container, mount, file and piece of shared memory that could be of sandboxes of a backend."""
    containers, others = _containers() if backend.startswith("docker") else (set[str](), set[str]())
    mounts = {f"mount {line.split()[4]}" for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    mounts = {one for one in mounts if backend.startswith("docker") or "/docker/" not in one}  # else other people's
    return {*_processes(), *containers, *mounts, *_files(), *_shared()} - others


async def left_since(before: set[str], backend: str) -> set[str]:
    """What is there now and was not ``before``. An end that was asked for may take a moment to be over."""
    left = take(backend) - before
    deadline = time.monotonic() + _PATIENCE_S
    while left and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
        # Others who use the machine come and go; what is ours would be there all the time.
        left &= take(backend)
    return left


def _processes() -> set[str]:
    return {f"process {number}" for number in descendants(os.getpid())}


def _containers() -> tuple[set[str], set[str]]:
    """All of them, whatever their labels, dead ones too; and those of other living processes, with their mounts."""
    found, others = set(), set()
    client = docker.APIClient()
    for container in client.containers(all=True):
        owner = container["Labels"].get("azr.owner", owner_id())
        traces = {f"container {container['Id']}"}
        found |= traces
        if owner != owner_id() and not is_stale(owner):
            with contextlib.suppress(docker.errors.NotFound):
                state = client.inspect_container(container["Id"])
                folders = (state["GraphDriver"]["Data"]["MergedDir"], state["NetworkSettings"]["SandboxKey"])
                traces |= {f"mount {os.path.realpath(folder)}" for folder in folders}
            others |= traces
    client.close()
    return found, others


def _files() -> set[str]:
    folders = [folder for folder in _TEMPORARY if os.path.isdir(folder)]
    return {f"file {folder}/{name}" for folder in folders for name in os.listdir(folder) if "azr" in name.lower()}


def _shared() -> set[str]:
    kinds = ("shm", "sem", "msg")
    rows = {kind: Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:] for kind in kinds}
    return {f"{kind} {row.split()[1]}" for kind in kinds for row in rows[kind]}
