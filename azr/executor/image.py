"""The image that sandbox containers are made from: built on first use, named after what is in it."""

from __future__ import annotations

import hashlib
import io
import logging
import re
import tarfile

import docker

from azr.executor.sandbox import UnusableError
from azr.executor.zygote_files import ROOT, sources

_FOLDER = ROOT / "docker" / "executor"
_BASE = re.compile(r"^ARG BASE=(\S+)$", re.MULTILINE)
_BUILD_S = 900
_log = logging.getLogger(__name__)


def ensure(client: docker.APIClient) -> str:
    """The image's tag; it is built if this engine lacks it. Raises UnusableError when it cannot be."""
    files = {"Dockerfile": _dockerfile(), **sources()}
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()
    tag = f"azr-executor:{digest[:16]}"
    if not _exists(client, tag):
        base = _BASE.search(files["Dockerfile"].decode())
        assert base is not None, "the Dockerfile names no base"
        _ensure_base(client, base[1])
        _log.info("building the executor image %s", tag)
        _build(client, tag, files)
    return tag


def _dockerfile() -> bytes:
    path = _FOLDER / "Dockerfile"
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise UnusableError(f"there is no {path}: install azr from a clone, with pip install -e") from error


def _exists(client: docker.APIClient, tag: str) -> bool:
    try:
        client.inspect_image(tag)
    except docker.errors.ImageNotFound:
        return False
    return True


def _ensure_base(client: docker.APIClient, base: str) -> None:
    if _exists(client, base):
        return
    repository, _, tag = base.partition(":")
    try:
        client.pull(repository, tag=tag)
    except docker.errors.APIError as error:
        raise UnusableError(
            f"the image {base} is not there and no registry gave it: run {_FOLDER / 'base-image.sh'} as root, which "
            "makes it from a Debian mirror"
        ) from error


def _build(client: docker.APIClient, tag: str, files: dict[str, bytes]) -> None:
    # The sandbox needs no network, and neither does making it.
    steps = client.build(
        fileobj=_context(files), custom_context=True, tag=tag, network_mode="none", rm=True, forcerm=True, decode=True,
        labels={"azr.executor": "1"}, timeout=_BUILD_S,
    )  # fmt: skip
    for step in steps:
        if "error" in step:
            raise UnusableError(f"the executor image could not be built ({step['error'].strip()}): see {_FOLDER}")


def _context(files: dict[str, bytes]) -> io.BytesIO:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    archive.seek(0)
    return archive
