"""NVIDIA driver and GPUs, as nvidia-smi tells of them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from azr.doctor.findings import Finding, Section, fact, missing, ok, warning

QUERY = (
    "nvidia-smi",
    "--query-gpu=index,name,memory.total,memory.used,driver_version",
    "--format=csv,noheader,nounits",
)
LEAST_DRIVER = 580
"""Major version of the oldest driver for CUDA 13, which the pinned torch and vLLM are built with."""
_TAKEN_MIB = 1024
"""More than a driver and a desktop take."""
_ANSWER_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    index: int
    name: str
    total_mib: int
    used_mib: int
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """What was found."""

    found: tuple[Gpu, ...] = ()
    tool: bool = True
    """There is an nvidia-smi."""
    trouble: str = ""
    """Why it could not say; empty when it could."""

    @property
    def memory_gib(self) -> float:
        """Of the smallest."""
        return min(gpu.total_mib for gpu in self.found) / 1024


def look(command: Sequence[str] = QUERY) -> Gpus:
    """Ask `command`, which prints one line of comma-separated values per GPU."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except FileNotFoundError:
        return Gpus(tool=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Gpus(trouble=str(error))
    if run.returncode != 0:
        return Gpus(trouble=" ".join((run.stdout + run.stderr).split()))
    try:
        return Gpus(found=tuple(_gpu(line) for line in run.stdout.splitlines() if line.strip()))
    except ValueError:
        return Gpus(trouble=f"it says {run.stdout.strip()!r}, where five values per GPU were asked for")


def _gpu(line: str) -> Gpu:
    index, name, total, used, driver = (word.strip() for word in line.split(","))
    return Gpu(index=int(index), name=name, total_mib=int(total), used_mib=int(used), driver=driver)


def check(gpus: Gpus) -> Section:
    return Section(title="GPUs", findings=list(_findings(gpus)))


def _findings(gpus: Gpus) -> list[Finding]:
    if not gpus.tool:
        return [fact("driver", "there is no nvidia-smi, so runs take the CPU")]
    if gpus.trouble:
        return [
            warning(
                "driver",
                f"nvidia-smi fails ({gpus.trouble}), so runs take the CPU: install a driver of version {LEAST_DRIVER} "
                "or newer and load its kernel module; in a container, start that with --gpus all",
            )
        ]
    if not gpus.found:
        return [warning("driver", "nvidia-smi lists no GPU: in a container, start that with --gpus all")]
    return [_driver(gpus.found[0].driver), *map(_memory, gpus.found)]


def _driver(version: str) -> Finding:
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < LEAST_DRIVER:
        return missing("driver", f"{version} is too old for CUDA 13: install {LEAST_DRIVER} or newer")
    return ok("driver", version)


def _memory(gpu: Gpu) -> Finding:
    name, says = f"GPU {gpu.index}", f"{gpu.name}, {gpu.total_mib / 1024:.0f} GiB"
    if gpu.used_mib > _TAKEN_MIB:
        taken = f"{gpu.used_mib / 1024:.1f} GiB of them taken: nvidia-smi lists the processes, end them first"
        return warning(name, f"{says}, {taken}")
    return ok(name, says)
