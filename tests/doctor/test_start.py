"""A run that cannot start on this machine is refused before anything starts."""

import os
from contextlib import nullcontext

import pytest
from ray._common.utils import get_default_ray_temp_dir
from ray._private.utils import validate_socket_filepath

from azr.config_tree import override
from azr.doctor import machine
from azr.doctor.machine import Gpu, Gpus, check_fit, check_machine
from azr.errors import UserError
from tests.e2e.three_kinds import config as mini


def cards(gib: float, count: int = 1) -> Gpus:
    gpu = Gpu(index=0, name="card", total_mib=int(gib * 1024), used_mib=0, driver="580")
    return Gpus(all=(gpu,) * count)


def test_a_gpu_that_is_certainly_too_small_is_refused_and_one_that_may_be_is_warned_of():
    values = {"model.path": "Qwen/Qwen2.5-1.5B", "algorithm.estimator": "trrpp", "algorithm.kl.coef": 0}
    large = override(mini, {**values, "rollout.max_prompt_tokens": 3000})
    # Parameters, float32 gradients, master copy and moments: 18 bytes for each of 1.54 billion parameters.
    with pytest.raises(UserError, match=r"take 25\.9 of a GPU's 24\.0 GiB .* Set .*--train\.shard offload"):
        check_fit(large, cards(24))
    (said,) = check_fit(large, cards(32))
    assert "by the plan's estimate the run does not fit on 1 node(s) of 1 GPU(s) with 32 GiB" in said
    assert check_fit(large, cards(80)) == []
    with pytest.raises(UserError, match=r"take 3\.0 GiB of the 2\.4 .* Set --rollout.gpu-memory-utilization 0.85"):
        check_fit(override(large, {"rollout.gpu_memory_utilization": 0.03}), cards(80))
    offloaded = override(large, {"train.shard": "offload"})
    assert len(check_fit(offloaded, cards(24))) == 1, "no certain part is too large, but the estimate is"
    assert check_fit(offloaded, cards(80)) == []


def test_where_no_gpu_is_known_only_a_supposed_one_is_judged():
    large = override(mini, {"model.path": "Qwen/Qwen2.5-14B"})
    none, other = Gpus(has_smi=False), override(large, {"cluster.address": "auto"})
    assert check_fit(large, none) == check_fit(other, cards(8)) == []
    assert check_fit(mini, none, suppose=True) == []
    with pytest.raises(
        UserError, match=r"does not fit on 1 node\(s\) of 1 GPU\(s\) with 80 GiB: .* of a GPU's 80\.0 GiB"
    ):
        check_fit(large, none, suppose=True)
    assert check_fit(override(large, {"train.device": "cpu"}), cards(8), suppose=True) == []
    assert check_fit(override(large, {"model.path": "nobody/knows"}), cards(8)) == []


def test_a_run_on_a_gpu_needs_one():
    cuda = override(mini, {"train.device": "cuda"})
    for found, why in (
        (Gpus(has_smi=False), "there is no nvidia-smi"),
        (Gpus(), "nvidia-smi lists none"),
        (Gpus(error="no driver"), "no driver"),
    ):
        with pytest.raises(
            UserError, match=rf"train\.device is cuda, but this machine has no GPU \({why}\): set it to auto"
        ):
            check_machine(cuda, found)
        check_machine(mini, found)
        check_machine(override(cuda, {"cluster.address": "auto"}), found)
    check_machine(cuda, cards(80))


def test_a_containers_small_shared_memory_is_refused_where_an_engine_has_several_gpus(monkeypatch):
    config = override(mini, {"rollout.tensor_parallel": 2, "train.data_parallel": 2})
    monkeypatch.setattr(machine, "free_bytes", lambda folder: 64 << 20)
    check_machine(mini, Gpus())
    check_machine(override(config, {"cluster.address": "auto"}), Gpus())
    with pytest.raises(UserError, match=r"/dev/shm has 0\.06 GiB free, but engines of 2 GPUs take 0\.70: .*--shm-size"):
        check_machine(config, Gpus())
    monkeypatch.setattr(machine, "free_bytes", lambda folder: 2 << 30)
    check_machine(config, Gpus())


@pytest.mark.parametrize("variable", ["TMPDIR", "RAY_TMPDIR"])
def test_a_path_that_is_too_long_for_rays_sockets_is_named(variable, monkeypatch):
    monkeypatch.setenv(variable, "/" + "ü" * 40)
    with pytest.raises(
        UserError, match=rf"^{variable} is /ü+, which is too long a path .* at most \d+ bytes"
    ) as raised:
        check_machine(mini, Gpus())
    check_machine(override(mini, {"cluster.address": "auto"}), Gpus())
    longest = int(str(raised.value).partition("at most ")[2].split()[0])
    for length, refused in ((longest, nullcontext()), (longest + 1, pytest.raises(OSError, match="AF_UNIX path"))):
        monkeypatch.setenv(variable, "/" + "x" * (length - 1))
        session = f"session_2026-01-01_00-00-00_000000_{os.getpid()}"
        with refused:
            validate_socket_filepath(os.path.join(get_default_ray_temp_dir(), session, "sockets", "plasma_store"))
    monkeypatch.setenv(variable, "/" + "x" * (longest - 1))
    check_machine(mini, Gpus())
