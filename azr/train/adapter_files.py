"""Which weights adapters belong to: the digests of a base model's files. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from azr.errors import UserError
from azr.files import hash_file

ADAPTER_FILE = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
"""Both are peft's names."""
BASE_FILE = "base_files.json"
"""Digests of the base's files by name, and the weights of it that were held in 4 bits."""


def weights_folder(path: str) -> Path:
    """Return the folder of a model that has been loaded: `path` itself, or the hub's cache. Raises OSError."""
    from transformers.utils import cached_file

    found = cached_file(path, "config.json", local_files_only=True)
    assert found is not None, "without a config the model could not have been loaded"
    return Path(found).parent


def hash_weights(folder: Path) -> dict[str, str]:
    """Return the BLAKE3 of each file of weights in a folder, hexadecimal, by name. Raises OSError."""
    files = [path for path in sorted(folder.glob("*.safetensors")) if path.name != ADAPTER_FILE]
    return {path.name: hash_file(path).digest for path in files or sorted(folder.glob("*.bin"))}


def write_base(folder: Path, files: Mapping[str, str], four_bit: Sequence[str]) -> None:
    """Write digests of the base's files by name, and which weights were held in 4 bits, as adapters add to them there.
    Raises OSError."""
    tree = {"files": files, "four_bit": four_bit}
    (folder / BASE_FILE).write_text(json.dumps(tree, indent=2) + "\n", encoding="utf-8")


def read_base(folder: Path) -> tuple[dict[str, str], list[str]]:
    """Read what `write_base` wrote. Raises UserError if it is missing or damaged."""
    try:
        tree = json.loads((folder / BASE_FILE).read_text(encoding="utf-8"))
        return dict(tree["files"]), list(tree["four_bit"])
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{folder / BASE_FILE}, which says what these adapters belong to, cannot be read ({error}): take another "
            "step."
        ) from error


def check_base(saved: Mapping[str, str], here: Mapping[str, str], whose: str) -> None:
    """Raises UserError when adapters were saved for other weights than those `here`; `whose` begins the sentence."""
    if saved == here:
        return
    different = min(name for name in saved.keys() | here.keys() if saved.get(name) != here.get(name))
    raise UserError(f"{whose} has adapters of another base model ({different} differs): name the run's own.")


def check_package(option: str) -> None:
    """Raises UserError if the package that an option of `train.lora` needs is not installed."""
    package, off = {"rank": ("peft", "0"), "four_bit": ("bitsandbytes", "false")}[option]
    if find_spec(package) is None:
        raise UserError(
            f"train.lora.{option} takes the package {package}, which is not installed: run pip install -e '.[lora]' "
            f"in the clone, or set it to {off}."
        )
