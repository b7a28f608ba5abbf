"""Files of examples/ that run a recipe on Slurm and Kubernetes are what sbatch and KubeRay read."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from azr.plan.inputs import GIB, Assumptions, ClusterSpec
from azr.plan.planner import plan_run
from playground.azr_coder7b_ppo import config
from tests.requirements import ROOT

SCRIPT, MANIFEST = (ROOT / "examples" / name for name in ("slurm.sh", "raycluster.yaml"))
CONTAINER = {"name", "image", "workingDir", "resources", "volumeMounts", "env", "securityContext"}
FIELDS: dict[str, set[str]] = {
    "": {"apiVersion", "kind", "metadata", "spec"},
    "spec": {"entrypoint", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished", "backoffLimit", "rayClusterSpec"},
    "spec.rayClusterSpec": {"rayVersion", "authOptions", "headGroupSpec", "workerGroupSpecs"},
    "spec.rayClusterSpec.headGroupSpec": {"rayStartParams", "template"},
    "spec.rayClusterSpec.workerGroupSpecs": {
        *("groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"),
    },
}
"""Fields of RayJob and RayCluster in ray.io/v1 that are used, after KubeRay's reference of its API."""


def host_memory_gib() -> float:
    """Host memory that trainers of the recipe of both files keep on a node of eight GPUs."""
    plan, _ = plan_run(config, ClusterSpec(gpus=8, gpu_memory_gib=80, nodes=1), Assumptions())
    return sum(plan.host.values()) / GIB


def test_the_script_is_one_that_bash_reads_with_room_for_its_recipe() -> None:
    script = SCRIPT.read_text()
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    asked = {name: value for name, _, value in (line.partition("=") for line in lines)}
    assert int(asked["nodes"]) * int(asked["gpus-per-node"]) == config.num_gpus
    assert asked["ntasks-per-node"] == "1" and asked["signal"].startswith("B:TERM@")
    assert int(asked["mem"].removesuffix("G")) > host_memory_gib()
    assert asked["job-name"] == config.run.name
    numbers = "; ".join(line for line in script.splitlines() if line.startswith(("port=", "workers=", "client=")))
    jobs = []
    for job in (4710, 4711):
        program = f"SLURM_JOB_ID={job}; {numbers}; echo $port $workers $client"
        jobs.append(subprocess.run(["bash", "-c", program], capture_output=True, check=True).stdout.split())
    (gcs, workers, client), (other_gcs, other_workers, _) = [list(map(int, job)) for job in jobs]
    assert gcs != other_gcs and workers < client < other_workers < 20000, "two jobs on a node share no port"
    assert script.startswith("#!/bin/bash\n#SBATCH ") and f'\nazr run {config.run.name} "$@" --run.name' in script


@pytest.mark.parametrize("options", [False, True], ids=["as it is", "with every option"])
def test_the_manifest_has_known_fields_and_room_for_its_recipe(options: bool) -> None:
    text = MANIFEST.read_text()
    manifest = yaml.safe_load(re.sub(r"^( *)#(?=\S)", r"\1", text, flags=re.MULTILINE) if options else text)
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayJob")
    for path, fields in FIELDS.items():
        for node in at(manifest, path):
            assert set(node) <= fields, path
    (cluster,) = at(manifest, "spec.rayClusterSpec")
    assert f'"ray[default]=={cluster["rayVersion"]}"' in (ROOT / "pyproject.toml").read_text()
    gpus = 0
    for group in [cluster["headGroupSpec"], *cluster.get("workerGroupSpecs", [])]:
        (container,) = group["template"]["spec"]["containers"]
        volumes = {volume["name"] for volume in group["template"]["spec"]["volumes"]}
        assert set(container) <= CONTAINER and {mount["name"] for mount in container["volumeMounts"]} == volumes
        limits = container["resources"]["limits"]
        assert limits == container["resources"]["requests"] and ("rdma/hca_shared_devices_a" in limits) == options
        assert int(limits["memory"].removesuffix("Gi")) > host_memory_gib()
        gpus += int(limits["nvidia.com/gpu"]) * group.get("replicas", 1)
    assert gpus == config.num_gpus * (1 + options)
    name = config.run.name
    assert f"azr run {name} --run.name {name} --cluster.address auto" in manifest["spec"]["entrypoint"]
    subprocess.run(["bash", "-n"], input=manifest["spec"]["entrypoint"], text=True, check=True)


def at(tree: Any, path: str) -> list[Any]:
    for name in filter(None, path.split(".")):
        tree = tree.get(name, [])
    return tree if isinstance(tree, list) else [tree]


SLURM = Path(__file__).with_name("slurm.conf").read_text()
"""Two nodes of this machine, whose tasks are bound to the cores that they ask for."""


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Slurm's own daemons, on ports of their own. Paths of their sockets must be short."""
    if shutil.which("slurmctld") is None or shutil.which("munged") is None or os.geteuid():
        pytest.skip("needs root and Debian's slurm-wlm and munge")
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs two cores")
    folder, host = Path(tempfile.mkdtemp(prefix="slurm")), socket.gethostname()
    (folder / "state").mkdir()
    (folder / "key").write_bytes(os.urandom(1024))
    (folder / "key").chmod(0o600)
    (folder / "slurm.conf").write_text(SLURM.format(folder=folder, host=host))
    devices = "".join(f"NodeName=node[0-1] Name=gpu File=/dev/tty{index}\n" for index in range(8))
    (folder / "gres.conf").write_text(devices)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)  # nproc would count by it
    monkeypatch.setenv("SLURM_CONF", str(folder / "slurm.conf"))
    munge = ["munged", "--force", "--foreground", f"--key-file={folder}/key", f"--socket={folder}/munge.socket"]
    munge += [f"--{kind}-file={folder}/munge.{kind}" for kind in ("pid", "seed", "log")]
    commands = [munge, ["slurmctld", "-D", "-c"], ["slurmd", "-D", "-N", "node0"], ["slurmd", "-D", "-N", "node1"]]
    daemons = []
    for command in commands:
        daemons.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        time.sleep(1)
    yield
    for daemon in reversed(daemons):
        daemon.kill()
        daemon.wait()
    shutil.rmtree(folder)


def test_slurm_gives_ray_all_cores_of_every_node_and_an_address_that_others_reach(slurm, tmp_path):
    """Slurm is real; `ray` and `azr` write down what they are called with and the cores that they may use."""
    script, tools = tmp_path / "job.sh", tmp_path / ".venv" / "bin"
    shutil.copy(SCRIPT, script)
    tools.mkdir(parents=True)
    calls = tmp_path / "calls"
    note = f'echo "$(basename $0) on $SLURMD_NODENAME with $(nproc): $*" >> {calls}'
    bodies = {
        "ray": f"[ $1 = status ] && exec grep -q -- --head {calls}\n{note}\nexec sleep 60",
        "azr": f"until grep -q 'start --address' {calls}; do sleep 0.1; done\n{note}",
    }
    for name, body in bodies.items():
        (tools / name).write_text(f"#!/bin/bash\n{body}\n")
        (tools / name).chmod(0o755)
    sizes = ["--job-name", "first", "--nodes", "2", "--gpus-per-node", "1", "--cpus-per-task", "2"]
    subprocess.run(["sbatch", "--wait", *sizes, script, "--run.steps", "7"], cwd=tmp_path, check=True, timeout=300)
    head, other, run = calls.read_text().splitlines()
    assert head.startswith("ray on node0 with 2: start --head --node-ip-address 127.0.0.1 --port")
    assert other.startswith("ray on node1 with 2: start --address 127.0.0.1:")
    said = "azr on node0 with 2: run azr_coder7b_ppo --run.steps 7 --run.name first --cluster.address 127.0.0.1:"
    assert run.startswith(said)


@pytest.mark.long
def test_the_script_runs_stops_when_slurm_says_so_and_goes_on(tmp_path):
    """With the mini on this machine; srun runs its command here, and scontrol notes what it was asked."""
    sizes = ["--run.steps", "3", "--eval.every", "0", "--checkpoint.every", "1"]
    sizes += ["--selfplay.proposer-prompts", "4", "--selfplay.solver-prompts", "4", "--selfplay.seed-tasks", "4"]
    script = tmp_path / "job.sh"
    script.write_text(SCRIPT.read_text().replace("azr run azr_coder7b_ppo", "azr run azr_14m_mini"))
    tools = tmp_path / "tools"
    tools.mkdir()
    stand_ins = {
        "srun": 'while [[ $1 == --* ]]; do shift; done\n[ "$1" = ray ] && exec "$@" --num-cpus 8\nexec "$@"',
        "scontrol": f'[ "$1" = show ] && echo NodeAddr=127.0.0.1 || echo "$@" >> {tmp_path}/scontrol',
    }
    for name, text in stand_ins.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    slurm = {"SUBMIT_DIR": tmp_path, "JOB_ID": 4711, "JOB_NAME": "first", "JOB_NUM_NODES": 1, "JOB_NODELIST": "here"}
    slurm["CPUS_PER_TASK"] = 2
    environment = os.environ | {f"SLURM_{name}": str(value) for name, value in slurm.items()}
    environment |= {"SLURMD_NODENAME": "here", "PATH": path}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(script), *sizes], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    job = start()
    lines = []
    for line in job.stdout:
        lines.append(line)
        if line.startswith("step 1/3 · valid"):
            job.send_signal(signal.SIGTERM)
    assert job.wait(60) == 128 + signal.SIGTERM, "".join(lines)
    assert (tmp_path / "scontrol").read_text() == "requeue 4711\n"
    time.sleep(5)  # the port of Ray's head is free again
    job = start()
    output, _ = job.communicate(timeout=500)
    assert job.returncode == 0 and "continuing after step" in output, output[-3000:]
    assert (tmp_path / "orz_ckpt" / "first" / "checkpoints" / "step_000003").is_dir()
