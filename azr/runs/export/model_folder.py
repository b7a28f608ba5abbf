"""Whether a Hugging Face folder is whole: config, weights and tokenizer, as far as files can tell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from tokenizers import Tokenizer

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_ADVICE = "take another step, or a fresh copy of the model"


def check(folder: Path) -> None:
    """Looks at what loading the folder would need.

    Raises:
        ValueError: a file is missing or damaged; the message names it.
    """
    if "model_type" not in read_object(folder / "config.json"):
        raise ValueError(f"{folder / 'config.json'} has no model_type: {_ADVICE}.")
    _check_weights(folder)
    read_object(folder / "tokenizer_config.json")
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        raise ValueError(f"{folder} has no vocabulary, such as {_VOCABULARIES[0]}: {_ADVICE}.")
    if (folder / "tokenizer.json").is_file():
        read_tokenizer(folder)


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object. Raises ValueError, naming the file, when it is missing or holds something else."""
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): {_ADVICE}.") from error
    except ValueError as error:
        raise ValueError(f"{path} is not JSON ({error}): {_ADVICE}.") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{path} holds no JSON object: {_ADVICE}.")
    return tree


def write_object(path: Path, tree: dict[str, Any]) -> None:
    path.write_text(json.dumps(tree, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_tokenizer(folder: Path) -> Tokenizer:
    """What tokenizer.json says. Raises ValueError when it says nothing sensible."""
    path = folder / "tokenizer.json"
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises nothing narrower.
        raise ValueError(f"{path} is no tokenizer ({error}): {_ADVICE}.") from error


def code_files(folder: Path) -> set[str]:
    """Names of the Python files that the folder's configs take classes from. References to a hub are left out."""
    return set(_code_files(folder))


def _code_files(folder: Path) -> Iterator[str]:
    for name in ("config.json", "tokenizer_config.json"):
        for entry in read_object(folder / name).get("auto_map", {}).values():
            for reference in entry if isinstance(entry, list) else [entry]:
                # A reference to another repository reads owner/name--module.Class.
                if reference is not None and "--" not in reference:
                    yield reference.partition(".")[0] + ".py"


def _check_weights(folder: Path) -> None:
    if not (folder / INDEX).is_file():
        if not (folder / WEIGHTS).is_file():
            raise ValueError(f"{folder} has no weights: {WEIGHTS} or {INDEX} must be there; {_ADVICE}.")
        _tensors(folder / WEIGHTS)
        return
    places = read_object(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ValueError(f"{folder / INDEX} names no tensors: {_ADVICE}.")
    held = {file: _tensors(folder / file) for file in sorted(set(places.values()))}
    missing = sorted(tensor for tensor, file in places.items() if tensor not in held[file])
    if missing:
        raise ValueError(f"{folder / places[missing[0]]} lacks {missing[0]}, which {INDEX} puts there: {_ADVICE}.")


def _tensors(path: Path) -> set[str]:
    """Names in a safetensors file; opening it compares every tensor's type, shape and place with the file's size."""
    try:
        with safe_open(path, framework="numpy") as weights:
            names = set(weights.keys())
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path} is damaged ({error}): {_ADVICE}.") from error
    if not names:
        raise ValueError(f"{path} holds no tensors: {_ADVICE}.")
    return names
