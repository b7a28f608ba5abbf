"""Files of a model, local and in a hub cache laid out as huggingface_hub does."""

import json
import os
from pathlib import Path

import pytest

from azr.doctor import model
from azr.doctor.findings import Finding, Mark
from azr.doctor.model import GIB, Hub

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


def check(path: str, cache: Path, *, offline: bool = False, free_gib: float = 100) -> Finding:
    hub = Hub(cache=cache, offline=offline)
    return model.check(path, "model.path", 15 * GIB, hub, lambda folder: int(free_gib * GIB))


@pytest.mark.parametrize("shards", [0, 3])
def test_a_whole_folder(tmp_path, shards):
    found = check(str(files(tmp_path / "model", shards=shards)), tmp_path)
    assert found.mark is Mark.OK and found.says.endswith(f"{max(1, shards)} MiB")


def test_the_shipped_base_is_whole(tmp_path):
    assert check("data/azr_14m_base", tmp_path).mark is Mark.OK


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "model-1.safetensors"])
def test_what_a_folder_lacks_is_named(tmp_path, name):
    found = check(str(files(tmp_path / "model", name, shards=2)), tmp_path)
    assert found.mark is Mark.MISSING and f"lacks {name}:" in found.says


@pytest.mark.parametrize("path", ["/no/such/model", "./model", "data/no_such_model", "model"])
def test_a_folder_that_is_not_there(path, tmp_path):
    found = check(path, tmp_path)
    assert found.mark is Mark.MISSING and f"there is no folder {path}" in found.says


def test_a_hub_model_in_the_cache(tmp_path):
    cached(tmp_path)
    found = check(NAME, tmp_path, offline=True)
    assert found.mark is Mark.OK and str(tmp_path) in found.says


def test_a_hub_model_that_is_not_whole_or_not_there_is_fetched_if_there_is_room(tmp_path):
    cached(tmp_path / "half", "model-0.safetensors")
    for cache in (tmp_path / "half", tmp_path / "empty"):
        found = check(NAME, cache)
        assert found.mark is Mark.WARNING and f".venv/bin/hf download {NAME}" in found.says
        assert "would fetch 15 GiB" in found.says
        assert check(NAME, cache, offline=True).mark is Mark.MISSING
        small = check(NAME, cache, free_gib=14)
        assert small.mark is Mark.MISSING and "HF_HOME" in small.says


def test_the_cache_is_the_hubs():
    hub = Hub.here()
    assert os.path.isabs(hub.cache) and hub.cache.name == "hub"
