from __future__ import annotations

import os
import subprocess
import sys

import pytest
import ray

from azr.config import ExecutorConfig
from azr.executor.actor import ExecutorPool
from azr.records import CallStatus, ExecutionRequest


@pytest.fixture
def cluster():
    started = not ray.is_initialized()
    if started:
        ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    yield
    if started:
        ray.shutdown()


def test_the_pool_as_a_ray_actor(cluster):
    actor = ExecutorPool.remote(ExecutorConfig(workers=2, repeats=2))
    request = ExecutionRequest(program="def f(x): return x + 1", inputs=("1", "'a'"), repeats=2)
    result = ray.get(actor.execute.remote(request), timeout=60)
    assert [o.status for o in result.outputs] == [CallStatus.OK, CallStatus.RAISED]
    assert result.outputs[0].value == "2" and result.deterministic
    again, other = ray.get(
        actor.execute_many.remote([request, ExecutionRequest(program="def f(): return 1", inputs=("",))]), timeout=60
    )
    assert again.cached and other.ok
    stats = ray.get(actor.stats.remote())
    assert (stats.requests, stats.cache_hits, stats.calls) == (3, 2, {"ok": 2, "raised": 1})
    ray.get(actor.close.remote(), timeout=60)


def test_the_pool_itself_needs_no_ray():
    code = "import sys, azr.executor.pool; sys.exit(any(m in sys.modules for m in ('ray', 'torch', 'numpy')))"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.getcwd()})
