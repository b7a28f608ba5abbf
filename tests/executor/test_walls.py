from __future__ import annotations

import pytest

from azr.config import ExecutorConfig
from azr.executor import walls
from azr.executor.pool import SandboxPool
from tests.executor.conftest import call, usable_backends, zygotes

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("backend", usable_backends())
async def test_every_backend_runs_programs_here(backend):
    async with SandboxPool(ExecutorConfig(backend=backend, workers=1, repeats=1)) as pool:
        assert (await call(pool, "def f(x): return x * 2", "'a'")).value == "'aa'"
        parent = int((await call(pool, "import posix\ndef f(): return posix.getppid()", screen=False)).value)
        # In a process namespace of its own, the program's parent has another number than out here.
        assert (parent in zygotes(pool)) == (backend == "process")


async def test_auto_takes_the_first_that_works_and_says_why(monkeypatch):
    assert walls.choose("auto").name == usable_backends()[0]
    missing = walls.Backend(offers="nothing", prefix=lambda: ("no-such-launcher",))
    failing = walls.Backend(offers="nothing", prefix=lambda: ("sh", "-c", "echo not permitted >&2; exit 1"))
    monkeypatch.setattr(walls, "BACKENDS", {"a": missing, "b": failing, "process": walls.BACKENDS["process"]})
    chosen = walls.choose("auto")
    assert chosen.name == "process"
    assert chosen.reason == (
        "process: a plain process; a does not work here (no-such-launcher is not installed); "
        "b does not work here (not permitted)"
    )
    with pytest.raises(ValueError, match=r"executor\.backend: b does not work here \(not permitted\)"):
        walls.choose("b")
