"""Writes an exported model aside and puts it in its place by one rename."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from azr.runs.export import think_tokens
from azr.runs.export.model_folder import check, code_files, read_object, write_object
from azr.runs.export.source import Source

_OTHER_WEIGHTS = {".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf"}
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def export(source: Source, out: Path, *, remove_think_tokens: bool) -> int:
    """Makes ``out`` a folder that transformers and vLLM load; it is whole or it is not there. Returns its bytes.

    Raises:
        ValueError: the source is not whole, ``out`` is taken, or it cannot be written.
    """
    check(source.folder)
    place = out.resolve()
    _check_free(place, out, source)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
        try:
            draft.chmod(0o755)
            _fill(draft, source, remove_think_tokens)
            size = sum(path.stat().st_size for path in draft.rglob("*") if path.is_file())
            os.rename(draft, place)
        except BaseException:
            shutil.rmtree(draft)
            raise
    except OSError as error:
        raise ValueError(f"{out} was not written: {error}.") from error
    return size


def _check_free(place: Path, out: Path, source: Source) -> None:
    if place.is_relative_to(source.folder.resolve()):
        raise ValueError(f"{out} lies inside {source.folder}, which is to be exported: choose another folder.")
    if place.is_dir():
        if any(place.iterdir()):
            raise ValueError(f"{out} is not empty: choose another folder, or remove or rename that one.")
    elif place.exists():
        raise ValueError(f"{out} is a file: choose a folder.")


def _fill(draft: Path, source: Source, remove_think_tokens: bool) -> None:
    for path in sorted(source.folder.rglob("*")):
        name = path.relative_to(source.folder)
        if path.is_file() and not _left_out(name):
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, draft / name)
    _add_code(draft, source)
    if not (draft / "generation_config.json").exists():
        _add_generation_config(draft)
    if remove_think_tokens:
        think_tokens.remove(draft)


def _left_out(name: Path) -> bool:
    """Hidden files, compiled code, and weights in other formats."""
    hidden = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
    return hidden or name.suffix in _OTHER_WEIGHTS or name.name.endswith(".bin.index.json")


def _add_code(draft: Path, source: Source) -> None:
    """Brings the code files that a config names and a checkpoint lacks: a tokenizer is saved without its own."""
    missing = sorted(name for name in code_files(draft) if not (draft / name).is_file())
    if not missing:
        return
    if source.base is None or not (source.base / missing[0]).is_file():
        wherever = f"{source.folder}" if source.base is None else f"{source.folder} nor in {source.base}"
        raise ValueError(f"{missing[0]}, which a config names, is not in {wherever}: put it into the former.")
    for path in sorted(source.base.glob("*.py")):
        if not (draft / path.name).exists():
            shutil.copyfile(path, draft / path.name)


def _add_generation_config(draft: Path) -> None:
    config = read_object(draft / "config.json")
    ids = {key: config[key] for key in _TOKEN_IDS if config.get(key) is not None}
    write_object(draft / "generation_config.json", {"_from_model_config": True, **ids})
