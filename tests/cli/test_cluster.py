"""``azr cluster``: what it prints is what sbatch and KubeRay read."""

import os
import shlex
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

from azr.cli.main import dispatch
from tests.recipes import recipes

ROOT = Path(__file__).parents[2]
CONTAINER = {"name", "image", "workingDir", "resources", "volumeMounts", "securityContext"}
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


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert dispatch(["cluster", *argv]) == 0
    return capsys.readouterr().out


def directives(script: str) -> dict[str, str]:
    lines = [line.removeprefix("#SBATCH --") for line in script.splitlines() if line.startswith("#SBATCH")]
    return {name: value for name, _, value in (line.partition("=") for line in lines)}


@pytest.mark.parametrize("name", ["azr_14m_mini", "azr_coder7b_ppo", "orz_32b_ppo"])
def test_every_recipe_is_a_script_that_bash_reads(name, capsys):
    script = printed(capsys, "slurm", name)
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    asked = directives(script)
    assert int(asked["nodes"]) * int(asked["gpus-per-node"]) == recipes()[name].num_gpus
    assert asked["ntasks-per-node"] == "1" and asked["signal"].startswith("B:TERM@")
    assert script.startswith("#!/bin/bash\n#SBATCH ") and f"\nazr run {name} --cluster.address" in script


@pytest.mark.parametrize("name", ["azr_14m_mini", "azr_coder7b_ppo", "orz_32b_ppo"])
def test_every_recipe_is_a_manifest_of_known_fields(name, capsys):
    manifest = yaml.safe_load(printed(capsys, "kuberay", name))
    assert (manifest["apiVersion"], manifest["kind"]) == ("ray.io/v1", "RayJob")
    for path, fields in FIELDS.items():
        for node in at(manifest, path):
            assert set(node) <= fields, path
    pods = [*at(manifest, "spec.rayClusterSpec.headGroupSpec"), *at(manifest, "spec.rayClusterSpec.workerGroupSpecs")]
    gpus = 0
    for group in pods:
        (container,) = group["template"]["spec"]["containers"]
        volumes = {volume["name"] for volume in group["template"]["spec"]["volumes"]}
        assert set(container) <= CONTAINER and {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert container["resources"]["limits"] == container["resources"]["requests"]
        gpus += int(container["resources"]["limits"]["nvidia.com/gpu"]) * group.get("replicas", 1)
    assert gpus == recipes()[name].num_gpus
    assert f"azr run {name} --cluster.address auto" in manifest["spec"]["entrypoint"]


def at(tree: Any, path: str) -> list[Any]:
    for name in filter(None, path.split(".")):
        tree = tree.get(name, [])
    return tree if isinstance(tree, list) else [tree]


def test_knobs_reach_the_run_and_sandboxes_are_one_of_two(capsys):
    knobs = "--run.steps 7 --run.name 'My run' --run.deterministic --selfplay.kinds deduction induction"
    script = printed(capsys, "slurm", "azr_coder7b_ppo", "--gpus", "4", "--gpu-memory", "96", *shlex.split(knobs))
    assert directives(script)["nodes"] == "2" and directives(script)["job-name"] == "my-run"
    said = "--run.steps 7 --run.name 'My run' --run.deterministic true --selfplay.kinds deduction,induction --cluster."
    assert said in script and "compgen -G 'orz_ckpt/My run/checkpoints/step_*'" in script
    inside, docker = (printed(capsys, "kuberay", "azr_coder7b_ppo", *more) for more in ([], ["--docker-socket"]))
    assert "Unconfined" in inside and "fsGroup: 1000" in inside and "docker.sock" not in inside
    assert "Unconfined" not in docker and "runAsUser: 0" in docker
    assert docker.count("mountPath: /var/run/docker.sock") == 1


def test_pods_get_the_nodes_infiniband_where_its_resource_is_named(capsys):
    for more in ([], ["--docker-socket"]):
        manifest = yaml.safe_load(printed(capsys, "kuberay", "azr_7b_ppo", "--rdma", "rdma/hca", *more))
        (container,) = at(manifest, "spec.rayClusterSpec.headGroupSpec.template.spec.containers")
        assert container["resources"]["requests"]["rdma/hca"] == container["resources"]["limits"]["rdma/hca"] == "1"
        assert "IPC_LOCK" in container["securityContext"]["capabilities"]["add"]
    assert "IPC_LOCK" not in printed(capsys, "kuberay", "azr_7b_ppo")


def test_a_manifest_says_which_files_its_pods_must_find(tmp_path, capsys):
    said = "# The run reads data/orz.jsonl, from /azr in the image: put it in there, or on the claim"
    assert said in printed(capsys, "kuberay", "orz_32b_ppo")
    assert "The run reads" not in printed(capsys, "kuberay", "orz_32b_ppo", "--data.path", "orz_ckpt/orz.jsonl")
    assert "The run reads" not in printed(capsys, "kuberay", "azr_coder7b_ppo")
    (tmp_path / "mine.yaml").write_text("base: azr_coder7b_ppo\n")
    assert f"# The run reads {tmp_path}/mine.yaml, " in printed(capsys, "kuberay", str(tmp_path / "mine.yaml"))


SLURM = """
ClusterName=two_nodes
SlurmctldHost={host}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool_%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmctldPort=16817
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
TaskPluginParam=cores
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=node[0-1] NodeHostname={host} NodeAddr=127.0.0.1 Port=[16818-16819] CPUs=2 CoresPerSocket=2 Gres=gpu:8 RealMemory=9000000 CpuBind=core State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""  # noqa: E501
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


def test_slurm_gives_ray_all_cores_of_every_node_and_an_address_that_others_reach(slurm, tmp_path, capsys):
    """Slurm is real; `ray` and `azr` write down what they are called with and the cores that they may use."""
    script, tools = tmp_path / "job.sh", tmp_path / ".venv" / "bin"
    sizes = ["--train.data-parallel", "2", "--rollout.engines", "2", "--gpus", "1"]
    text = printed(capsys, "slurm", "azr_14m_mini", *sizes)
    script.write_text(text.replace("--cpus-per-task=8", "--cpus-per-task=2"))
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
    subprocess.run(["sbatch", "--wait", script], cwd=tmp_path, check=True, timeout=300)
    head, other, run = calls.read_text().splitlines()
    assert head.startswith("ray on node0 with 2: start --head --node-ip-address 127.0.0.1 --port")
    assert other.startswith("ray on node1 with 2: start --address 127.0.0.1:")
    assert run.startswith("azr on node0 with 2: run azr_14m_mini ") and "--cluster.address 127.0.0.1:" in run


@pytest.mark.long
def test_the_script_runs_stops_when_slurm_says_so_and_goes_on(tmp_path, capsys):
    """With the mini on this machine; srun runs its command here, and scontrol notes what it was asked."""
    sizes = ["--run.steps", "3", "--eval.every", "0", "--checkpoint.every", "1", "--run.root", str(tmp_path / "runs")]
    sizes += ["--selfplay.proposer-prompts", "4", "--selfplay.solver-prompts", "4", "--selfplay.seed-tasks", "4"]
    script = tmp_path / "job.sh"
    script.write_text(printed(capsys, "slurm", "azr_14m_mini", *sizes))
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
    slurm = {"SUBMIT_DIR": ROOT, "JOB_ID": 4711, "JOB_NUM_NODES": 1, "JOB_NODELIST": "here", "CPUS_PER_TASK": 2}
    environment = os.environ | {f"SLURM_{name}": str(value) for name, value in slurm.items()}
    environment |= {"SLURMD_NODENAME": "here", "PATH": path}

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(script)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
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
    assert job.returncode == 0 and "going on after step" in output, output[-3000:]
    assert (tmp_path / "runs" / "azr_14m_mini" / "checkpoints" / "step_000003").is_dir()
