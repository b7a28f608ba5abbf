"""A recipe against machines of several sizes, and its model: local, or in a hub's cache as huggingface_hub makes it."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from azr.config import TRRPP, Config, KLConfig
from azr.doctor import recipe
from azr.doctor.findings import Finding, Mark
from azr.doctor.machine import Gpu, Gpus
from azr.doctor.recipe import GIB, Hub, Machine
from tests.recipes import recipes

FLAGSHIP = recipes()["azr_coder7b_ppo"]
MINI = recipes()["azr_14m_mini"]


def gpus(number: int, gib: int = 80) -> Gpus:
    return Gpus(
        all=tuple(Gpu(index=i, name="H100", total_mib=gib << 10, used_mib=0, driver="580") for i in range(number))
    )


def on(config: Config, found: Gpus, memory_gib: float, tmp_path) -> Finding:
    hub = Hub(cache=tmp_path, offline=False)
    section = recipe.recipe_section(config, "azr_coder7b_ppo", hub, Machine(gpus=found, memory=int(memory_gib * GIB)))
    assert [each.name for each in section.findings] == ["GPUs", "model.path"]
    return section.findings[0]


def test_eight_large_gpus(tmp_path):
    found = on(FLAGSHIP, gpus(8), 1024, tmp_path)
    assert found.mark is Mark.OK and "it takes 8 of 8" in found.message


def test_too_few_gpus_are_missing_and_the_plan_says_what_to_try(tmp_path):
    found = on(FLAGSHIP, gpus(4), 1024, tmp_path)
    assert found.mark is Mark.MISSING
    assert "asks for 8 GPUs and there are 4" in found.message and "--train.data-parallel 4" in found.message
    assert "azr plan azr_coder7b_ppo --gpus 4 --gpu-memory 80" in found.message


@pytest.mark.parametrize("gib, memory_gib, part", [(36, 1024, "GiB of 34.5"), (80, 64, "GiB of host memory")])
def test_what_does_not_fit_by_the_plan_is_a_warning(gib, memory_gib, part, tmp_path):
    found = on(FLAGSHIP, gpus(8, gib), memory_gib, tmp_path)
    assert found.mark is Mark.WARNING and part in found.message


def test_a_machine_without_gpus(tmp_path):
    assert on(MINI, gpus(0), 8, tmp_path).mark is Mark.OK
    large = on(FLAGSHIP, gpus(0), 24, tmp_path)
    assert large.mark is Mark.MISSING and "a machine with 8 GPUs" in large.message
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
    free = replace(FLAGSHIP, algorithm=replace(FLAGSHIP.algorithm, estimator=TRRPP(), kl=KLConfig(coef=0.0)))
    assert recipe.checkpoint_bytes(free) == 14 * policy


def test_on_a_cluster_only_the_model_is_looked_for(tmp_path):
    section = recipe.recipe_section(FLAGSHIP, "x", Hub(cache=tmp_path, offline=True), None)
    assert [(each.name, each.mark) for each in section.findings] == [("model.path", Mark.MISSING)]


NAME = "Qwen/Qwen2.5-Coder-7B"
COMMIT = "0123abc"


def files(folder: Path, *left_out: str, shards: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    weights = [f"model-{number}.safetensors" for number in range(shards)] or ["model.safetensors"]
    if shards:
        index = {"weight_map": {f"layer.{i}": name for i, name in enumerate(weights)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in {"config.json", "tokenizer_config.json", *weights} - set(left_out):
        (folder / name).write_bytes(bytes(2**20))
    return folder


def cached(cache: Path, *left_out: str) -> None:
    place = cache / "models--Qwen--Qwen2.5-Coder-7B"
    files(place / "snapshots" / COMMIT, *left_out, shards=2)
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)


def model(path: str, cache: Path, *, offline: bool = False, free_gib: float = 100) -> Finding:
    hub = Hub(cache=cache, offline=offline)
    return recipe.model_finding(path, 15 * GIB, hub, lambda folder: int(free_gib * GIB))


@pytest.mark.parametrize("shards", [0, 3])
def test_a_whole_folder(tmp_path, shards):
    found = model(str(files(tmp_path / "model", shards=shards)), tmp_path)
    assert found.mark is Mark.OK and found.message.endswith(f"{max(1, shards)} MiB")


def test_the_shipped_base_is_whole(tmp_path):
    assert model("data/azr_14m_base", tmp_path).mark is Mark.OK


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "model-1.safetensors"])
def test_what_a_folder_lacks_is_named(tmp_path, name):
    found = model(str(files(tmp_path / "model", name, shards=2)), tmp_path)
    assert found.mark is Mark.MISSING and f"lacks {name}:" in found.message


@pytest.mark.parametrize("path", ["/no/such/model", "./model", "data/no_such_model", "model"])
def test_a_folder_that_is_not_there(path, tmp_path):
    found = model(path, tmp_path)
    assert found.mark is Mark.MISSING and f"there is no folder {path}" in found.message


def test_a_hub_model_in_the_cache(tmp_path):
    cached(tmp_path)
    found = model(NAME, tmp_path, offline=True)
    assert found.mark is Mark.OK and str(tmp_path) in found.message


def test_a_hub_model_that_is_not_whole_or_not_there_is_fetched_if_there_is_room(tmp_path):
    cached(tmp_path / "half", "model-0.safetensors")
    for cache in (tmp_path / "half", tmp_path / "empty"):
        found = model(NAME, cache)
        assert found.mark is Mark.WARNING and f".venv/bin/hf download {NAME}" in found.message
        assert "would fetch 15 GiB" in found.message
        assert model(NAME, cache, offline=True).mark is Mark.MISSING
        small = model(NAME, cache, free_gib=14)
        assert small.mark is Mark.MISSING and "HF_HOME" in small.message


def test_the_cache_is_the_hubs():
    hub = Hub.here()
    assert os.path.isabs(hub.cache) and hub.cache.name == "hub"
