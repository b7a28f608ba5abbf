"""The Docker backend against a real engine: what a container may do, when it ends, and why there is none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import docker
import pytest
import pytest_asyncio

from azr.executor import container, engine, image, owner, walls
from azr.executor.sandbox import LaunchError, UnusableError
from tests.executor.conftest import CONFIG, require
from tests.executor.test_walls import ORDINARY

on_one_loop = pytest.mark.asyncio(loop_scope="session")
DOCKER = replace(CONFIG, backend="docker")
OWNED = {"label": f"azr.owner={owner.label()}"}


@pytest.fixture(scope="module")
def client():
    require("docker")
    client = engine.connect(None)
    yield client
    client.close()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def launched(client):
    """A container of the backend with a zygote that waits for its first message."""
    launcher, _ = await asyncio.to_thread(container.prepare, DOCKER)
    sandbox = await launcher.launch(hash_seed=7)
    yield sandbox
    sandbox.socket.close()
    await sandbox.wait()
    await launcher.close()


def _run_inside(client, identity: str, program: str) -> tuple[int, str]:
    """Exit code and output of a program that nothing but the container holds."""
    command = client.exec_create(identity, ["python3", "-c", program])["Id"]
    output = client.exec_start(command).decode()
    return client.exec_inspect(command)["ExitCode"], output


def test_a_container_may_do_as_little_as_can_be(client, launched):
    host = client.inspect_container(launched.identity)["HostConfig"]
    memory = (CONFIG.memory_mb + 128) * 2**20
    assert (host["Memory"], host["MemorySwap"]) == (memory, memory)
    assert {name: host[name] for name in ("NetworkMode", "ReadonlyRootfs", "CapDrop", "IpcMode", "PidsLimit")} == {
        "NetworkMode": "none", "ReadonlyRootfs": True, "CapDrop": ["ALL"], "IpcMode": "none", "PidsLimit": 64,
    }  # fmt: skip
    assert host["SecurityOpt"] == ["no-new-privileges"] and host["LogConfig"]["Type"] == "none" and host["AutoRemove"]
    assert host["NanoCpus"] == min(2, os.cpu_count()) * 10**9


LOOK = """
import json, os, socket
def writable(folder):
    try: os.mkdir(folder + "/x")
    except OSError: return False
    return True
folders = {folder for folder, _, _ in os.walk("/") if not folder.startswith(("/proc/", "/sys/"))}
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "writable": sorted(filter(writable, folders)), "links": [name for _, name in socket.if_nameindex()],
    "ids": [os.getuid(), os.getgid(), os.geteuid()], "capabilities": int(status["CapBnd"], 16),
    "no new privileges": status["NoNewPrivs"].strip(), "hash seed": os.environ["PYTHONHASHSEED"],
}))
"""


def test_a_container_sees_a_read_only_world_without_network(client, launched):
    code, output = _run_inside(client, launched.identity, LOOK)
    assert code == 0, output
    assert json.loads(output) == {
        "writable": [], "links": ["lo"], "ids": [65534] * 3, "capabilities": 0, "no new privileges": "1",
        "hash seed": "7",
    }  # fmt: skip


def test_a_container_stops_bombs(client, launched):
    code, _ = _run_inside(client, launched.identity, "bytearray(300 * 2**20)")
    assert code == 137
    forks = (
        "import os, time\nfor count in range(200):\n    try:\n        if os.fork() == 0: time.sleep(60)\n"
        "    except OSError: break\nprint(count, flush=True)\nos.killpg(0, 9)"
    )
    _, output = _run_inside(client, launched.identity, forks)
    assert int(output) <= 64
    assert client.inspect_container(launched.identity)["State"]["Running"]


LAUNCH = """
import asyncio, sys
from azr.config import ExecutorConfig
from azr.executor import walls
async def main():
    launcher = walls.choose(ExecutorConfig(backend="docker")).launcher
    sandboxes = await asyncio.gather(launcher.launch(1), launcher.launch(2))
    print(*(sandbox.identity for sandbox in sandboxes), flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


def test_containers_end_when_their_owner_is_killed(client):
    process = subprocess.Popen([sys.executable, "-c", LAUNCH], stdout=subprocess.PIPE, text=True)
    identities = set(process.stdout.readline().split())
    try:
        assert len(identities & _running(client)) == 2
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    deadline = time.monotonic() + 10
    while identities & _running(client) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not identities & _running(client)


def _running(client) -> set[str]:
    return {found["Id"] for found in client.containers(all=True, filters={"label": "azr.executor=1"})}


def test_leftovers_of_dead_processes_alone_are_removed(client):
    dead = subprocess.Popen([sys.executable, "-c", "from azr.executor import owner; print(owner.label())"],
                            stdout=subprocess.PIPE, text=True)  # fmt: skip
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
        owner.label(): True,
    }
    tag = image.ensure(client)
    made = {
        name: client.create_container(tag, labels={"azr.executor": "1", "azr.owner": name})["Id"] for name in owners
    }
    try:
        container.prepare(DOCKER)
        left = _running(client)
        assert {name: identity in left for name, identity in made.items()} == owners
    finally:
        for identity in made.values():
            with contextlib.suppress(docker.errors.NotFound):
                client.remove_container(identity)


@on_one_loop
async def test_a_launcher_leaves_no_container(client):
    launcher, _ = await asyncio.to_thread(container.prepare, DOCKER)
    before = {found["Id"] for found in client.containers(all=True, filters=OWNED)}
    sandboxes = await asyncio.gather(*map(launcher.launch, range(3)))
    assert len({found["Id"] for found in client.containers(all=True, filters=OWNED)} - before) == 3
    await launcher.close()
    assert not {found["Id"] for found in client.containers(all=True, filters=OWNED)} - before
    for sandbox in sandboxes:
        sandbox.socket.close()


@on_one_loop
async def test_a_removal_that_the_engine_never_reports_holds_nobody_up(client, launched, monkeypatch):
    """An engine asked in the moment of the removal may stay silent: as silent as about a container that stays."""
    launcher, _ = await asyncio.to_thread(container.prepare, DOCKER)
    sandbox = await launcher.launch(hash_seed=1)
    asked, wait = [], launcher._client.wait

    def silent_at_first(identity, **arguments):
        asked.append(identity)
        return wait(launched.identity if len(asked) == 1 else identity, **arguments)

    monkeypatch.setattr(launcher._client, "wait", silent_at_first)
    sandbox.socket.close()
    await asyncio.wait_for(sandbox.wait(), 30)
    assert asked == [sandbox.identity] * 2
    await launcher.close()


def test_the_image_is_named_after_what_is_in_it(client, monkeypatch):
    tag = image.ensure(client)
    assert image.ensure(client) == tag
    monkeypatch.setattr(image, "sources", lambda: {"azr/executor/worker.py": b"raise SystemExit(3)"})
    other = image.ensure(client)
    try:
        assert other != tag
        with pytest.raises(UnusableError, match=f"the interpreter in {other} ended with code 3"):
            container.prepare(DOCKER)
    finally:
        client.remove_image(other)


def test_without_the_base_image_it_names_the_script_that_makes_one(client, monkeypatch, tmp_path):
    (tmp_path / "Dockerfile").write_text("ARG BASE=127.0.0.1:9/no-such-image:1\nFROM ${BASE}\n")
    monkeypatch.setattr(image, "_FOLDER", tmp_path)
    with pytest.raises(UnusableError, match=r"no-such-image:1 is not there .* run .*base-image\.sh as root"):
        container.prepare(DOCKER)
    (tmp_path / "Dockerfile").unlink()
    with pytest.raises(UnusableError, match=r"there is no .*Dockerfile: install azr from a clone"):
        container.prepare(DOCKER)


def test_the_runtime_is_passed_on_and_one_that_is_missing_is_named(client):
    launcher, offers = container.prepare(replace(DOCKER, docker_runtime="runc"))
    assert "under runc" in offers
    identity = launcher._create(hash_seed=0, auto_remove=False)
    try:
        assert client.inspect_container(identity)["HostConfig"]["Runtime"] == "runc"
    finally:
        client.remove_container(identity)
    with pytest.raises(ValueError, match=r"has no runtime runsc, only .*runc.*: register it in /etc/docker"):
        walls.choose(replace(DOCKER, docker_runtime="runsc"))


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
        walls.choose(DOCKER)
    assert "\n" not in str(refusal.value)
    monkeypatch.setitem(walls.BACKENDS, "bubblewrap", walls.BACKENDS["namespace"])
    chosen = walls.choose(replace(DOCKER, backend="auto"))
    assert chosen.name == "bubblewrap" and "docker does not work here" in chosen.reason


def test_a_socket_that_may_not_be_used_is_one_sentence():
    import certifi
    import charset_normalizer
    import idna
    import requests
    import urllib3

    modules = (certifi, charset_normalizer, idna, requests, urllib3, docker)
    program = (
        "import sys\nsys.path.insert(0, sys.argv[1])\nfrom azr.config import ExecutorConfig\n"
        "from azr.executor import walls\nprint(walls.report(ExecutorConfig())[0][2])"
    )
    with tempfile.TemporaryDirectory(prefix="azr-clone-") as folder, socket.socket(socket.AF_UNIX) as listener:
        Path(folder).chmod(0o755)
        shutil.copytree(image.ROOT / "azr", Path(folder, "azr"))
        for module in modules:
            shutil.copytree(Path(module.__file__).parent, Path(folder, module.__name__))
        listener.bind(f"{folder}/engine.sock")
        Path(folder, "engine.sock").chmod(0)
        listener.listen()
        python = shutil.which("python3", path=os.defpath) if ORDINARY else sys.executable
        run = subprocess.run([python, "-B", "-c", program, folder], env={"DOCKER_HOST": f"unix://{folder}/engine.sock"},
                             capture_output=True, text=True, check=False, cwd="/", **ORDINARY)  # fmt: skip
    assert run.returncode == 0, run.stderr
    remedy = "join its group (sudo usermod -aG docker $USER) and log in again"
    assert run.stdout == f"no permission on unix://{folder}/engine.sock: {remedy}\n"


def test_missing_cgroup_controllers_are_named():
    info = {"Runtimes": {}, "MemoryLimit": False, "PidsLimit": True, "CpuCfsQuota": False}
    with pytest.raises(UnusableError, match="without the cgroup controllers memory, cpu: mount them"):
        engine._check(info, None)


class Way:
    """A way to the engine that can be cut, as when the engine stops."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Way:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cut()

    def cut(self) -> None:
        self._server.close()
        Path(self.path).unlink(missing_ok=True)
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, downstream = await asyncio.open_unix_connection("/var/run/docker.sock")
        self._writers += [writer, downstream]
        await asyncio.gather(self._copy(reader, downstream), self._copy(upstream, writer), return_exceptions=True)

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(2**16):
            writer.write(data)
        writer.close()


@on_one_loop
async def test_an_engine_that_stops_is_a_failure_to_launch(client, monkeypatch, tmp_path):
    async with Way(str(tmp_path / "engine.sock")) as way:
        monkeypatch.setenv("DOCKER_HOST", f"unix://{way.path}")
        launcher, _ = await asyncio.to_thread(container.prepare, DOCKER)
        sandbox = await launcher.launch(hash_seed=1)
        way.cut()
        assert await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sandbox.socket, 1), 10) == b""
        with pytest.raises(LaunchError, match="no container could be started"):
            await launcher.launch(hash_seed=2)
        sandbox.kill()
        await asyncio.wait_for(sandbox.wait(), 10)
        sandbox.socket.close()
        await launcher.close()
    deadline = time.monotonic() + 10
    while sandbox.identity in _running(client) and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    assert sandbox.identity not in _running(client)
