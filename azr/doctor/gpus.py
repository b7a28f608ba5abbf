"""NVIDIA driver and GPUs, as nvidia-smi tells of them, and whether a run can start with them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from azr.config import Config
from azr.doctor.findings import Finding, FindingGroup, info, missing, ok, warning
from azr.errors import UserError
from azr.plan.inputs import ClusterSpec
from azr.plan.planner import check_memory

_FIELDS = "index,name,memory.total,memory.used,driver_version"
_COMMAND = ("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
MIN_DRIVER = 580
"""Major version of the oldest driver for CUDA 13, which the pinned torch and vLLM are built with."""
_TAKEN_MIB = 1024
"""More than a driver and a desktop take."""
_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    index: int
    name: str
    total_mib: int
    used_mib: int
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs of this machine."""

    all: tuple[Gpu, ...] = ()
    has_smi: bool = True
    """There is an nvidia-smi."""
    error: str = ""
    """Why it could not say; empty when it could."""

    @property
    def memory_gib(self) -> float:
        """Of the smallest."""
        return min(gpu.total_mib for gpu in self.all) / 1024


def query(command: Sequence[str] = _COMMAND) -> Gpus:
    """Runs `command`, which prints one line of comma-separated values per GPU."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError:
        return Gpus(has_smi=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Gpus(error=str(error))
    if run.returncode != 0:
        return Gpus(error=" ".join((run.stdout + run.stderr).split()))
    try:
        return Gpus(all=tuple(_gpu(line) for line in run.stdout.splitlines() if line.strip()))
    except ValueError:
        return Gpus(error=f"it says {run.stdout.strip()!r}, where five values per GPU were asked for")


def _gpu(line: str) -> Gpu:
    index, name, total, used, driver = (word.strip() for word in line.split(","))
    return Gpu(index=int(index), name=name, total_mib=int(total), used_mib=int(used), driver=driver)


def gpus_section(gpus: Gpus) -> FindingGroup:
    if not gpus.has_smi:
        findings = [info("driver", "there is no nvidia-smi, so runs take the CPU")]
    elif gpus.error:
        remedy = (
            f"install a driver of version {MIN_DRIVER} or newer and load its kernel module; in a container, start that "
            "with --gpus all"
        )
        findings = [warning("driver", f"nvidia-smi fails ({gpus.error}), so runs take the CPU: {remedy}")]
    elif not gpus.all:
        findings = [warning("driver", "nvidia-smi lists no GPU: in a container, start that with --gpus all")]
    else:
        findings = [_driver(gpus.all[0].driver), *map(_memory, gpus.all)]
    return FindingGroup(title="GPUs", findings=findings)


def _driver(version: str) -> Finding:
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < MIN_DRIVER:
        return missing("driver", f"{version} is too old for CUDA 13: install {MIN_DRIVER} or newer")
    return ok("driver", version)


def _memory(gpu: Gpu) -> Finding:
    name, size = f"GPU {gpu.index}", f"{gpu.name}, {gpu.total_mib / 1024:.0f} GiB"
    if gpu.used_mib > _TAKEN_MIB:
        taken = f"{gpu.used_mib / 1024:.1f} GiB of them taken: nvidia-smi lists the processes, end them first"
        return warning(name, f"{size}, {taken}")
    return ok(name, size)


def check_machine(config: Config, gpus: Gpus) -> None:
    """Raise UserError when Ray, or a run on a GPU, cannot start on this machine.

    Checks nothing for a run that joins a cluster.
    """
    if config.cluster.address is not None:
        return
    if config.train.device == "cuda" and not gpus.all:
        why = gpus.error or ("nvidia-smi lists none" if gpus.has_smi else "there is no nvidia-smi")
        raise UserError(
            f"train.device is cuda, but no GPU was found on this machine ({why}): set it to auto or cpu, or join a "
            "cluster that has GPUs by cluster.address."
        )
    from azr.cluster.ray_start import check_socket_paths  # Only now, because Ray takes a second to load.

    check_socket_paths()


def check_fit(config: Config, gpus: Gpus, *, suppose: bool = False) -> list[str]:
    """Compare the run with the largest GPU of this machine, see `azr.plan.planner.check_memory`. Return warnings.

    Returns none for a run on a CPU. Without GPUs here, or for a cluster, the GPUs are not known yet: returns none
    either, but with `suppose` compares the run with 80 GB GPUs.
    """
    if config.train.device == "cpu":
        return []
    if gpus.all and config.cluster.address is None:
        return check_memory(config, max(gpu.total_mib for gpu in gpus.all) / 1024)
    return check_memory(config, ClusterSpec.with_gpus(config.num_gpus).gpu_memory_gib) if suppose else []
