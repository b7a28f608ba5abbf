"""Options that a user passes through to vLLM's engine arguments, checked by name without importing vLLM."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from azr.errors import UserError, did_you_mean

KNOB = "rollout.engine_options"
_KNOBS = {
    "model": "model.path",
    "dtype": "train.dtype",
    "seed": "run.seed",
    "max_model_len": "rollout.max_prompt_tokens or rollout.max_response_tokens",
    "max_num_seqs": "rollout.max_concurrent",
    "tensor_parallel_size": "rollout.tensor_parallel",
    "gpu_memory_utilization": "rollout.gpu_memory_utilization",
}
"""Engine arguments that an option of ours decides."""
_FIXED = {
    "async_scheduling", "disable_log_stats", "distributed_executor_backend", "enable_prefix_caching",
    "enable_sleep_mode", "hf_overrides", "logprobs_mode", "use_tqdm_on_load", "weight_transfer_config", "worker_cls",
    "worker_extension_cls",
}  # fmt: skip
"""Engine arguments that this project decides."""
_WORLD = {
    "data_parallel_size", "decode_context_parallel_size", "enable_lora", "pipeline_parallel_size",
    "prefill_context_parallel_size", "speculative_config", "tokenizer",
}  # fmt: skip
"""Engine arguments that need other GPUs, or whose engine could not load the policy's weights."""
TAKEN = _KNOBS.keys() | _FIXED | _WORLD


def engine_options(entries: Sequence[str]) -> dict[str, Any]:
    """Return vLLM's engine arguments named by `rollout.engine_options`, with their values read as YAML.

    Raises UserError for an entry that is not ``name:value``, that is named twice, that the installed vLLM does not
    know, or that a user may not set.
    """
    options: dict[str, Any] = {}
    for entry in entries:
        name, colon, text = entry.partition(":")
        name = name.strip().replace("-", "_")
        if name in _KNOBS:
            raise UserError(f"{KNOB} names {name!r}, which the knob {_KNOBS[name]} decides: set that.")
        if name in TAKEN:
            raise UserError(f"{KNOB} names {name!r}, which a run sets itself: leave it out.")
        if name not in argument_names():
            hint = did_you_mean(name, argument_names() - TAKEN)
            raise UserError(f"{KNOB} names {name!r}, and vLLM has no such engine argument{hint}")
        if name in options:
            raise UserError(f"{KNOB} names {name!r} twice: name it once.")
        if not colon or not text.strip():
            raise UserError(f"{KNOB} holds {entry!r}; it must be a name and a value, as max_num_batched_tokens:8192.")
        try:
            options[name] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UserError(f"{KNOB} holds {entry!r}, whose value is not YAML: write it as in a config.") from error
    return options


@cache
def argument_names() -> frozenset[str]:
    """Return the fields of the installed vLLM's ``EngineArgs``, from its source: importing vLLM takes many seconds."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        raise UserError(f"{KNOB} is set, and vLLM is not installed here: make install.")
    source = Path(spec.origin).parent / "engine" / "arg_utils.py"
    for node in ast.parse(source.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef) and node.name == "EngineArgs":
            fields = (statement.target for statement in node.body if isinstance(statement, ast.AnnAssign))
            return frozenset(target.id for target in fields if isinstance(target, ast.Name))
    raise AssertionError(f"{source} defines EngineArgs")
