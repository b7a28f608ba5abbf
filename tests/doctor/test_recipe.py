"""A recipe against machines of several sizes, and its model: local, or in a hub's cache as huggingface_hub makes it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from azr.config import TRRPP, KLConfig
from azr.config_tree import override
from azr.doctor import Finding, Mark, recipe
from azr.doctor.machine import Gpu, Gpus
from azr.plan.inputs import GIB
from azr.plan.memory import checkpoint_bytes
from tests.recipes import recipes

FLAGSHIP = recipes()["azr_coder7b_ppo"]
MINI = recipes()["azr_14m_mini"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """The hub's cache on this machine, which is online."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return tmp_path


def gpus(number: int, gib: int = 80) -> Gpus:
    return Gpus(
        all=tuple(Gpu(index=i, name="H100", total_mib=gib << 10, used_mib=0, driver="580") for i in range(number))
    )


UNKNOWN = replace(FLAGSHIP, model=replace(FLAGSHIP.model, path="someone/new-model"))


@pytest.mark.parametrize(
    "config, found, memory_gib, mark, parts",
    [
        (FLAGSHIP, gpus(8), 1024, Mark.OK, ["it takes 8 of 8"]),
        (FLAGSHIP, gpus(4), 1024, Mark.MISSING, ["asks for 8 GPUs and there are 4", "--train.data-parallel 4",
                                                 "azr plan azr_coder7b_ppo --gpus 4 --gpu-memory 80"]),
        (FLAGSHIP, gpus(8, 36), 1024, Mark.WARNING, ["GiB of 34.5"]),
        (FLAGSHIP, gpus(8), 64, Mark.WARNING, ["GiB of host memory"]),
        (FLAGSHIP, gpus(0), 24, Mark.MISSING, ["a machine with 8 GPUs"]),
        (MINI, gpus(0), 8, Mark.OK, []),
        (replace(MINI, train=replace(MINI.train, device="cuda")), gpus(0), 24, Mark.MISSING, []),
        (replace(MINI, train=replace(MINI.train, device="cpu")), gpus(8), 24, Mark.OK, []),
        (UNKNOWN, gpus(8), 1024, Mark.WARNING, []),
        (UNKNOWN, gpus(4), 1024, Mark.MISSING, []),
    ],
)  # fmt: skip
def test_what_a_machine_offers_a_recipe(config, found, memory_gib, mark, parts):
    section = recipe.recipe_section(config, "azr_coder7b_ppo", found, memory_gib * GIB)
    assert [each.name for each in section.findings] == ["GPUs", "model.path"]
    assert section.findings[0].mark is mark and all(part in section.findings[0].message for part in parts)


@pytest.mark.parametrize("config, found, tries", [
    (recipes()["azr_7b_ppo"], gpus(4, 24), True),
    (FLAGSHIP, gpus(2), False),
    (recipes()["azr_0b5"], gpus(1, 6), False),
], ids=["it fits then", "only on more nodes", "never"])  # fmt: skip
def test_only_options_with_which_it_fits_here_are_advised(config, found, tries):
    section = recipe.recipe_section(config, "x", found, 256 * GIB, ["--run.name", "a b"])
    message = section.findings[0].message
    size = f"--gpus {len(found.all)} --gpu-memory {found.memory_gib:g} --host-memory 256"
    assert message.endswith(f"azr plan x --run.name 'a b' {size} says more") and (": try --" in message) is tries
    options = [word for word in message.partition(": try ")[2].partition(";")[0].split() if word.startswith("--")]
    assert len(options) == len(set(options)) and " on " not in message.partition(": try ")[2]


def test_a_checkpoint_is_the_state_of_what_is_trained_and_the_policy():
    policy, critic = 7_615_616_512, 7_615_616_512 - 152_064 * 3584 + 3585
    assert checkpoint_bytes(recipe.known_roles(FLAGSHIP), FLAGSHIP.train) == 14 * policy + 12 * critic
    free = replace(FLAGSHIP, algorithm=replace(FLAGSHIP.algorithm, estimator=TRRPP(), kl=KLConfig(coef=0.0)))
    assert checkpoint_bytes(recipe.known_roles(free), free.train) == 14 * policy
    adapters = override(free, {"train.lora.rank": 8, "train.lora.targets": ["q_proj"]})
    assert checkpoint_bytes(recipe.known_roles(adapters), free.train) == 14 * 8 * 28 * (3584 + 3584)
    assert checkpoint_bytes(recipe.known_roles(UNKNOWN), UNKNOWN.train) == 0


def test_on_a_cluster_only_the_model_is_looked_for():
    section = recipe.recipe_section(FLAGSHIP, "x", None, 0)
    assert [(each.name, each.mark) for each in section.findings] == [("model.path", Mark.WARNING)]


NAME = "Qwen/Qwen2.5-Coder-7B"
COMMIT = "0123abc" + 33 * "0"


def files(folder: Path, *left_out: str, shards: int = 0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    weights = [f"model-{number}.safetensors" for number in range(shards)] or ["model.safetensors"]
    if shards:
        index = {"weight_map": {f"layer.{i}": name for i, name in enumerate(weights)}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name in {"config.json", "tokenizer_config.json", *weights} - set(left_out):
        (folder / name).write_bytes(bytes(2**20))
    return folder


def model(path: str, free_gib: float = 100) -> Finding:
    return recipe.model_finding(path, 15 * GIB, lambda folder: int(free_gib * GIB))


@pytest.mark.parametrize("shards", [0, 3])
def test_a_whole_folder(tmp_path, shards):
    found = model(str(files(tmp_path / "model", shards=shards)))
    assert found.mark is Mark.OK and found.message.endswith(f"{max(1, shards)} MiB")


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "model-1.safetensors"])
def test_what_a_folder_lacks_is_named(tmp_path, name):
    found = model(str(files(tmp_path / "model", name, shards=2)))
    assert found.mark is Mark.MISSING and f"lacks {name}:" in found.message


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 3}}'])
def test_an_index_that_was_copied_by_half_is_named(tmp_path, text):
    (files(tmp_path / "model", shards=2) / "model.safetensors.index.json").write_text(text)
    found = model(str(tmp_path / "model"))
    assert found.mark is Mark.MISSING and "lacks a readable model.safetensors.index.json:" in found.message


@pytest.mark.parametrize("path", ["/no/such/model", "./model", "data/no_such_model", "model"])
def test_a_folder_that_is_not_there(path):
    found = model(path)
    assert found.mark is Mark.MISSING and f"there is no folder {path}" in found.message


@pytest.mark.parametrize("left_out", [(), ("model-0.safetensors",), None], ids=["whole", "half", "empty"])
def test_a_hub_model_is_in_the_cache_or_is_fetched_if_there_is_room(left_out, cache, monkeypatch):
    if left_out is not None:
        place = cache / "models--Qwen--Qwen2.5-Coder-7B"
        files(place / "snapshots" / COMMIT, *left_out, shards=2)
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text(COMMIT)
    found, small = model(NAME), model(NAME, free_gib=14)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    offline = model(NAME)
    if left_out == ():
        assert found.mark is small.mark is offline.mark is Mark.OK and str(cache) in found.message
        return
    assert found.mark is Mark.WARNING and f".venv/bin/hf download {NAME}" in found.message
    assert "would fetch 15 GiB" in found.message
    assert offline.mark is Mark.MISSING
    assert small.mark is Mark.MISSING and "HF_HOME" in small.message


def test_a_name_that_no_hub_model_can_have_is_not_in_the_cache():
    assert model("some one/new model").mark is Mark.WARNING
