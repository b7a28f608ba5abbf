"""The Docker backend against a real engine: what a container may do, when it ends, and why there is none."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import docker
import pytest
import pytest_asyncio

from azr.errors import UserError
from azr.executor import backends
from azr.executor.backends import docker as docker_backend
from azr.executor.backends import docker_image
from azr.executor.backends.sandbox import BackendUnavailable
from azr.executor.pool import SandboxPool
from tests import tables
from tests.executor.conftest import CONFIG, call, copy_package, require
from tests.executor.test_backends import ORDINARY

on_one_loop = pytest.mark.asyncio(loop_scope="session")
DOCKER = replace(CONFIG, backend="docker")


@pytest.fixture(scope="module")
def client():
    require("docker")
    client = docker_image.connect(None)
    yield client
    client.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def launched(client):
    """A container of the backend with a zygote that waits for its first message."""
    launcher, _ = await asyncio.to_thread(docker_backend.prepare, DOCKER)
    sandbox = await launcher.launch(hash_seed=7)
    yield sandbox
    sandbox.socket.close()
    await sandbox.wait()
    await launcher.close()


def _run_inside(client, container_id: str, program: str) -> tuple[int, str]:
    """Exit code and output of a program that nothing but the container holds."""
    command = client.exec_create(container_id, ["python3", "-c", program])["Id"]
    output = client.exec_start(command).decode()
    return client.exec_inspect(command)["ExitCode"], output


LOOK = tables.programs(Path(__file__).with_name("programs.txt"), "process")["what a container shows"]


def test_a_container_may_do_as_little_as_can_be_and_sees_a_read_only_world_without_network(client, launched):
    host = client.inspect_container(launched.container_id)["HostConfig"]
    memory = (CONFIG.memory_mb + 128) * 2**20
    assert (host["Memory"], host["MemorySwap"]) == (memory, memory)
    expected = {
        "NetworkMode": "none", "OomScoreAdj": 1000, "ReadonlyRootfs": True, "CapDrop": ["ALL"], "IpcMode": "none",
        "PidsLimit": 64,
    }  # fmt: skip
    assert {name: host[name] for name in expected} == expected
    assert host["SecurityOpt"] == ["no-new-privileges"] and host["LogConfig"]["Type"] == "none" and host["AutoRemove"]
    assert host["NanoCpus"] == min(2, os.cpu_count()) * 10**9
    code, output = _run_inside(client, launched.container_id, LOOK)
    assert code == 0, output
    assert json.loads(output) == {
        "writable": [], "links": ["lo"], "ids": [65534] * 3, "capabilities": 0, "no new privileges": "1",
        "hash seed": "7",
    }  # fmt: skip


def test_a_container_stops_bombs(client, launched):
    code, _ = _run_inside(client, launched.container_id, "bytearray(300 * 2**20)")
    assert code == 137
    forks = (
        "import os, time\nfor count in range(200):\n    try:\n        if os.fork() == 0: time.sleep(60)\n"
        "    except OSError: break\nprint(count, flush=True)\nos.killpg(0, 9)"
    )
    _, output = _run_inside(client, launched.container_id, forks)
    assert int(output) <= 64
    assert client.inspect_container(launched.container_id)["State"]["Running"]


def test_leftovers_of_dead_processes_alone_are_removed(client):
    program = "from azr.executor.backends.docker import owner_id; print(owner_id())"
    dead = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    gone = dead.communicate()[0].strip()
    host, boot, namespace, process, started = gone.split(" ")
    parent = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[19]
    owners = {
        gone: False,
        f"{host} another-boot {namespace} {process} {started}": False,
        f"{host} {boot} {namespace} {os.getppid()} {parent}": True,
        f"{host} {boot} {namespace} {os.getppid()} 1": False,
        f"another-host {boot} {namespace} {process} {started}": True,
        f"{host} {boot} pid:[1] {process} {started}": True,
        docker_backend.owner_id(): True,
    }
    tag = docker_image.ensure_image(client)
    made = {
        name: client.create_container(tag, labels={"azr.executor": "1", "azr.owner": name})["Id"] for name in owners
    }
    try:
        docker_backend.prepare(DOCKER)
        left = {found["Id"] for found in client.containers(all=True, filters={"label": "azr.executor=1"})}
        assert {name: container_id in left for name, container_id in made.items()} == owners
    finally:
        for container_id in made.values():
            with contextlib.suppress(docker.errors.NotFound):
                client.remove_container(container_id)


@on_one_loop
async def test_a_removal_that_the_engine_never_reports_holds_nobody_up(client, launched, monkeypatch):
    """An engine asked in the moment of the removal may stay silent: as silent as about a container that stays."""
    launcher, _ = await asyncio.to_thread(docker_backend.prepare, DOCKER)
    sandbox = await launcher.launch(hash_seed=1)
    asked, wait = [], launcher._client.wait

    def silent_at_first(container_id, **arguments):
        asked.append(container_id)
        return wait(launched.container_id if len(asked) == 1 else container_id, **arguments)

    monkeypatch.setattr(launcher._client, "wait", silent_at_first)
    sandbox.socket.close()
    await asyncio.wait_for(sandbox.wait(), 30)
    assert asked == [sandbox.container_id] * 2
    await launcher.close()


def test_the_image_is_named_after_what_is_in_it(client, monkeypatch, tmp_path):
    tag = docker_image.ensure_image(client)
    assert docker_image.ensure_image(client) == tag
    (tmp_path / "azr/executor").mkdir(parents=True)
    (tmp_path / "azr/executor/zygote.py").write_text("raise SystemExit(3)")
    monkeypatch.setattr(docker_image, "ROOT", tmp_path)
    monkeypatch.setattr(docker_image, "FILES", ("azr/executor/zygote.py",))
    other = docker_image.ensure_image(client)
    try:
        assert other != tag
        with pytest.raises(BackendUnavailable, match=f"the interpreter in {other} ended with code 3"):
            docker_backend.prepare(DOCKER)
    finally:
        client.remove_image(other)


def test_without_the_base_image_it_names_the_script_that_makes_one(client, monkeypatch, tmp_path):
    (tmp_path / "Dockerfile").write_text("ARG BASE=127.0.0.1:9/no-such-image:1\nFROM ${BASE}\n")
    monkeypatch.setattr(docker_image, "_FOLDER", tmp_path)
    with pytest.raises(BackendUnavailable, match=r"no-such-image:1 is not there .* run .*base-image\.sh as root"):
        docker_backend.prepare(DOCKER)
    (tmp_path / "Dockerfile").unlink()
    with pytest.raises(BackendUnavailable, match=r"there is no .*Dockerfile: install azr from a clone"):
        docker_backend.prepare(DOCKER)


def test_the_runtime_is_passed_on_and_one_that_is_missing_is_named(client):
    launcher, description = docker_backend.prepare(replace(DOCKER, docker_runtime="runc"))
    assert "under runc" in description
    container_id = launcher._create(hash_seed=0, auto_remove=False)
    try:
        host = client.inspect_container(container_id)["HostConfig"]
        assert host["Runtime"] == "runc"
        # Room for what a runtime with a kernel of its own runs inside the limits.
        assert (host["PidsLimit"], host["Memory"]) == (64 + 1024, (CONFIG.memory_mb + 128 + 256) * 2**20)
    finally:
        client.remove_container(container_id)
    with pytest.raises(ValueError, match=r"has no runtime crun, only .*runc.*: register it in /etc/docker"):
        backends.select_backend(replace(DOCKER, docker_runtime="crun"))


@on_one_loop
async def test_gvisor_runs_programs_behind_a_kernel_of_its_own(client):
    """Where the engine has it, as it has in continuous integration on a release of Debian that packages it."""
    if "runsc" not in client.info()["Runtimes"]:
        pytest.skip("this engine has no runtime runsc: sudo runsc install")
    config = replace(DOCKER, docker_runtime="runsc", workers=1)
    async with SandboxPool(config, repeats=1) as pool:
        assert "under runsc" in pool.isolation
        outputs = await asyncio.gather(*(call(pool, f"def f(x): return x + {one}", "1") for one in range(20)))
        assert [output.value for output in outputs] == [str(one + 1) for one in range(20)]
        denied = await call(pool, "import posix\ndef f(): return posix.fork()", static_check=False)
        assert denied.error == "PermissionError"
        assert pool.stats()["restarts"] == 0


@pytest.mark.parametrize("backend", ["auto", "docker"])
def test_where_gvisor_is_missing_one_sentence_says_so(client, backend, monkeypatch):
    """And nothing weaker is taken in its place."""
    info = client.info()
    info["Runtimes"].pop("runsc", None)
    monkeypatch.setattr(docker.APIClient, "info", lambda client: info)
    with pytest.raises(UserError) as refusal:
        backends.select_backend(replace(DOCKER, backend=backend, docker_runtime="runsc"))
    sentence = str(refusal.value)
    assert "the Docker engine has no runtime runsc, only " in sentence and "\n" not in sentence
    remedy = "install gVisor on the engine's machine, register it (sudo runsc install) and restart the engine"
    assert remedy in sentence and sentence.endswith("or leave out executor.docker_runtime.")


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("unix:///no/such.sock", r"no Docker engine answers at unix:///no/such\.sock: install one .* start it"),
        ("tcp://127.0.0.1:9", "no Docker engine answers at tcp://127.0.0.1:9: install one"),
        ("ssh://nobody@nowhere", "only unix sockets and tcp without TLS are supported: unset it"),
        ("tcp://no-such-host.invalid:1", "does not answer"),
    ],
)
def test_an_engine_that_cannot_be_reached_is_one_sentence(monkeypatch, address, sentence):
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(ValueError, match=sentence) as refusal:
        backends.select_backend(DOCKER)
    assert "\n" not in str(refusal.value)
    monkeypatch.setitem(backends.BACKENDS, "bubblewrap", backends.BACKENDS["namespace"])
    _, description = backends.select_backend(replace(DOCKER, backend="auto"))
    assert description.startswith("bubblewrap: ") and "docker does not work here" in description


def test_a_socket_that_may_not_be_used_is_one_sentence():
    program = (
        "import sys\nsys.path.insert(0, sys.argv[1])\nfrom azr.config import ExecutorConfig\n"
        "from azr.executor import backends\nprint(backends.report(ExecutorConfig())[0][2])"
    )
    with tempfile.TemporaryDirectory(prefix="azr-clone-") as folder, socket.socket(socket.AF_UNIX) as listener:
        copy_package(Path(folder), "certifi", "charset_normalizer", "idna", "psutil", "requests", "urllib3", "docker")
        listener.bind(f"{folder}/engine.sock")
        Path(folder, "engine.sock").chmod(0)
        listener.listen()
        python = shutil.which("python3", path=os.defpath) if ORDINARY else sys.executable
        run = subprocess.run([python, "-B", "-c", program, folder], env={"DOCKER_HOST": f"unix://{folder}/engine.sock"},
                             capture_output=True, text=True, check=False, cwd="/", **ORDINARY)  # fmt: skip
    assert run.returncode == 0, run.stderr
    remedy = "join its group (sudo usermod -aG docker $USER) and log in again"
    assert run.stdout == f"no permission on unix://{folder}/engine.sock: {remedy}\n"


def test_missing_cgroup_controllers_and_another_kind_of_machine_are_named():
    lacking = {"Architecture": "aarch64", "Runtimes": {}, "MemoryLimit": False, "PidsLimit": True, "CpuCfsQuota": False}
    with pytest.raises(BackendUnavailable, match="lacks the cgroup controllers memory, cpu: mount them"):
        docker_image._check_engine(lacking, None)
    with pytest.raises(BackendUnavailable, match="no filter of system calls for riscv64: use x86_64 or aarch64"):
        docker_image._check_engine({"Architecture": "riscv64"}, None)
