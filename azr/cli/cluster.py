"""Print a Slurm script (for sbatch) or a KubeRay manifest (for kubectl apply) that runs a recipe, and goes on with the
run of its name where it has a checkpoint. Any --section.key of the config may follow. docs/cluster.md says what the
nodes need."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from azr.cli.options import RECIPE_HELP, Parser, is_file, load_recipe, matching, value_text, whole
from azr.config import Config
from azr.config_tree import ESTIMATOR, knobs, leaves, override
from azr.datasets.preparing import is_on_hub
from azr.errors import UserError
from azr.plan.inputs import GIB, Assumptions, ClusterSpec
from azr.plan.planner import plan_run
from azr.prepare import check

_MARGIN_GIB = 64
"""Host memory of a node beside what trainers keep there: processes of the run, Ray's object store, loading a model."""
_CPUS_PER_GPU = 8
_SHM_GIB = 16
_CLAIM = "orz_ckpt"
"""Folder of the clone that pods share."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Data of both scripts; GPUs, CPUs and host memory are those of a node."""

    name: str
    nodes: int
    gpus: int
    cpus: int
    memory_gib: int
    command: tuple[str, ...]
    """Command of the run, without the cluster's address and `--resume`."""
    folder: str
    """Run directory."""
    files: tuple[str, ...]
    """The user's own files that the run reads."""


def main(argv: Sequence[str]) -> int:
    """Prints and returns 0. Raises UserError for a mistake in the options, or a recipe that does not fit."""
    options, values = parser().parse_with_knobs(argv)
    config = override(load_recipe(options.recipe), values)
    check(config)
    if config.cluster.address is not None:
        raise UserError("azr cluster starts the cluster itself: leave --cluster.address out.")
    if options.scheduler == "kuberay" and not _is_on_claim(config.run.root):
        raise UserError(
            f"run.root {config.run.root} is not on the volume claim, so its files would be lost with the pods: set it "
            f"to {_CLAIM} or a folder below."
        )
    job = _job(options.recipe, config, values, options.gpus, options.gpu_memory)
    script = slurm(job, options.hours)
    if options.scheduler == "kuberay":
        script = kuberay(job, options.image, options.claim, options.rdma, docker=options.docker_socket)
    print(script, end="")
    return 0


def parser() -> Parser:
    parser = Parser("cluster", __doc__)
    schedulers = ("slurm", "kuberay")
    parser.add_argument("scheduler", choices=schedulers, metavar="|".join(schedulers), help="what to print")
    parser.add_argument("recipe", metavar="RECIPE", help=RECIPE_HELP)
    parser.add_argument("--gpus", type=whole(1, 64), default=8, help="GPUs per node")
    parser.add_argument("--gpu-memory", type=whole(1, 10_000), default=80, metavar="GIB", help="memory of one GPU")
    hours = "slurm: time limit of a job in hours; then it is saved and queued again"
    parser.add_argument("--hours", type=whole(1, 10_000), default=24, help=hours)
    image = matching("an image such as registry.example/azr:latest", r"[A-Za-z0-9][\w./:@-]*")
    parser.add_argument("--image", type=image, default="azr", help="kuberay: training image, from the Dockerfile")
    name = matching("a name of Kubernetes, such as azr-runs", r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
    claim = "kuberay: persistent volume claim for runs and models, writable by all pods"
    parser.add_argument("--claim", type=name, default="azr", help=claim)
    parser.add_argument("--rdma", metavar="RESOURCE", help="kuberay: InfiniBand resource, as rdma/hca_shared_devices_a")
    parser.add_argument("--docker-socket", action="store_true", help="kuberay: sandboxes are containers of the node's "
        "own Docker engine, whose socket makes a pod root on the node; without it they are bubblewrap's inside the "
        "pod")  # fmt: skip
    return parser


def _job(recipe: str, config: Config, values: dict[str, Any], gpus: int, gpu_memory: float) -> Job:
    gpus = min(gpus, config.num_gpus)
    nodes = -(-config.num_gpus // gpus)
    plan, _ = plan_run(config, ClusterSpec(gpus=gpus, gpu_memory_gib=gpu_memory, nodes=nodes), Assumptions())
    if plan.problems:
        raise UserError(f"{recipe} does not fit on {nodes} node(s) of {gpus} GPU(s): {plan.problems[0]}. See azr plan.")
    resolved = leaves(config)
    resolved[ESTIMATOR] = resolved.get(f"{ESTIMATOR}.function", resolved[ESTIMATOR])  # a plug-in's has its own name
    options = [word for path in values for word in (knobs()[path].option, value_text(resolved[path]))]
    return Job(
        name=re.sub(r"[^a-z0-9-]+", "-", config.run.name.lower()).strip("-") or "azr",
        nodes=nodes,
        gpus=gpus,
        cpus=_CPUS_PER_GPU * gpus,
        memory_gib=math.ceil(sum(plan.host.values()) / GIB) + _MARGIN_GIB,
        command=("azr", "run", recipe, *options),
        folder=f"{config.run.root}/{config.run.name}",
        files=_files(recipe, config),
    )


def _files(recipe: str, config: Config) -> tuple[str, ...]:
    """Files and folders of the user's own that the run reads."""
    rows = None if config.data.path is None or is_on_hub(config.data.path) else config.data.path
    named = (rows, config.selfplay.seeds, config.eval.data, config.safety.patterns)
    return (*([recipe] if is_file(recipe) else []), *filter(None, named))


def _is_on_claim(path: str) -> bool:
    """Whether pods find a path, from the clone's folder, on their volume."""
    return Path(path).parts[:1] == (_CLAIM,) and ".." not in Path(path).parts


def slurm(job: Job, hours: int) -> str:
    """A script for sbatch, to be sent from the clone's folder, which all nodes see at the same path."""
    checkpoints = shlex.quote(f"{job.folder}/checkpoints/step_*")
    filled = vars(job) | {"hours": hours, "run": shlex.join(job.command), "checkpoints": checkpoints}
    template = Path(__file__).with_name("slurm.sh").read_text(encoding="utf-8")
    return re.sub("@([a-z_]+)@", lambda place: str(filled[place[1]]), template)


def kuberay(job: Job, image: str, claim: str, rdma: str | None, *, docker: bool) -> str:
    """A manifest of a RayJob, whose head is a node of the run as the others are."""
    checkpoints = shlex.quote(f"/azr/{job.folder}/checkpoints/step_*")
    resume = f"$(compgen -G {checkpoints} >/dev/null && echo --resume)"
    pod = partial(_pod, job=job, image=image, claim=claim, rdma=rdma, docker=docker)
    run = f"cd /azr && exec {shlex.join(job.command)} --cluster.address auto {resume}"
    cluster: dict[str, Any] = {
        "rayVersion": metadata.version("ray"),
        "authOptions": {"mode": "token"},
        "headGroupSpec": {"rayStartParams": {"dashboard-host": "0.0.0.0"}, "template": pod("head")},
    }
    if job.nodes > 1:
        others: dict[str, Any] = {"groupName": "others"}
        others |= dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), job.nodes - 1)
        others |= {"rayStartParams": {}, "template": pod("other")}
        cluster["workerGroupSpecs"] = [others]
    manifest = {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": job.name},
        "spec": {
            "entrypoint": f"bash -c {shlex.quote(run)}",
            "shutdownAfterJobFinishes": True,
            "ttlSecondsAfterFinished": 600,
            "backoffLimit": 3,
            "rayClusterSpec": cluster,
        },
    }
    comment = _DOCKER_SOCKET if docker else _BUBBLEWRAP
    if lacking := [file for file in job.files if not _is_on_claim(file)]:
        comment += _FILES.format(files=", ".join(lacking), claim=_CLAIM)
    return _KUBERAY + comment + yaml.safe_dump(manifest, sort_keys=False, width=1000)


_KUBERAY = "# kubectl apply -f FILE, where KubeRay's operator runs (1.5 or newer, for authOptions).\n"
_DOCKER_SOCKET = """\
# Sandboxes of model-written code are containers of the node's Docker engine, whose socket makes a pod root on the node.
"""
_BUBBLEWRAP = """\
# Sandboxes of model-written code are bubblewrap's, inside the pods, which have no profile of seccomp and AppArmor for
# that. The nodes must allow namespaces to ordinary users. --docker-socket is the other way.
"""
_FILES = """\
# The run reads {files}, from /azr in the image: put it in there, or on the claim and name it as {claim}/….
"""


def _pod(name: str, job: Job, image: str, claim: str, rdma: str | None, *, docker: bool) -> dict[str, Any]:
    resources = {"cpu": str(job.cpus), "memory": f"{job.memory_gib}Gi", "nvidia.com/gpu": str(job.gpus)}
    if rdma is not None:
        resources[rdma] = "1"
    mounts = [
        {"name": "shared", "mountPath": f"/azr/{_CLAIM}", "subPath": _CLAIM},
        {"name": "shared", "mountPath": "/home/azr/.cache/huggingface", "subPath": "huggingface"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    volumes: list[dict[str, Any]] = [
        {"name": "shared", "persistentVolumeClaim": {"claimName": claim}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{_SHM_GIB}Gi"}},
    ]
    container: dict[str, Any] = {"name": name, "image": image, "workingDir": "/azr"}
    container |= {"resources": {"limits": resources, "requests": dict(resources)}, "volumeMounts": mounts}
    if docker:
        container["env"] = [{"name": "HOME", "value": "/home/azr"}]
        mounts.append({"name": "docker", "mountPath": "/var/run/docker.sock"})
        volumes.append({"name": "docker", "hostPath": {"path": "/var/run/docker.sock", "type": "Socket"}})
    else:
        container["securityContext"] = {name: {"type": "Unconfined"} for name in ("seccompProfile", "appArmorProfile")}
    if rdma is not None:
        container.setdefault("securityContext", {})["capabilities"] = {"add": ["IPC_LOCK"]}
    # The image's user is not root, so the claim belongs to a group of the pod; the engine's socket is root's.
    user = {"runAsUser": 0} if docker else {"fsGroup": 1000}
    return {"spec": {"securityContext": user, "containers": [container], "volumes": volumes}}
