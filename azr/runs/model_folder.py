"""Where a model is: a Hugging Face folder on disk, or a model of the hub, which is fetched or found in the cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from azr.errors import UserError

_HUB_S = 5.0
"""A dry run waits this long for an answer of the hub."""
_SMALL_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
"""Files of a hub model that hold its config and its tokenizer."""
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
"""A tokenizer is in one of these."""


def model_folder(path: str, *, fetch: bool, named: str = "model.path") -> Path | None:
    """Folder of a local model, or of a hub model; None when that cannot be had and need not be, without `fetch`.

    ``named``: what messages call the path.

    Raises UserError when there is no such model, or with `fetch` when it cannot be had.
    """
    folder = Path(path)
    if (folder / "config.json").is_file():
        return folder
    local = folder.is_absolute() or path.startswith(".") or folder.exists() or folder.parent.is_dir()
    if local or path.count("/") != 1:
        raise UserError(f"{named} {path!r} holds no model (no config.json there); give a Hugging Face model folder.")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RepositoryNotFoundError

    try:
        if fetch:
            return Path(snapshot_download(path))
        return Path(snapshot_download(path, allow_patterns=[*_SMALL_FILES], etag_timeout=_HUB_S))
    except GatedRepoError as error:
        raise UserError(
            f"The hub has the {named} {path!r}, but does not let you read it: ask for access on its page, and log "
            "in with .venv/bin/hf auth login."
        ) from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"{named} {path!r} is no local folder, and the hub has no such model; give a Hugging Face model folder."
        ) from error
    except OSError as error:
        if not fetch:
            return None
        raise UserError(
            f"{named} {path!r} is no local folder and could not be fetched from the hub; "
            "give a Hugging Face model folder."
        ) from error


def config_json(folder: Path) -> dict[str, Any]:
    """What the model's config.json says. Raises UserError when that is no JSON object."""
    try:
        tree = json.loads((folder / "config.json").read_text())
    except ValueError as error:
        raise UserError(f"{folder / 'config.json'} is not JSON ({error}): give a whole Hugging Face folder.") from error
    if not isinstance(tree, dict):
        raise UserError(f"{folder / 'config.json'} holds no JSON object: give a whole Hugging Face model folder.")
    return tree


def context_length(folder: Path) -> int | None:
    """Most tokens that the model reads; None when its config does not tell."""
    return _text_setting(folder, "max_position_embeddings")


def attention_heads(folder: Path) -> int | None:
    """Query heads of each layer; None when the model's config does not tell."""
    return _text_setting(folder, "num_attention_heads")


def _text_setting(folder: Path, name: str) -> int | None:
    tree = config_json(folder)
    of_text = tree.get("text_config")
    value = (of_text if isinstance(of_text, dict) else tree).get(name)
    return value if isinstance(value, int) else None


def check_tokenizer_files(path: str, folder: Path, named: str = "model.path") -> None:
    """Raises UserError for a folder without any, for which transformers would at times make an empty tokenizer, or
    with settings that cannot be read.
    """
    if not any((folder / name).is_file() for name in _TOKENIZER_FILES):
        raise UserError(
            f"{named} {path!r} holds no tokenizer (none of {', '.join(_TOKENIZER_FILES)}); give a whole Hugging "
            "Face model folder."
        )
    settings = folder / "tokenizer_config.json"
    try:
        sound = not settings.is_file() or isinstance(json.loads(settings.read_text(encoding="utf-8")), dict)
    except ValueError:
        sound = False
    if not sound:
        raise UserError(f"{settings} holds no JSON object: take a fresh copy of the model.")
