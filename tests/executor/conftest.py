import asyncio
import contextlib
import functools
import importlib
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import docker
import psutil
import pytest
import pytest_asyncio

from azr.config import ExecutorConfig
from azr.execution import CallResult, ExecutionRequest, ExecutionResult
from azr.executor import backends
from azr.executor.backends.process import ProcessSandbox
from azr.executor.backends.sandbox import Sandbox
from azr.executor.pool import SandboxPool

# Only calls that are meant to run out of time get little of it, so that a busy machine changes no verdict.
CONFIG = ExecutorConfig(workers=3, wall_s=30.0, memory_mb=128)
ROOT = Path(__file__).parents[2]
T = TypeVar("T")
HASTY = ExecutorConfig(workers=2, wall_s=0.5, memory_mb=128)


WALL = os.environ.get("AZR_TEST_BACKEND", "namespace")
"""The backend that the short form tries; the long form tries all."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the short form one backend of each test, and of the attacks every fifth with the first of each family."""
    families: set[str] = set()
    for item in items:
        parameters = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
        attack = parameters.get("attack")
        skips = attack is not None and attack.family in families and item.callspec.indices["attack"] % 5 != 0
        if skips or parameters.get("backend", WALL) != WALL:
            item.add_marker(pytest.mark.long)
        elif attack is not None:
            families.add(attack.family)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def pool():
    async with SandboxPool(CONFIG) as pool:
        yield pool


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def hasty():
    async with SandboxPool(HASTY) as pool:
        yield pool


@pytest.fixture(scope="session", params=list(backends.BACKENDS))
def backend(request) -> str:
    """Every backend in turn; skipped where this machine lacks it, but never in continuous integration."""
    require(request.param)
    return request.param


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def walled(backend):
    """A patient pool behind each backend."""
    async with SandboxPool(replace(CONFIG, backend=backend)) as pool:
        yield pool


def require(backend: str) -> None:
    """Skip what needs a backend that this machine lacks."""
    if backend not in usable_backends():
        pytest.skip(next(detail for name, _, detail in _report() if name == backend))


def usable_backends() -> list[str]:
    """Backends that this machine allows. In continuous integration all of them: what is missing there is a failure.

    Docker is one of them only where it is the backend to be tried, for an engine takes a machine's owner.
    """
    if os.environ.get("CI") == "true":
        return [name for name in backends.BACKENDS if name != "docker" or WALL == "docker"]
    return [name for name, works, _ in _report() if works]


@functools.cache
def _report() -> list[tuple[str, bool, str]]:
    return backends.report(CONFIG)


async def call(pool: SandboxPool, program: str, inputs: str = "", *, static_check: bool = True) -> CallResult:
    """The outcome of one call."""
    result = await pool.execute(ExecutionRequest(program=program, inputs=(inputs,), static_check=static_check))
    (output,) = result.outputs
    return output


async def execute_many(pool: SandboxPool, requests: Iterable[ExecutionRequest]) -> list[ExecutionResult]:
    """Results in the order of the requests, which run side by side."""
    return list(await asyncio.gather(*map(pool.execute, requests)))


def descendants(process: int) -> set[int]:
    """Process ids below a process, at any depth."""
    try:
        return {child.pid for child in psutil.Process(process).children(recursive=True)}
    except psutil.NoSuchProcess:
        return set()


async def look_at_a_child(pool: SandboxPool, zygote: int, look: Callable[[int], T | None], mark: int = 0) -> T:
    """The first that `look` finds at the process of a program that a zygote runs; other marks are other programs."""
    for seconds in (1, 5, 25):  # longer where a busy machine came too late
        program = f"def f():\n    for _ in range({seconds * 20_000_000}): pass\n    return {mark}"
        running, found = asyncio.ensure_future(call(pool, program)), None
        while found is None and not running.done():
            for child in descendants(zygote):
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end meanwhile
                    if (found := look(child)) is not None:
                        break
            await asyncio.sleep(0.005)
        assert (await running).value == str(mark)
        if found is not None:
            return found
    raise AssertionError("no look at a child in time")


def sandboxes(roots: set[int]) -> set[int]:
    """Sandbox interpreters that belong to some processes or to what is below them: down there, or in containers."""
    candidates = roots.union(*map(descendants, roots))
    return {process for process in candidates if _is_sandbox(process)} | _contained(candidates)


def zygotes(pool: SandboxPool) -> list[int]:
    """Process ids of a pool's interpreters, whatever is around them."""
    connections = [slot.connection for slot in pool._scheduler.slots]
    return sorted(_zygote(connection._sandbox) for connection in connections if connection is not None)


def _zygote(sandbox: Sandbox) -> int:
    if isinstance(sandbox, ProcessSandbox):
        leader = sandbox._process.pid
        found = {process for process in {leader} | descendants(leader) if _is_sandbox(process)}
        # A program that runs, or has just ended, is a fork of its zygote and looks the same.
        (process,) = (process for process in found if _parent(process) not in found)
        return process
    process = sandbox._launcher._client.inspect_container(sandbox.container_id)["State"]["Pid"]
    assert process > 1, "a container that is not running has no process, and 0 would address the whole group"
    return process


def _parent(process: int) -> int:
    """Its own id of a process that is gone."""
    try:
        return psutil.Process(process).ppid()
    except psutil.NoSuchProcess:
        return process


def _contained(owners: set[int]) -> set[int]:
    """First processes, as this machine numbers them, of the running containers that belong to some processes."""
    if "docker" not in usable_backends():
        return set()
    client = docker.APIClient()
    found = set()
    for container in client.containers(filters={"label": "azr.executor=1"}):
        if int(container["Labels"]["azr.owner"].split(" ")[3]) in owners:
            # One that ends meanwhile is none any more.
            with contextlib.suppress(docker.errors.NotFound):
                found.add(client.inspect_container(container["Id"])["State"]["Pid"])
    client.close()
    return found - {0}


def _is_sandbox(process: int) -> bool:
    try:
        command = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return False
    is_python = os.path.basename(command[0]).startswith(b"python")
    return is_python and any(word.endswith(b"executor/zygote.py") for word in command)


def alive(processes: set[int]) -> set[int]:
    return {process for process in processes if os.path.exists(f"/proc/{process}")}


def copy_package(folder: Path, *others: str) -> None:
    """Copy this package, what its config needs, and others, for users who cannot read where they are installed."""
    folder.chmod(0o755)
    shutil.copytree(ROOT / "azr", folder / "azr", ignore=shutil.ignore_patterns("__pycache__"))
    needed = ("msgspec", "pydantic", "pydantic_core", "annotated_types", "typing_inspection", "typing_extensions")
    for name in (*needed, *others):
        source = Path(str(importlib.import_module(name).__file__))
        if source.name == "__init__.py":
            shutil.copytree(source.parent, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder)
