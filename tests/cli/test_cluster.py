"""``azr cluster``: what it prints is what sbatch and KubeRay read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
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
    assert (
        gpus == recipes()[name].num_gpus and f"azr run {name} --cluster.address auto" in manifest["spec"]["entrypoint"]
    )


def at(tree: Any, path: str) -> list[Any]:
    for name in filter(None, path.split(".")):
        tree = tree.get(name, [])
    return tree if isinstance(tree, list) else [tree]


def test_knobs_reach_the_run_and_sandboxes_are_one_of_two(capsys):
    knobs = [
        "--run.steps",
        "7",
        "--run.name",
        "My run",
        "--run.deterministic",
        "--selfplay.kinds",
        "deduction",
        "induction",
    ]
    script = printed(capsys, "slurm", "azr_coder7b_ppo", "--gpus", "4", "--gpu-memory", "96", *knobs)
    assert directives(script)["nodes"] == "2" and directives(script)["job-name"] == "my-run"
    said = "--run.steps 7 --run.name 'My run' --run.deterministic true --selfplay.kinds deduction induction --cluster."
    assert said in script and "compgen -G 'orz_ckpt/My run/checkpoints/step_*'" in script
    inside, socket = (printed(capsys, "kuberay", "azr_coder7b_ppo", *more) for more in ([], ["--docker-socket"]))
    assert "Unconfined" in inside and "fsGroup: 1000" in inside and "docker.sock" not in inside
    assert "Unconfined" not in socket and "runAsUser: 0" in socket
    assert socket.count("mountPath: /var/run/docker.sock") == 1


def test_a_manifest_says_which_files_its_pods_must_find(tmp_path, capsys):
    said = "# The run reads data/orz.jsonl, from /azr in the image: put it in there, or on the claim"
    assert said in printed(capsys, "kuberay", "orz_32b_ppo")
    assert "The run reads" not in printed(capsys, "kuberay", "orz_32b_ppo", "--data.path", "orz_ckpt/orz.jsonl")
    assert "The run reads" not in printed(capsys, "kuberay", "azr_coder7b_ppo")
    (tmp_path / "mine.yaml").write_text("base: azr_coder7b_ppo\n")
    assert f"# The run reads {tmp_path}/mine.yaml, " in printed(capsys, "kuberay", str(tmp_path / "mine.yaml"))


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
        "srun": 'while [[ $1 == --* ]]; do shift; done\nexec "$@" --num-cpus 8',
        "scontrol": f'echo "$@" >> {tmp_path}/scontrol',
    }
    for name, text in stand_ins.items():
        (tools / name).write_text(f"#!/bin/bash\n{text}\n")
        (tools / name).chmod(0o755)
    path = f"{tools}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    slurm = {
        "SLURM_SUBMIT_DIR": str(ROOT),
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURMD_NODENAME": "here",
    }
    environment = os.environ | slurm | {"PATH": path}

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
