"""A recipe against machines of several sizes."""

from dataclasses import replace

import pytest

from azr.cli.plan import recipes
from azr.config import TRRPP, Config
from azr.doctor import recipe
from azr.doctor.findings import Finding, Mark
from azr.doctor.gpus import Gpu, Gpus
from azr.doctor.model import Hub
from azr.doctor.recipe import GIB, Here

FLAGSHIP = recipes()["azr_coder7b_ppo"]
MINI = recipes()["azr_14m_mini"]


def gpus(number: int, gib: int = 80) -> Gpus:
    return Gpus(
        found=tuple(Gpu(index=i, name="H100", total_mib=gib << 10, used_mib=0, driver="580") for i in range(number))
    )


def on(config: Config, found: Gpus, memory_gib: float, tmp_path) -> Finding:
    hub = Hub(cache=tmp_path, offline=False)
    section = recipe.check(config, "azr_coder7b_ppo", hub, Here(gpus=found, memory=int(memory_gib * GIB)))
    assert [each.name for each in section.findings] == ["GPUs", "model.path"]
    return section.findings[0]


def test_eight_large_gpus(tmp_path):
    found = on(FLAGSHIP, gpus(8), 1024, tmp_path)
    assert found.mark is Mark.OK and "it takes 8 of 8" in found.says


def test_too_few_gpus_are_missing_and_the_plan_says_what_to_try(tmp_path):
    found = on(FLAGSHIP, gpus(4), 1024, tmp_path)
    assert found.mark is Mark.MISSING
    assert "asks for 8 GPUs and there are 4" in found.says and "--train.data-parallel 4" in found.says
    assert "azr plan azr_coder7b_ppo --gpus 4 --gpu-memory 80" in found.says


@pytest.mark.parametrize("gib, memory_gib, part", [(40, 1024, "GiB of 38.5"), (80, 64, "GiB of host memory")])
def test_what_does_not_fit_by_the_plan_is_a_warning(gib, memory_gib, part, tmp_path):
    found = on(FLAGSHIP, gpus(8, gib), memory_gib, tmp_path)
    assert found.mark is Mark.WARNING and part in found.says


def test_a_machine_without_gpus(tmp_path):
    assert on(MINI, gpus(0), 8, tmp_path).mark is Mark.OK
    large = on(FLAGSHIP, gpus(0), 24, tmp_path)
    assert large.mark is Mark.MISSING and "a machine with 8 GPUs" in large.says
    cuda = replace(MINI, train=replace(MINI.train, device="cuda"))
    assert on(cuda, gpus(0), 24, tmp_path).mark is Mark.MISSING
    assert on(replace(MINI, train=replace(MINI.train, device="cpu")), gpus(8), 24, tmp_path).mark is Mark.OK


def test_a_model_of_unknown_shape(tmp_path):
    config = replace(FLAGSHIP, model=replace(FLAGSHIP.model, path="someone/new-model"))
    assert on(config, gpus(8), 1024, tmp_path).mark is Mark.WARNING
    assert on(config, gpus(4), 1024, tmp_path).mark is Mark.MISSING
    assert recipe.checkpoint_bytes(config) == 0


def test_a_checkpoint_is_the_state_of_what_is_trained_and_the_policy(tmp_path):
    policy, critic = 7_615_616_512, 7_615_616_512 - 152_064 * 3584 + 3585
    assert recipe.checkpoint_bytes(FLAGSHIP) == 14 * policy + 12 * critic
    free = replace(FLAGSHIP, algorithm=replace(FLAGSHIP.algorithm, estimator=TRRPP(), kl_coef=0.0))
    assert recipe.checkpoint_bytes(free) == 14 * policy


def test_on_a_cluster_only_the_model_is_looked_for(tmp_path):
    section = recipe.check(FLAGSHIP, "x", Hub(cache=tmp_path, offline=True), None)
    assert [(each.name, each.mark) for each in section.findings] == [("model.path", Mark.MISSING)]
