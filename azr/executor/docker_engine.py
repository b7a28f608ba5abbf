"""The way to a Docker engine, and one sentence for each reason why there is none that would do."""

from __future__ import annotations

import errno
import os
from urllib.parse import urlsplit

import docker
import requests

from azr.executor.sandbox import UnusableError

_ADDRESS = "unix:///var/run/docker.sock"
_TIMEOUT_S = 120
_LIMITS = {"MemoryLimit": "memory", "PidsLimit": "pids", "CpuCfsQuota": "cpu"}
"""What an engine says it can limit, and the cgroup controller it needs for that."""


def connect(runtime: str | None) -> docker.APIClient:
    """A client of the engine that ``DOCKER_HOST`` names, or of this machine's.

    Raises UnusableError when it cannot be reached, has no such container runtime or cannot limit containers.
    """
    address = os.environ.get("DOCKER_HOST") or _ADDRESS
    if urlsplit(address).scheme not in ("unix", "tcp", "http") or os.environ.get("DOCKER_TLS_VERIFY"):
        raise UnusableError(
            f"DOCKER_HOST is {address}, and only unix sockets and tcp without TLS are supported: unset it, along with "
            "DOCKER_TLS_VERIFY, to use this machine's engine"
        )
    try:
        client = docker.APIClient(base_url=address, version="auto", timeout=_TIMEOUT_S)
        info = client.info()
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise UnusableError(_unreachable(address, error)) from error
    _check(info, runtime)
    return client


def _unreachable(address: str, error: BaseException) -> str:
    number = _errno(error)
    if number in (errno.EACCES, errno.EPERM):
        return f"no permission on {address}: join its group (sudo usermod -aG docker $USER) and log in again"
    if number in (errno.ENOENT, errno.ECONNREFUSED):
        return (
            f"no Docker engine answers at {address}: install one (on Debian and Ubuntu: apt-get install docker.io), "
            "start it (systemctl start docker), or set DOCKER_HOST to where yours listens"
        )
    return f"the Docker engine at {address} does not answer ({error}): see its log"


def _errno(error: BaseException | None) -> int | None:
    """Number of the system error at the bottom of the chain, if there is one."""
    while error is not None:
        if isinstance(error, OSError) and error.errno is not None:
            return error.errno
        error = error.__cause__ or error.__context__
    return None


def _check(info: dict, runtime: str | None) -> None:
    if runtime is not None and runtime not in info["Runtimes"]:
        raise UnusableError(
            f"the Docker engine has no runtime {runtime}, only {', '.join(sorted(info['Runtimes']))}: register it in "
            "/etc/docker/daemon.json and restart the engine, or leave out executor.docker_runtime"
        )
    missing = [controller for key, controller in _LIMITS.items() if not info[key]]
    if missing:
        raise UnusableError(
            f"the Docker engine cannot limit containers without the cgroup controllers {', '.join(missing)}: mount "
            "them (cgroup v1: cgroupfs-mount), enable them on the kernel's command line (cgroup_enable=memory) or, for "
            "a rootless engine, delegate them to your user"
        )
