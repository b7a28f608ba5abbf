"""Files of a model: a folder, or a name on the hub that may be in the cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from azr.doctor.disk import free_bytes, nearest
from azr.doctor.findings import Finding, missing, ok, warning

GIB = 2**30
_WEIGHTS, _INDEX = "model.safetensors", "model.safetensors.index.json"
_TOKENIZER = "tokenizer_config.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """Where models of the hub are on this machine, and whether others can be fetched."""

    cache: Path
    offline: bool

    @classmethod
    def here(cls) -> Hub:
        """As HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE say."""
        from huggingface_hub import constants

        return cls(cache=Path(constants.HF_HUB_CACHE), offline=constants.HF_HUB_OFFLINE)


def check(path: str, knob: str, expected: float | None, hub: Hub, free: Callable[[Path], int] = free_bytes) -> Finding:
    """`path`: as the config names the model under `knob`; `expected`: bytes of its weights, None when unknown."""
    folder = Path(path)
    if folder.is_dir():
        if lack := _lacking(folder):
            return missing(knob, f"{path} lacks {', '.join(lack)}: give a whole Hugging Face model folder")
        return ok(knob, f"{path}, {_size(folder)}")
    if folder.is_absolute() or path.startswith(".") or path.count("/") != 1 or folder.parent.is_dir():
        return missing(knob, f"there is no folder {path}: give a Hugging Face model folder or the name of a hub model")
    cached = _cached(path, hub.cache)
    if cached is not None and not _lacking(cached):
        return ok(knob, f"{path}, {_size(cached)} in {hub.cache}")
    return _to_fetch(path, knob, expected, hub, free(nearest(hub.cache)))


def _to_fetch(path: str, knob: str, expected: float | None, hub: Hub, free: int) -> Finding:
    where = f"{path} is not, or not wholly, in {hub.cache}"
    fetch = f".venv/bin/hf download {path}"
    if hub.offline:
        return missing(knob, f"{where} and HF_HUB_OFFLINE is set: unset it and run {fetch}, or copy the cache here")
    if expected is not None and expected > free:
        return missing(
            knob,
            f"{where}, which has {free / GIB:.0f} GiB free for {expected / GIB:.0f} GiB: set HF_HOME to a folder on a "
            "larger disk",
        )
    size = f" {expected / GIB:.0f} GiB" if expected is not None else ""
    return warning(knob, f"{where}; a run would fetch{size} first. To do it now: {fetch}")


def _cached(name: str, cache: Path) -> Path | None:
    """The snapshot that loading by name takes."""
    place = cache / f"models--{name.replace('/', '--')}"
    reference = place / "refs" / "main"
    return place / "snapshots" / reference.read_text().strip() if reference.is_file() else None


def _lacking(folder: Path) -> list[str]:
    """Names of files without which the model cannot be loaded."""
    return [name for name in ("config.json", _TOKENIZER, *_weight_files(folder)) if not (folder / name).is_file()]


def _weight_files(folder: Path) -> list[str]:
    index = folder / _INDEX
    if not index.is_file():
        return [_WEIGHTS]
    return sorted(set(json.loads(index.read_text())["weight_map"].values()))


def _size(folder: Path) -> str:
    size = sum((folder / name).stat().st_size for name in _weight_files(folder))
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"
