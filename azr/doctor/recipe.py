"""Whether a recipe finds here what it needs: GPUs, memory, and a model in a folder or in the hub's cache."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from azr.config import Config
from azr.doctor import Finding, FindingGroup, missing, ok, warning
from azr.doctor.machine import Gpus, existing, free_bytes
from azr.errors import UserError
from azr.hardware import compute_type
from azr.plan.inputs import GIB, Assumptions, ClusterSpec, shape_of
from azr.plan.memory import ModelRole, element_bytes, model_roles
from azr.plan.planner import options_text, plan_run, states_on_cpu
from azr.runs.model_folder import must_be_local, weight_places

_INDEX = "model.safetensors.index.json"


def recipe_section(
    config: Config, name: str, gpus: Gpus | None, memory: int, options: Sequence[str] = ()
) -> FindingGroup:
    """`gpus` and `memory`, in bytes: of the machine where the run's actors will live. None for a cluster, which has a
    section of its own. `options`: words that set what differs from the recipe."""
    if find_spec("torch") is None:
        unknown = missing("packages", "without those above it is not known what the recipe finds here: make install")
        return FindingGroup(title=f"Recipe {name}", findings=[unknown])
    findings = []
    if gpus is not None:
        device = config.train.device
        takes_gpus = device == "cuda" or (device == "auto" and bool(gpus.all))
        findings = [_on_gpus(config, [name, *options], gpus, memory) if takes_gpus else _on_cpu(config, memory)]
    weights = [element_bytes(config.train) * role.shape.parameters for role in known_roles(config)]
    expected = weights[0] if weights else None
    return FindingGroup(title=f"Recipe {name}", findings=[*findings, model_finding(config.model.path, expected)])


def _on_gpus(config: Config, words: Sequence[str], gpus: Gpus, memory: int) -> Finding:
    wanted, present = config.num_gpus, len(gpus.all)
    if not present:
        return missing(
            "GPUs", f"it asks for {wanted} and there is none: see the GPUs above, or set train.device to cpu"
        )
    # Counts are certain; bytes rest on the plan's assumptions.
    short = missing if wanted > present else warning
    try:
        nodes = ClusterSpec(gpus=present, gpu_memory_gib=gpus.memory_gib, host_memory_gib=memory / GIB)
        plan, suggestions = plan_run(config, nodes, Assumptions())
    except UserError as error:
        return short("GPUs", f"it asks for {wanted} and there are {present}; whether it fits is not known: {error}")
    if not plan.problems:
        return ok("GPUs", f"it takes {wanted} of {present}, {plan.peak / GIB:.0f} GiB of the fullest, by the plan")
    sizes = f"--gpus {present} --gpu-memory {nodes.gpu_memory_gib:.4g} --host-memory {memory / GIB:.4g}"
    remedy = f"azr plan {shlex.join(words)} {sizes} says more"
    if suggestions and suggestions[-1].plan.nodes == nodes and not suggestions[-1].plan.problems:
        values = {path: value for suggestion in suggestions for path, value in suggestion.values.items()}
        remedy = f"try {options_text(values)}; {remedy}"
    return short("GPUs", f"{'; '.join(plan.problems)}: {remedy}")


def _on_cpu(config: Config, memory: int) -> Finding:
    needed = sum(states_on_cpu(config, known_roles(config)).values())
    if needed > memory:
        return missing(
            "GPUs",
            f"there is none, and on the CPU its trainers alone take {needed / GIB:.0f} GiB of {memory / GIB:.0f}: run "
            f"it on a machine with {config.num_gpus} GPUs",
        )
    return ok("GPUs", f"none; it runs on the CPU, in {compute_type(config.train.dtype, 'cpu')}")


def known_roles(config: Config) -> list[ModelRole]:
    """Return the networks of the run; none if the shape of the model is not known."""
    try:
        return model_roles(config, shape_of(config.model.path))
    except UserError:
        return []


def model_finding(path: str, expected: float | None, free: Callable[[Path], int] = free_bytes) -> Finding:
    """`path`: a model's folder or its name on the hub; `expected`: bytes of its weights, None when unknown."""
    from huggingface_hub import constants, snapshot_download  # only now, since light commands come here
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    knob, folder = "model.path", Path(path)
    if folder.is_dir():
        if absent := _absent(folder):
            return missing(knob, f"{path} lacks {', '.join(absent)}: give a whole Hugging Face model folder")
        return ok(knob, f"{path}, {_size(folder)}")
    if must_be_local(path):
        return missing(knob, f"there is no folder {path}: give a Hugging Face model folder or the name of a hub model")
    cache = Path(constants.HF_HUB_CACHE)
    with suppress(LocalEntryNotFoundError, HFValidationError):
        cached = Path(snapshot_download(path, cache_dir=cache, local_files_only=True))
        if not _absent(cached):
            return ok(knob, f"{path}, {_size(cached)} in {cache}")
    where = f"{path} is not, or not wholly, in {cache}"
    fetch = f".venv/bin/hf download {path}"
    if constants.HF_HUB_OFFLINE:
        return missing(knob, f"{where} and HF_HUB_OFFLINE is set: unset it and run {fetch}, or copy the cache here")
    room = free(existing(cache))
    if expected is not None and expected > room:
        return missing(
            knob,
            f"{where}, which has {room / GIB:.0f} GiB free for {expected / GIB:.0f} GiB: set HF_HOME to a folder on a "
            "larger disk",
        )
    size = f" {expected / GIB:.0f} GiB" if expected is not None else ""
    return warning(knob, f"{where}; a run would fetch{size} first. To do it now: {fetch}")


def _absent(folder: Path) -> list[str]:
    """Names of files without which the model cannot be loaded."""
    try:
        weights = _weight_files(folder)
    except UserError:
        weights = [f"a readable {_INDEX}"]
    needed = ("config.json", "tokenizer_config.json", *weights)
    return [name for name in needed if not (folder / name).is_file()]


def _weight_files(folder: Path) -> list[str]:
    return sorted(set(weight_places(folder).values())) if (folder / _INDEX).is_file() else ["model.safetensors"]


def _size(folder: Path) -> str:
    size = sum((folder / name).stat().st_size for name in _weight_files(folder))
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / 2**20:.0f} MiB"
