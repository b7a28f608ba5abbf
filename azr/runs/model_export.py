"""Takes a model out of a run as a plain Hugging Face folder. Copies and edits files.

Weights and torch are loaded only to merge adapters into the weights that they belong to.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml
from safetensors import SafetensorError, safe_open

from azr.errors import UserError
from azr.runs import think_tokens
from azr.runs.checkpoint_store import CorruptCheckpoint
from azr.runs.merge_adapters import merge_adapters
from azr.runs.model_card import exam_table, write_card
from azr.runs.prompt_form import PromptForm
from azr.runs.run_dir import RunDirectory
from azr.runs.run_state import RunState
from azr.runs.think_tokens import ADVICE, read_object, read_tokenizer, write_object
from azr.train.adapter_files import ADAPTER_CONFIG, ADAPTER_FILE, BASE_FILE

_STEP = re.compile(r"step_(\d+)")
_WEIGHTS = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
_OTHER_WEIGHTS = {".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf"}
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, slots=True)
class Source:
    """A Hugging Face folder to export."""

    folder: Path
    step: int | None
    """Of the run; None for a model that belongs to none."""
    base: Path | None
    """Where the model was that the run began with, as its config says: a folder, or a hub name."""
    run: RunDirectory | None = None
    """None for a model that belongs to none."""

    @property
    def has_adapters(self) -> bool:
        """Instead of weights of its own."""
        return (self.folder / ADAPTER_CONFIG).is_file()


def find_source(place: Path, step: int | None) -> Source:
    """The policy of a run's step, by default the last; or, for a model's own folder, that one.

    Raises:
        UserError: there is no such run or step; the message lists the steps there are.
    """
    if (place / "config.json").is_file():
        if step is not None:
            raise UserError(f"{place} is one model and has no steps: leave out --step.")
        return Source(place, None, None)
    run = RunDirectory(place)
    if not run.config.is_file():
        raise UserError(f"{place} is neither a run nor a model: name a run directory, such as orz_ckpt/first.")
    folders = _policies(run)
    chosen = max(folders) if step is None else step
    if chosen not in folders:
        *before, last = map(str, sorted(folders))
        there_are = f"there are steps {', '.join(before)} and {last}" if before else f"there is only step {last}"
        raise UserError(f"{place} has no policy of step {chosen}: {there_are}.")
    try:
        base = Path(yaml.safe_load(run.config.read_text())["model"]["path"])
    except (yaml.YAMLError, OSError, KeyError, TypeError) as error:
        raise UserError(f"{run.config} does not say which model the run began with: {error!r}.") from error
    return Source(folders[chosen], chosen, base, run)


def saved_steps(place: Path) -> list[int]:
    """The steps of which a run has saved the policy, rising. Raises UserError when it has none, or is no run."""
    run = RunDirectory(place)
    if not run.config.is_file():
        raise UserError(f"{place} is no run and has no steps: name a run directory, such as orz_ckpt/first.")
    return sorted(_policies(run))


def _policies(run: RunDirectory) -> dict[int, Path]:
    """The folders of a run's policies by step. Raises UserError when there is none."""
    named = ((_STEP.fullmatch(path.parent.name), path) for path in run.checkpoints.glob("*/policy"))
    folders = {int(match[1]): path for match, path in named if match}
    if not folders:
        raise UserError(f"{run.checkpoints} holds no policy yet: wait until the run has saved one.")
    return folders


def export(
    source: Source, out: Path, *, remove_think_tokens: bool, merged: bool = True, base: str | None = None
) -> int:
    """Makes ``out`` a folder that transformers and vLLM load; it is complete or it is not there. Returns its bytes.

    Of a source with adapters: ``merged`` puts them into the weights of ``base``, by default the model that the run
    began with; otherwise the folder is one of adapters, as peft and vLLM load them beside that model.

    Raises:
        UserError: the source is not complete or the base another one, ``out`` is taken, or it cannot be written.
    """
    check_model(source.folder)
    if not source.has_adapters and (base is not None or not merged):
        raise UserError(f"{source.folder} has whole weights and no adapters: leave out --adapter and --base.")
    if base is not None and not merged:
        raise UserError("--base says what adapters are merged into, and --adapter leaves them alone: leave one out.")
    place = out.resolve()
    if place.is_relative_to(source.folder.resolve()):
        raise UserError(f"{out} lies inside {source.folder}, which is to be exported: choose another folder.")
    if place.is_dir() and any(place.iterdir()):
        raise UserError(f"{out} is not empty: choose another folder, or remove or rename that one.")
    if place.is_file():
        raise UserError(f"{out} is a file: choose a folder.")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        staging = place.with_name(f".{place.name}.{uuid4().hex[:8]}")
        staging.mkdir()
        try:
            _copy(source, staging, merged=merged)
            if source.has_adapters and merged:
                found, named = (str(source.base), "model.path of the run") if base is None else (base, "--base")
                merge_adapters(source.folder, found, staging, named)
            if remove_think_tokens:
                think_tokens.remove(staging)
            _describe(source, staging, merged=merged)
            nbytes = sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())
            os.rename(staging, place)
        except BaseException:
            shutil.rmtree(staging)
            raise
    except OSError as error:
        raise UserError(f"{out} was not written: {error}.") from error
    return nbytes


def kept_export(source: Source) -> Path:
    """The export of a run's step beside its checkpoints, made when it is not there yet.

    Raises:
        UserError: as `export`; or the one that is there is of an older policy.
    """
    assert source.run is not None and source.step is not None, "other models need no export"
    out = source.run.exported(source.step)
    if not out.is_dir():
        export(source, out, remove_think_tokens=False)
    elif max(path.stat().st_mtime for path in source.folder.iterdir()) > out.stat().st_mtime:
        raise UserError(f"{out} is older than {source.folder}: remove the former, and it is made anew.")
    return out


def _describe(source: Source, out: Path, *, merged: bool) -> None:
    """Adds what the weights do not say of a run's policy: the prompts it was trained on, their ends, and a card."""
    if source.run is None or source.step is None:
        return
    form = PromptForm.read(source.run.prompt_form)
    if form is not None and form.template is not None:
        (out / "chat_template.jinja").write_text(form.template, encoding="utf-8")
        settings = read_object(out / "tokenizer_config.json")
        if settings.pop("chat_template", None) is not None:
            write_object(out / "tokenizer_config.json", settings)
    if form is not None and merged:
        ends = read_object(out / "generation_config.json") | {"eos_token_id": list(form.stops.token_ids)}
        if form.stops.strings:
            ends["stop_strings"] = list(form.stops.strings)
        write_object(out / "generation_config.json", ends)
    write_card(
        out,
        base=str(source.base),
        adapters=not merged,
        step=source.step,
        code=_code_version(source.folder.parent),
        config=source.run.config.read_text(encoding="utf-8"),
        form=form,
        exam=exam_table(source.run.metrics, source.step),
    )


def _code_version(checkpoint: Path) -> str:
    """Of the code that saved the checkpoint."""
    try:
        return RunState.read(checkpoint)[1]
    except CorruptCheckpoint:
        return "of a version that its checkpoint does not tell"


def check_model(folder: Path) -> None:
    """Whether a Hugging Face folder has the config, weights and tokenizer that loading it needs, as files can tell.

    Raises:
        UserError: a file is missing or damaged; the message names it.
    """
    if "model_type" not in read_object(folder / "config.json"):
        raise UserError(f"{folder / 'config.json'} has no model_type: {ADVICE}.")
    _check_weights(folder)
    read_object(folder / "tokenizer_config.json")
    if not any((folder / name).is_file() for name in _VOCABULARIES):
        raise UserError(f"{folder} has no vocabulary, such as {_VOCABULARIES[0]}: {ADVICE}.")
    if (folder / "tokenizer.json").is_file():
        read_tokenizer(folder)


def _check_weights(folder: Path) -> None:
    if (folder / ADAPTER_CONFIG).is_file():
        _tensor_names(folder / ADAPTER_FILE)
        return
    if not (folder / _INDEX).is_file():
        if not (folder / _WEIGHTS).is_file():
            raise UserError(f"{folder} has no weights: {_WEIGHTS} or {_INDEX} must be there; {ADVICE}.")
        _tensor_names(folder / _WEIGHTS)
        return
    places = read_object(folder / _INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise UserError(f"{folder / _INDEX} names no tensors: {ADVICE}.")
    held = {file: _tensor_names(folder / file) for file in sorted(set(places.values()))}
    missing = sorted(tensor for tensor, file in places.items() if tensor not in held[file])
    if missing:
        raise UserError(f"{folder / places[missing[0]]} lacks {missing[0]}, which {_INDEX} puts there: {ADVICE}.")


def _tensor_names(path: Path) -> set[str]:
    """Opening a safetensors file compares every tensor's type, shape and place with the file's size."""
    try:
        with safe_open(path, framework="numpy") as weights:
            names = set(weights.keys())
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is damaged ({error}): {ADVICE}.") from error
    if not names:
        raise UserError(f"{path} holds no tensors: {ADVICE}.")
    return names


def _copy(source: Source, out: Path, *, merged: bool) -> None:
    """Without the weights of adapters that are to be merged; without the base's config beside adapters."""
    left_out = (ADAPTER_CONFIG, ADAPTER_FILE, BASE_FILE) if merged else ("config.json", "generation_config.json")
    for path in sorted(source.folder.rglob("*")):
        name = path.relative_to(source.folder)
        if path.is_file() and not _is_left_out(name) and str(name) not in left_out:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, out / name)
    if not merged:
        return
    _add_code(source, out)
    if not (out / "generation_config.json").exists():
        config = read_object(out / "config.json")
        ids = {key: config[key] for key in _TOKEN_IDS if config.get(key) is not None}
        write_object(out / "generation_config.json", {"_from_model_config": True, **ids})


def _is_left_out(name: Path) -> bool:
    """Hidden files, compiled code, and weights in other formats."""
    hidden = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
    return hidden or name.suffix in _OTHER_WEIGHTS or name.name.endswith(".bin.index.json")


def _add_code(source: Source, out: Path) -> None:
    """Brings the code files that a config names and a checkpoint lacks: a tokenizer is saved without its own."""
    missing = sorted(name for name in set(_code_files(out)) if not (out / name).is_file())
    if not missing:
        return
    if source.base is None or not (source.base / missing[0]).is_file():
        places = f"{source.folder}" if source.base is None else f"{source.folder} nor in {source.base}"
        raise UserError(f"{missing[0]}, which a config names, is not in {places}: put it into the former.")
    for path in sorted(source.base.glob("*.py")):
        if not (out / path.name).exists():
            shutil.copyfile(path, out / path.name)


def _code_files(folder: Path) -> Iterator[str]:
    """Names of the Python files that the folder's configs take classes from. References to a hub are left out."""
    for name in ("config.json", "tokenizer_config.json"):
        auto_map: dict[str, Any] = read_object(folder / name).get("auto_map", {})
        for entry in auto_map.values():
            for reference in entry if isinstance(entry, list) else [entry]:
                # A reference to another repository reads owner/name--module.Class.
                if reference is not None and "--" not in reference:
                    yield reference.partition(".")[0] + ".py"
