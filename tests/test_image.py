"""The training image and its compose file, as far as they can be judged without building; .ci/image.sh builds them."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.requirements import installed, needed_by

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "docker" / "compose.yaml"
BUILD_TOOLS = {"pip", "setuptools", "ninja", "packaging", "psutil", "py-cpuinfo"}
NOT_FOR_A_CPU = {"torchaudio", "torchcodec", "torchvision", "triton"}
"""As the CPU lock says at its top."""


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile: name and arguments, continued lines joined."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def lock(flavour: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / f"{flavour}.lock").read_text().splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


@pytest.mark.parametrize("flavour", ["cpu", "gpu"])
def test_a_lock_holds_what_the_project_pins(flavour):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    found = lock(flavour)
    assert found.keys() >= BUILD_TOOLS
    for line in [*project["dependencies"], *extras["train"], *extras[flavour], *extras["dev"]]:
        wanted = Requirement(line)
        if wanted.name != "azr":
            assert found[canonicalize_name(wanted.name)] in wanted.specifier


def test_cuda_python_and_the_bindings_it_is_for_are_one_version():
    """Before 12.8 it holds files of the bindings, and puts its own over those of a newer version."""
    found = lock("gpu")
    assert found["cuda-python"].split(".")[:2] == found["cuda-bindings"].split(".")[:2]


@pytest.mark.parametrize("flavour", ["cpu", pytest.param("gpu", marks=pytest.mark.long)])
def test_every_line_of_a_lock_has_a_reader(flavour, tmp_path):
    """What it is there for: the project, a package of the lock, or the installation."""
    requires = {name: installed(name) for name in lock("cpu")}
    others = [f"{name}=={version}" for name, version in lock(flavour).items() if name not in requires]
    if others:  # an index says what they require
        report = tmp_path / "report.json"
        options = ["--dry-run", "--ignore-installed", "--no-deps", "--report", str(report), *others]
        subprocess.run([sys.executable, "-m", "pip", "install", "-q", *options], check=True)
        told = [each["metadata"] for each in json.loads(report.read_text())["install"]]
        requires |= {canonicalize_name(each["name"]): each.get("requires_dist", []) for each in told}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    other = {"cpu": "gpu", "gpu": "cpu"}[flavour]
    needed = needed_by({*extras} - {other}, lambda name: requires.get(name, []))
    # The CUDA libraries are those of a CUDA build of torch, and this one may be for CPUs.
    cuda = {name for name in lock(flavour) if flavour == "gpu" and name.startswith(("cuda-toolkit", "nvidia-"))}
    assert lock(flavour).keys() - needed - cuda - BUILD_TOOLS == set()
    assert needed - lock(flavour).keys() <= NOT_FOR_A_CPU


def test_nothing_runs_as_root_and_base_and_locks_are_for_one_cuda():
    names = [name for name, _ in instructions()]
    assert dict(instructions())["USER"] == "azr" and names[-2:] == ["USER", "CMD"]
    made = next(rest for _, rest in instructions() if "/etc/passwd" in rest)
    assert made.rstrip().endswith("/home/azr/.cache/huggingface")
    (_, base), (_, used) = instructions()[:2]
    assert used == "${BASE}"
    major, minor = re.fullmatch(r"BASE=nvidia/cuda:(\d+)\.(\d+)\.\d+-devel-ubuntu24\.04", base).groups()
    assert lock("gpu")["nvidia-cuda-runtime"].startswith(f"{major}.{minor}.")
    cpu, gpu = lock("cpu"), lock("gpu")
    assert {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]} <= {"apache-tvm-ffi"}


def services() -> dict:
    return yaml.safe_load(COMPOSE.read_text())["services"]


def test_the_compose_file_builds_this_image_and_mounts_what_runs_need():
    assert set(services()) == {"head", "worker"}
    for service in services().values():
        assert (COMPOSE.parent / service["build"]["context"] / "Dockerfile").resolve() == ROOT / "Dockerfile"
        assert service["ipc"] == service["network_mode"] == "host"
        targets = [volume.rsplit(":", 1)[1] for volume in service["volumes"]]
        caches = ["/home/azr/.cache/huggingface", "/home/azr/.cache/azr"]
        assert targets == ["/azr/orz_ckpt", *caches, "/var/run/docker.sock"]
        [device] = service["deploy"]["resources"]["reservations"]["devices"]
        assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
