from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest_asyncio

from azr.config import ExecutorConfig
from azr.executor import walls
from azr.executor.pool import SandboxPool
from azr.records import CallResult, ExecutionRequest

# Only calls that are meant to run out of time get little of it, so that a busy machine changes no verdict.
CONFIG = ExecutorConfig(workers=3, wall_s=30.0, memory_mb=128)
HASTY = ExecutorConfig(workers=2, wall_s=0.5, memory_mb=128)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pool():
    async with SandboxPool(CONFIG) as pool:
        yield pool


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def hasty():
    async with SandboxPool(HASTY) as pool:
        yield pool


async def call(pool: SandboxPool, program: str, inputs: str = "", *, screen: bool = True) -> CallResult:
    """The outcome of one call."""
    result = await pool.execute(ExecutionRequest(program=program, inputs=(inputs,), screen=screen))
    (output,) = result.outputs
    return output


def descendants(process: int) -> set[int]:
    """Process ids below a process, at any depth."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(stat.parent.name)] = int(text.rpartition(")")[2].split()[1])
    below, frontier = set(), {process}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier}
        below |= frontier
    return below


def sandboxes(roots: set[int]) -> set[int]:
    """Sandbox interpreters among some processes and what is below them."""
    candidates = roots.union(*map(descendants, roots))
    return {process for process in candidates if _is_sandbox(process)}


def zygotes(pool: SandboxPool) -> list[int]:
    """Process ids of an idle pool's interpreters, whatever command was put in front of them."""
    return sorted(sandboxes({slot.connection._process.pid for slot in pool._slots.slots}))


def _is_sandbox(process: int) -> bool:
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return command[0] == sys.executable.encode() and any(word.endswith(b"executor/worker.py") for word in command)


def usable_backends() -> list[str]:
    """Backends that this machine allows; a container may forbid namespaces, so not every machine has them all."""
    return [name for name, backend in walls.BACKENDS.items() if walls._problem(backend.prefix()) is None]


def alive(processes: set[int]) -> set[int]:
    return {process for process in processes if os.path.exists(f"/proc/{process}")}
