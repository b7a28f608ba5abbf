"""A model's Hugging Face folder, on disk or of the hub: where it is, what its config tells, and whether it is whole."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from azr.algorithms.architectures import CHECKED
from azr.errors import UserError
from azr.text import clipped, first_line, parse_object
from azr.train.adapter_files import ADAPTER_CONFIG, ADAPTER_FILE

HUB_S = 5.0
"""A dry run waits this long for an answer of the hub."""
_SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
"""Files of a hub model that hold its config and its tokenizer."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""A tokenizer is in one of these."""

ADVICE = "take a fresh copy of the model, or another step"
"""Remedy for a damaged file of a model."""
_GIVE = "give a Hugging Face model folder"
_WEIGHTS = "model.safetensors"
_EMBEDDING = "embed_tokens.weight"
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
)  # fmt: skip
_OTHER_HEAD_SIZE = frozenset({"qwen3", "gemma3_text", "gemma4_text", "glm4", "ministral3"})
"""Architectures whose heads share the hidden size only if the config says so."""
_INDEX = "model.safetensors.index.json"


def model_folder(path: str, *, fetch: bool, named: str = "model.path") -> Path | None:
    """Folder of a local model, or of a hub model; None when that cannot be had and need not be, without `fetch`.

    ``named``: what messages call the path.

    Raises UserError when there is no such model, or with `fetch` when it cannot be had.
    """
    folder = Path(path)
    if (folder / "config.json").is_file():
        return folder
    if must_be_local(path):
        of_text = "azr export NAME FOLDER writes one of a hub model that reads images"
        raise UserError(f"{named} {path!r} holds no model (no config.json there); {_GIVE} ({of_text}).")
    refused = f"{named} {path!r} is not a local folder and could not be fetched from the hub"
    with hub_errors(f"{refused}; {_GIVE}, or mend this"):
        from huggingface_hub import snapshot_download
        from huggingface_hub.constants import HF_HUB_OFFLINE
        from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

        try:
            if fetch:
                return Path(snapshot_download(path))
            return Path(snapshot_download(path, allow_patterns=[*_SMALL_FILES], etag_timeout=HUB_S))
        except GatedRepoError as error:
            raise UserError(
                f"The hub refuses {named} {path!r}: ask for access on its page, and run .venv/bin/hf auth login."
            ) from error
        except (RepositoryNotFoundError, HFValidationError) as error:
            raise UserError(f"{named} {path!r} is neither a local folder nor a model of the hub; {_GIVE}.") from error
        except OSError as error:
            if not fetch:
                return None
            raise OSError("HF_HUB_OFFLINE is set" if HF_HUB_OFFLINE else first_line(error)) from error


def check_place(path: str) -> None:
    """Raise UserError for what can be neither a run, nor a local model, nor the name of a model of the hub."""
    folder = Path(path)
    if not ((folder / "config.json").is_file() or (folder / "config.yaml").is_file()) and must_be_local(path):
        what = f"{path} holds no model or run" if folder.exists() else f"There is no model or run {path!r}"
        raise UserError(f"{what}: give a run's folder, a Hugging Face folder, or the hub name of a model.")


def must_be_local(path: str) -> bool:
    """Whether a path cannot be the name of a model of the hub."""
    folder = Path(path)
    local = folder.is_absolute() or path.startswith(".") or folder.exists() or folder.parent.is_dir()
    return local or path.count("/") != 1


@contextmanager
def hub_errors(sentence: str) -> Iterator[None]:
    """Raise UserError with this sentence and the reason if the hub refuses something or does not answer, or if its
    address or a proxy's is none that can be used."""
    from huggingface_hub.errors import HTTPError  # of the HTTP library that it uses

    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, ImportError, HTTPError, import_module(HTTPError.__module__).InvalidURL) as error:
        why = clipped(first_line(error), 200).rstrip(".")
        raise UserError(f"{sentence}: {why}.") from error


def text_setting(folder: Path, name: str) -> int | None:
    """Return a number of a model's config, such as ``vocab_size``; None when that does not tell it, or is not there
    beside the tokenizer."""
    tree = read_object(folder / "config.json") if (folder / "config.json").is_file() else {}
    of_text = tree.get("text_config")
    value = (of_text if isinstance(of_text, dict) else tree).get(name)
    return value if isinstance(value, int) else None


def check_tokenizer_files(path: str, folder: Path, named: str = "model.path") -> None:
    """Raises UserError for a folder without any, for which transformers would at times make an empty tokenizer, or with
    settings that cannot be read."""
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise UserError(
            f"{named} {path!r} holds no tokenizer (none of {', '.join(_TOKENIZER_FILES)}); give a whole model folder."
        )
    if (folder / "tokenizer_config.json").is_file():
        read_object(folder / "tokenizer_config.json")


@contextmanager
def tokenizer_errors(path: str, folder: Path, named: str = "model.path") -> Iterator[None]:
    """Check the tokenizer's files, and raise UserError if the block cannot load them."""
    check_tokenizer_files(path, folder, named)
    from huggingface_hub.errors import StrictDataclassError  # of values of a config

    try:
        yield
    except UserError:
        raise
    except (OSError, ValueError, StrictDataclassError) as error:
        why = clipped(" ".join(str(error).split()), 200)
        raise UserError(
            f"{named} {path!r} holds no tokenizer that loads ({why}); give a whole model folder."
        ) from error


def check_model(folder: Path) -> None:
    """Raise UserError, which names the file, when one of config, weights or tokenizer is missing or damaged, as files
    can tell."""
    if "model_type" not in read_object(folder / "config.json"):
        raise UserError(f"{folder / 'config.json'} has no model_type: {ADVICE}.")
    check_weights(folder)
    read_object(folder / "tokenizer_config.json")
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise UserError(f"{folder} has no vocabulary, such as {_TOKENIZER_FILES[0]}: {ADVICE}.")
    if (path := folder / "tokenizer.json").is_file():
        from tokenizers import Tokenizer

        try:
            Tokenizer.from_file(str(path))
        except Exception as error:  # The library raises nothing narrower.
            raise UserError(f"{path} is not a tokenizer ({error}): {ADVICE}.") from error


def check_weights(folder: Path) -> None:
    """Raise UserError, which names the file, when the config's sizes are those of no model, or when weights are
    missing, damaged, or not those of the config, as the headers of the files tell."""
    config = read_object(folder / "config.json")
    stated, num_layers = _stated_shapes(folder / "config.json"), text_setting(folder, "num_hidden_layers")
    if (folder / ADAPTER_CONFIG).is_file():
        _tensor_shapes(folder / ADAPTER_FILE)
        return
    if (folder / _INDEX).is_file():
        places = read_object(folder / _INDEX).get("weight_map")
        if not isinstance(places, dict) or not places or not all(isinstance(file, str) for file in places.values()):
            raise UserError(f"{folder / _INDEX} names no tensors: {ADVICE}.")
        held = {file: _tensor_shapes(folder / file) for file in sorted(set(places.values()))}
        if missing := sorted(tensor for tensor, file in places.items() if tensor not in held[file]):
            raise UserError(f"{folder / places[missing[0]]} lacks {missing[0]}, which {_INDEX} puts there: {ADVICE}.")
        shapes = {tensor: held[file][tensor] for tensor, file in places.items()}
    elif (folder / _WEIGHTS).is_file():
        shapes = _tensor_shapes(folder / _WEIGHTS)
    elif pickled := sorted(folder.glob("pytorch_model*.bin")):
        if damaged := [path for path in pickled if not zipfile.is_zipfile(path)]:
            raise UserError(f"{damaged[0]} is damaged (its end is missing): {ADVICE}.")
        return
    else:
        raise UserError(f"{folder} has no weights: {_WEIGHTS} or {_INDEX} must be there; {ADVICE}.")
    layers = [int(match[1]) + 1 for tensor in shapes if (match := re.search(r"\blayers\.(\d+)\.", tensor))]
    if layers and num_layers is not None and max(layers) < num_layers:
        raise UserError(f"{folder} has weights of {max(layers)} layers, and config.json says {num_layers}: {ADVICE}.")
    if config.get("model_type") in CHECKED and layers and not any(name.endswith(_EMBEDDING) for name in shapes):
        raise UserError(f"{folder} has weights without {_EMBEDDING}: {ADVICE}.")
    for tensor, shape in shapes.items():
        for size in (size for end, size in stated.items() if tensor.endswith(end) and None not in size):
            if shape != size:
                raise UserError(f"{folder} has {tensor} of {shape}, and config.json says {size}: {ADVICE}.")


def _stated_shapes(file: Path) -> dict[str, tuple[int | None, ...]]:
    """Return the shapes that a config.json states, of weights by the ends of their names; None for a size that it
    leaves out. Raises UserError for a size that is not a whole number from 1, or heads that cannot be shared out."""
    config = read_object(file)
    tree = config["text_config"] if isinstance(config.get("text_config"), dict) else config
    for name in _SIZES:
        if (size := tree.get(name)) is not None and (type(size) is not int or size < 1):
            raise UserError(f"{file} has {name} {size!r}, which is not a whole number from 1: {ADVICE}.")
    vocabulary, hidden, inner, heads, keys, head = map(tree.get, _SIZES)
    is_known = config.get("model_type") in CHECKED
    divided = [("num_attention_heads", heads, "num_key_value_heads", keys)]
    if is_known and head is None and config["model_type"] not in _OTHER_HEAD_SIZE:
        divided.insert(0, ("hidden_size", hidden, "num_attention_heads", heads))
        head = hidden // heads if hidden and heads else None
    for whole, number, part, count in divided:
        if number and count and number % count:
            raise UserError(f"{file} has {part} {count}, which does not divide {whole} {number}: {ADVICE}.")
    query, key = (count * head if count and head else None for count in (heads, keys))
    shapes = dict[str, tuple[int | None, ...]]()
    shapes |= {_EMBEDDING: (vocabulary, hidden), "mlp.gate_proj.weight": (inner, hidden)}
    if is_known:
        shapes |= {".q_proj.weight": (query, hidden), ".k_proj.weight": (key, hidden), ".v_proj.weight": (key, hidden)}
        shapes |= {".o_proj.weight": (hidden, query), ".down_proj.weight": (hidden, inner)}
    alike = getattr(CHECKED.get(tree.get("model_type", "")), "alike", True)
    return shapes if alike and "quantization_config" not in config else {_EMBEDDING: shapes[_EMBEDDING]}


def _tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Opening a safetensors file compares every tensor's type, shape and place with the file's size."""
    try:
        with safe_open(path, framework="numpy") as weights:
            shapes = {name: tuple(weights.get_slice(name).get_shape()) for name in weights.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged ({error}): {ADVICE}.") from error
    if not shapes:
        raise UserError(f"{path} holds no tensors: {ADVICE}.")
    return shapes


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises UserError, naming the file, when it is missing or holds something else."""
    try:
        return parse_object(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): {ADVICE}.") from error
    except ValueError as error:
        raise UserError(f"{path} holds no JSON object ({error}): {ADVICE}.") from error


def write_object(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
