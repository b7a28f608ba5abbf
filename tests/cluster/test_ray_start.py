"""A Ray cluster is started, joined or left alone, and one that cannot be joined is one sentence."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest
import ray

from azr.cluster.placement import start_ray
from azr.config import ClusterConfig
from tests import tables

pytestmark = pytest.mark.long

JOIN = """
import asyncio, sys
from azr.cluster.placement import start_ray
from azr.config import ClusterConfig
asyncio.run(start_ray(ClusterConfig(address=sys.argv[1]), timeout_s=float(sys.argv[2])))
"""
HEAD = """
import sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


def join(address: str, timeout_s: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", JOIN, address, str(timeout_s)]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere.invalid:6379"])
def test_an_address_without_a_cluster_is_one_sentence(address: str) -> None:
    message = f"UserError: no Ray cluster answers at {address!r}: run `ray start --head` there first"
    assert message in join(address).stderr


def test_what_answers_but_is_no_cluster_is_one_sentence_in_time() -> None:
    class Refusing(BaseHTTPRequestHandler):
        def handle(self) -> None:
            self.rfile.read(1)
            self.wfile.write(b"HTTP/1.1 404 Not Found\r\n\r\n")

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"127.0.0.1:{server.server_port}"
        began = time.monotonic()
        said = join(address, timeout_s=5).stderr
        server.shutdown()
    assert time.monotonic() - began < 30, "it takes some seconds to load Ray"
    assert f"UserError: what listens at {address!r} does not take this process in" in said
    assert "(it was given 5 s, timeout.start_s)" in said and "gcs" not in said, said


def test_a_cluster_that_asks_for_another_token_is_one_sentence() -> None:
    def token(letter: str) -> dict[str, str]:
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": 32 * letter}

    command, pipe = [sys.executable, "-c", HEAD], subprocess.PIPE
    with subprocess.Popen(command, env=os.environ | token("a"), stdin=pipe, stdout=pipe, text=True) as head:
        address = head.stdout.readline().strip()
        assert (
            f"UserError: what listens at {address!r} does not take this process in: RAY_AUTH_MODE"
            in join(address, **token("b")).stderr
        )
        assert join(address, **token("a")).returncode == 0


def test_start_ray_starts_a_cluster_with_slots_to_spare() -> None:
    program = """
import asyncio, ray
from azr.cluster.placement import CPU_SLOTS, start_ray
from azr.config import ClusterConfig
asyncio.run(start_ray(ClusterConfig(), places=3))
assert ray.cluster_resources()["CPU"] == CPU_SLOTS
ray.shutdown()
asyncio.run(start_ray(ClusterConfig(), places=CPU_SLOTS + 1))
assert ray.cluster_resources()["CPU"] == CPU_SLOTS + 1
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


PROGRAMS = tables.programs(Path(__file__).with_name("programs.txt"), "ray")


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process with a Ray of its own, a busy actor and an idle one; it answers a line by the idle one's id."""
    home = os.environ | {"HOME": str(tmp_path)}
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", PROGRAMS["busy"]]
    process = subprocess.Popen(command, env=home, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def is_over(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_signal_to_the_group_reaches_no_daemon_of_ray(started: subprocess.Popen[str], tmp_path: Path) -> None:
    """Nor does Ray answer SIGTERM in this process; its token is for its user alone."""
    idle = started.stdout.readline().split()[1]
    family = psutil.Process(started.pid).children(recursive=True)
    assert all(os.getpgid(each.pid) != started.pid for each in family)
    assert (tmp_path / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600
    os.killpg(started.pid, signal.SIGWINCH)  # does no harm to who gets it
    started.stdin.write("\n")
    started.stdin.flush()
    assert started.stdout.readline().split() == [idle]
    os.killpg(started.pid, signal.SIGTERM)
    assert started.wait(10) == -signal.SIGTERM, "Ray would answer it with its own code"


def test_a_run_may_take_longer_than_three_seconds_to_end() -> None:
    process = subprocess.Popen([sys.executable, "-c", PROGRAMS["slow to end"]], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    process.terminate()
    assert process.wait(60) == 0, "Ray's handler of SIGTERM aborts the process after three seconds"


@pytest.mark.parametrize("struck", ["driver", "raylet"])
def test_actors_end_with_each_process_above_them(started: subprocess.Popen[str], struck: str) -> None:
    actors = [psutil.Process(int(pid)) for pid in started.stdout.readline().split()]
    raylet = actors[0].parent()
    assert raylet is not None and raylet.name() == "raylet"
    (psutil.Process(started.pid) if struck == "driver" else raylet).kill()
    deadline = time.monotonic() + 10
    while not all(map(is_over, actors)):
        assert time.monotonic() < deadline, [each for each in actors if not is_over(each)]
        time.sleep(0.1)


async def test_start_ray_leaves_a_running_cluster_alone(ray_cluster: None) -> None:
    before = ray.cluster_resources()["CPU"]
    await start_ray(ClusterConfig(), places=3 * int(before))
    assert ray.cluster_resources()["CPU"] == before
