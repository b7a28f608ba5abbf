"""What the kernel lets processes have: shared memory, open files, locked memory."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass

from azr.doctor.findings import Finding, Section, missing, ok, warning

GIB = 2**30
SHM_BASE_GIB, SHM_GPU_GIB = 8, 1
"""Of /dev/shm: for Ray's objects, and for NCCL and vLLM per GPU. Generous; weights travel in memory of their own."""
SHM_LEAST_GIB = 1
"""Below, NCCL fails where GPUs cannot reach each other's memory, with a bus error."""
FILES_LEAST, FILES = 4096, 65536
"""Open files of a process: without which Ray fails, and what its makers advise for clusters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    shm_bytes: int
    """Size of /dev/shm."""
    files: int
    """Most open files of a process, after it has raised its limit as far as it may; Ray does."""
    locked_bytes: int | None
    """Memory a process may lock; None for no limit."""

    @classmethod
    def here(cls) -> Limits:
        shm = os.statvfs("/dev/shm")
        locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        return cls(
            shm_bytes=shm.f_frsize * shm.f_blocks,
            files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
            locked_bytes=None if locked == resource.RLIM_INFINITY else locked,
        )


def check(limits: Limits, gpus: int) -> Section:
    """`gpus`: of this machine."""
    findings = [_shm(limits.shm_bytes / GIB, gpus), _files(limits.files)]
    if gpus:
        findings.append(_locked(limits.locked_bytes))
    return Section(title="Limits", findings=findings)


def _shm(size_gib: float, gpus: int) -> Finding:
    advised = SHM_BASE_GIB + SHM_GPU_GIB * gpus if gpus else SHM_LEAST_GIB
    if size_gib >= advised:
        return ok("/dev/shm", f"{size_gib:.1f} GiB")
    mend = (
        f"give it {advised} GiB (mount -o remount,size={advised}G /dev/shm; in a container --ipc=host or "
        f"--shm-size={advised}g)"
    )
    if gpus > 1 and size_gib < SHM_LEAST_GIB:
        return missing("/dev/shm", f"{size_gib:.2f} GiB are too little for NCCL: {mend}")
    return warning("/dev/shm", f"{size_gib:.2f} GiB, so Ray keeps its objects on a disk, which is slower: {mend}")


def _files(most: int) -> Finding:
    if most == resource.RLIM_INFINITY or most >= FILES:
        return ok("open files", "unlimited" if most == resource.RLIM_INFINITY else str(most))
    mend = f"ulimit -Hn {FILES} as root before `ray start`; in a container --ulimit nofile={FILES}"
    if most < FILES_LEAST:
        return missing("open files", f"{most} per process are too few for Ray: {mend}")
    return warning("open files", f"{most} per process, enough for one machine; for a cluster, {mend}")


def _locked(most: int | None) -> Finding:
    if most is None:
        return ok("locked memory", "unlimited")
    return warning(
        "locked memory",
        f"{most >> 10} KiB, too little for InfiniBand: ulimit -l unlimited before `ray start`; in a container "
        "--ulimit memlock=-1",
    )
