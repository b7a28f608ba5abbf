"""The strongest backend: every zygote is the first process of a Docker container of its own."""

from __future__ import annotations

import asyncio
import http
import logging
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import docker
import requests

from azr.config import ExecutorConfig
from azr.executor.backends.docker_image import connect, ensure_image
from azr.executor.backends.sandbox import BackendUnavailable, LaunchError
from azr.processes import process_stat

_MARK, _OWNER = "azr.executor", "azr.owner"
_HEADROOM_MB, _PIDS = 128, 64
_KERNEL_MB, _KERNEL_THREADS = 256, 1024
"""On top where a runtime was named: one that brings a kernel of its own, as gVisor does, runs it within the limits."""
_MAX_CORES = 2
_FIRST_VICTIM = 1000
"""OOM score: the kernel kills processes in containers before any other."""
_REMOVAL_S = 60
_ASK_AGAIN_S = 2
"""An engine that is asked about a removal in the moment in which it happens may never answer."""
_PROBE_S = 60
_THREADS = 256
_STARTED = 19  # index of a process's start time, in clock ticks since boot
_ENGINE_ERRORS = (docker.errors.DockerException, requests.RequestException)
_log = logging.getLogger(__name__)


def prepare(config: ExecutorConfig) -> tuple[ContainerLauncher, str]:
    """Build the image if need be, clear what dead runs left, and try a container out.

    Raises BackendUnavailable for each reason why there can be none.
    """
    client = connect(config.docker_runtime)
    try:
        launcher = ContainerLauncher(client, ensure_image(client), config)
        # Containers of processes that have ended; they end by themselves unless they were never started.
        for container in client.containers(all=True, filters={"label": f"{_MARK}=1"}):
            owner = container["Labels"].get(_OWNER)
            if owner is not None and is_stale(owner):
                launcher.remove_now(container["Id"])
        launcher.probe()
    except _ENGINE_ERRORS as error:
        raise BackendUnavailable(f"the Docker engine runs no container ({_error_text(error)}): see its log") from error
    runtime = f" under {config.docker_runtime}" if config.docker_runtime else ""
    return launcher, f"a container per interpreter{runtime}, without network, capabilities or a file it could write"


class ContainerSandbox:
    """A zygote in a container that removes itself when the zygote ends."""

    multiplexed = True

    def __init__(self, launcher: ContainerLauncher, container_id: str, end: socket.socket) -> None:
        self._launcher = launcher
        self.container_id = container_id
        self.socket = end

    def kill(self) -> None:
        self._launcher.remove(self.container_id)

    async def wait(self) -> None:
        await self._launcher.removed(self.container_id)


class ContainerLauncher:
    """Calls to the engine block, so they run in threads of this launcher."""

    def __init__(self, client: docker.APIClient, tag: str, config: ExecutorConfig) -> None:
        self._client = client
        self._tag = tag
        self._config = config
        self._cores = min(_MAX_CORES, client.info()["NCPU"])
        # Threads that wait for an end must never keep one that brings it about from starting.
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="azr-docker")
        self._container_ids: set[str] = set()

    async def launch(self, hash_seed: int) -> ContainerSandbox:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._launch, hash_seed)

    def remove(self, container_id: str) -> None:
        """Have a container removed by force, whatever it does."""
        self._threads.submit(self.remove_now, container_id)

    async def removed(self, container_id: str) -> None:
        """Until the container is gone; one that does not go is removed by force."""
        await asyncio.get_running_loop().run_in_executor(self._threads, self._await_removal, container_id)
        self._container_ids.discard(container_id)

    async def close(self) -> None:
        for container_id in tuple(self._container_ids):
            self.remove(container_id)
        await asyncio.to_thread(self._threads.shutdown)
        # What is left was being launched while its caller gave up.
        for container_id in tuple(self._container_ids):
            await asyncio.to_thread(self.remove_now, container_id)
        self._client.close()

    def probe(self) -> None:
        """Start a zygote that has nothing to do. Raises BackendUnavailable if it fails, and the engine's errors."""
        container_id = self._create(hash_seed=0, auto_remove=False)
        try:
            self._attach(container_id).close()
            self._client.start(container_id)
            code = self._client.wait(container_id, timeout=_PROBE_S)["StatusCode"]
        finally:
            self.remove_now(container_id)
        if code:
            raise BackendUnavailable(f"the interpreter in {self._tag} ended with code {code}: remove that image")

    def _launch(self, hash_seed: int) -> ContainerSandbox:
        container_id = None
        try:
            container_id = self._create(hash_seed, auto_remove=True)
            self._container_ids.add(container_id)
            end = self._attach(container_id)
            self._client.start(container_id)
        except _ENGINE_ERRORS as error:
            if container_id is not None:
                self.remove_now(container_id)
            raise LaunchError(f"no container could be started ({_error_text(error)})") from error
        end.setblocking(False)
        return ContainerSandbox(self, container_id, end)

    def _create(self, hash_seed: int, *, auto_remove: bool) -> str:
        own_kernel = self._config.docker_runtime is not None
        memory = (self._config.memory_mb + _HEADROOM_MB + _KERNEL_MB * own_kernel) * 2**20
        limits = self._client.create_host_config(
            auto_remove=auto_remove,
            cap_drop=["ALL"],
            ipc_mode="none",
            log_config={"Type": "none"},
            mem_limit=memory,
            memswap_limit=memory,
            nano_cpus=self._cores * 10**9,
            network_mode="none",
            oom_score_adj=_FIRST_VICTIM,
            pids_limit=_PIDS + _KERNEL_THREADS * own_kernel,
            read_only=True,
            runtime=self._config.docker_runtime,
            security_opt=["no-new-privileges"],
        )
        return self._client.create_container(
            self._tag,
            environment={"PYTHONHASHSEED": str(hash_seed)},
            host_config=limits,
            labels={_MARK: "1", _OWNER: owner_id()},
            stdin_open=True,
            user="65534:65534",
        )["Id"]

    def _attach(self, container_id: str) -> socket.socket:
        """Our end of its standard streams; of what it writes only standard output arrives."""
        stream = self._client.attach_socket(container_id, {"stdin": 1, "stdout": 1, "stream": 1})
        end = socket.socket(fileno=os.dup(stream.fileno()))
        # The other handles of this connection belong to the response and would keep it open when ours is closed.
        stream._response.close()
        return end

    def _await_removal(self, container_id: str) -> None:
        for _ in range(_REMOVAL_S // _ASK_AGAIN_S):
            try:
                self._client.wait(container_id, timeout=_ASK_AGAIN_S, condition="removed")
                return
            except docker.errors.NotFound:
                return
            except _ENGINE_ERRORS:
                continue  # it may be there still
        self.remove_now(container_id)

    def remove_now(self, container_id: str) -> None:
        """Remove a container by force, and log what prevents it. Blocks."""
        try:
            self._client.remove_container(container_id, force=True)
        except docker.errors.APIError as error:
            is_going = error.status_code == http.HTTPStatus.CONFLICT
            if not is_going and not isinstance(error, docker.errors.NotFound):
                _log.warning("the container %s was not removed: %s", container_id, _error_text(error))
        except requests.RequestException as error:
            _log.warning(
                "the container %s may be left over, for the Docker engine does not answer: %s", container_id, error
            )
        self._container_ids.discard(container_id)


def _error_text(error: Exception) -> str:
    """Return the engine's or the connection's message in one line."""
    said = error.explanation if isinstance(error, docker.errors.APIError) else error
    return " ".join(str(said).split())


def owner_id() -> str:
    """Host, boot, process namespace, process and its start time: no two processes ever share it."""
    return " ".join((*_place(), str(os.getpid()), process_stat(os.getpid())[_STARTED]))


def is_stale(owner: str) -> bool:
    """Whether the process with this id has certainly ended; false for one that cannot be seen from here."""
    *place, process, started = owner.split(" ")
    host, boot, namespace = _place()
    if place[0] != host:
        return False
    if place[1] != boot:
        return True
    return place[2] == namespace and process_stat(int(process))[_STARTED : _STARTED + 1] != [started]


def _place() -> tuple[str, str, str]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return socket.gethostname(), boot, os.readlink("/proc/self/ns/pid")
