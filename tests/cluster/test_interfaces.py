"""Processes find each other where a machine's name means the machine itself, and take the GPUs that Ray gave them."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import ray

from azr.config import ClusterConfig, Config, TimeoutConfig, TrainConfig
from azr.hardware import network_environment
from azr.rollout.engine import RolloutEngine
from azr.train.policy import PolicyWorker
from tests import tables

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
CONFIG = Config(
    cluster=ClusterConfig(address="auto"),
    train=TrainConfig(dtype="bfloat16"),
    timeout=TimeoutConfig(start_s=30.0, train_s=30.0),
)
NODES = tables.programs(Path(__file__).with_name("programs.txt"), "shell")["two nodes"]
"""Two network namespaces joined by a cable. In each /etc/hosts has the line that Debian and Ubuntu write."""


def rank_of_two(rank: int, folder: Path) -> None:
    """Form a world with the other namespace's rank."""
    worker = PolicyWorker("policy", rank, 2, "cpu", CONFIG)
    file = folder / "address"
    if rank == 0:
        host, port = worker.create_store()
        file.with_suffix(".new").write_text(f"{host} {port}")
        file.with_suffix(".new").rename(file)
    while not file.exists():
        time.sleep(0.05)
    host, port = file.read_text().split()
    worker.init_process_group((host, int(port)))
    # In one write: both ranks share the output, and `print` may write the end of the line apart.
    sys.stdout.write(f"rank {rank} met its peer{worker.computes_with()}\n")


@pytest.mark.skipif(shutil.which("ip") is None or shutil.which("nsenter") is None, reason="needs iproute2, util-linux")
def test_ranks_of_two_machines_whose_names_mean_127_0_1_1_find_each_other(tmp_path: Path) -> None:
    entered = ["unshare", "--user", "--map-root-user", "--net", "--mount", "--uts", "--pid", "--fork", "--mount-proc"]
    entered.append("--kill-child")
    if subprocess.run([*entered, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine permits no network namespaces")
    variables = {"FOLDER": str(tmp_path), "PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": 300}
    said = subprocess.run([*entered, "bash", "-c", NODES], env=os.environ | variables, check=False, **pipes)
    met = re.findall(r"rank [01] met its peer; 2 nodes exchange \d+\.\d\d GB/s\n", said.stdout)
    assert said.returncode == 0 and len(met) == 2, said.stdout[-3000:]


def test_the_interface_is_the_one_that_holds_the_address() -> None:
    for name, held in psutil.net_if_addrs().items():
        for each in held:
            if each.family.name == "AF_INET":
                expected = {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": f"={name}"}
                assert network_environment(each.address) == expected
    assert network_environment("192.0.2.77") == {}


def gpus_of_three() -> None:
    """Print which of eight imaginary GPUs two ranks and an engine take. Ray is this process's own."""

    def visible(_: object) -> str | None:
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def chosen(engine: RolloutEngine) -> str | None:
        engine._set_environment()
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    ray.init(address="local", num_cpus=8, num_gpus=8, include_dashboard=False, log_to_driver=False)
    share = {"num_cpus": 0.2, "num_gpus": 1}
    ranks = [ray.remote(PolicyWorker).options(**share).remote("policy", rank, 2, "cuda", CONFIG) for rank in range(2)]
    engine = ray.remote(RolloutEngine).options(**share).remote(Config())
    print(*ray.get([*(rank.__ray_call__.remote(visible) for rank in ranks), engine.__ray_call__.remote(chosen)]))


def test_ranks_and_engines_take_their_own_gpu_where_ray_sets_no_variable() -> None:
    environment = os.environ | {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
    command = [sys.executable, "-m", "tests.cluster.test_interfaces"]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    found = said.stdout.split()
    assert said.returncode == 0, said.stderr[-3000:]
    assert len(set(found)) == 3 and {*found} <= {str(index) for index in range(8)}


if __name__ == "__main__":
    rank_of_two(int(sys.argv[1]), Path(sys.argv[2])) if sys.argv[1:] else gpus_of_three()
