"""Docker engine and image of the containers; the image is built on first use."""

from __future__ import annotations

import errno
import hashlib
import io
import logging
import os
import re
import tarfile
from urllib.parse import urlsplit

import docker
import requests

from azr.executor.backends.sandbox import FILES, ROOT, BackendUnavailable, require_filter

_FOLDER = ROOT / "azr" / "executor" / "image"
_BASE = re.compile(r"^ARG BASE=(\S+)$", re.MULTILINE)
_BUILD_S = 900
_log = logging.getLogger(__name__)
_ADDRESS = "unix:///var/run/docker.sock"
_TIMEOUT_S = 120
_LIMITS = {"MemoryLimit": "memory", "PidsLimit": "pids", "CpuCfsQuota": "cpu"}
"""Limits that an engine reports, and the cgroup controller of each."""
_REGISTRATION = "register it in /etc/docker/daemon.json"
_INSTALLATION = {"runsc": "install gVisor on the engine's machine, register it (sudo runsc install)"}
"""Installation of runtimes that have their own installer."""


def connect(runtime: str | None) -> docker.APIClient:
    """A client of the engine that ``DOCKER_HOST`` names, or of this machine's.

    Raises BackendUnavailable when it cannot be reached, has no such container runtime or cannot limit containers.
    """
    address = os.environ.get("DOCKER_HOST") or _ADDRESS
    if urlsplit(address).scheme not in ("unix", "tcp", "http") or os.environ.get("DOCKER_TLS_VERIFY"):
        raise BackendUnavailable(
            f"DOCKER_HOST is {address}, and only unix sockets and tcp without TLS are supported: unset it, along with "
            "DOCKER_TLS_VERIFY, to use this machine's engine"
        )
    try:
        client = docker.APIClient(base_url=address, version="auto", timeout=_TIMEOUT_S)
        info = client.info()
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise BackendUnavailable(_unreachable(address, error)) from error
    _check_engine(info, runtime)
    return client


def _unreachable(address: str, error: BaseException) -> str:
    cause: BaseException | None = error
    while cause is not None and not (isinstance(cause, OSError) and cause.errno is not None):
        cause = cause.__cause__ or cause.__context__
    number = getattr(cause, "errno", None)  # of the system error at the bottom of the chain, if there is one
    if number in (errno.EACCES, errno.EPERM):
        return f"no permission on {address}: join its group (sudo usermod -aG docker $USER) and log in again"
    if number in (errno.ENOENT, errno.ECONNREFUSED):
        return (
            f"no Docker engine answers at {address}: install one (on Debian and Ubuntu: apt-get install docker.io), "
            "start it (systemctl start docker), or set DOCKER_HOST to where yours listens"
        )
    return f"the Docker engine at {address} does not answer ({error}): see its log"


def _check_engine(info: dict, runtime: str | None) -> None:
    require_filter(info["Architecture"])
    if runtime is not None and runtime not in info["Runtimes"]:
        raise BackendUnavailable(
            f"the Docker engine has no runtime {runtime}, only {', '.join(sorted(info['Runtimes']))}: "
            f"{_INSTALLATION.get(runtime, _REGISTRATION)} and restart the engine (systemctl restart docker), or leave "
            "out executor.docker_runtime"
        )
    missing = [controller for key, controller in _LIMITS.items() if not info[key]]
    if missing:
        raise BackendUnavailable(
            f"the Docker engine lacks the cgroup controllers {', '.join(missing)}: mount them (cgroup v1: "
            "cgroupfs-mount), enable them (kernel option cgroup_enable=memory) or, if it is rootless, delegate them "
            "to your user"
        )


def ensure_image(client: docker.APIClient) -> str:
    """The image's tag; it is built if this engine lacks it. Raises BackendUnavailable when it cannot be."""
    path = _FOLDER / "Dockerfile"
    if not path.is_file():
        raise BackendUnavailable(f"there is no {path}: install azr from a clone, with pip install -e")
    files = {"Dockerfile": path.read_bytes(), **{name: (ROOT / name).read_bytes() for name in FILES}}
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    tag = f"azr-executor:{digest[:16]}"
    if not _exists(client, tag):
        base = _BASE.search(files["Dockerfile"].decode())
        assert base is not None, "the Dockerfile names no base"
        repository, _, base_tag = base[1].partition(":")
        try:
            if not _exists(client, base[1]):
                client.pull(repository, tag=base_tag)
        except docker.errors.APIError as error:
            raise BackendUnavailable(
                f"the image {base[1]} is not there and no registry gave it: run {_FOLDER / 'base-image.sh'} as root, "
                "which makes it from a Debian mirror"
            ) from error
        _log.info("building the executor image %s", tag)
        _build(client, tag, files)
    return tag


def _exists(client: docker.APIClient, tag: str) -> bool:
    try:
        client.inspect_image(tag)
    except docker.errors.ImageNotFound:
        return False
    return True


def _build(client: docker.APIClient, tag: str, files: dict[str, bytes]) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    archive.seek(0)
    # The sandbox needs no network, and neither does making it.
    steps = client.build(
        fileobj=archive, custom_context=True, tag=tag, network_mode="none", rm=True, forcerm=True, decode=True,
        labels={"azr.executor": "1"}, timeout=_BUILD_S,
    )  # fmt: skip
    for step in steps:
        if "error" in step:
            raise BackendUnavailable(f"the executor image could not be built ({step['error'].strip()}): see {_FOLDER}")
