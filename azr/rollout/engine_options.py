"""Options that a user passes through to vLLM's engine arguments, checked by name and type without importing vLLM."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from azr.errors import UserError, did_you_mean

OPTION = "rollout.engine_options"
_OF_RUN = {
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
_TYPES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    list: "a list",
    dict: "a mapping",
}
_BUILTINS = {each.__name__: each for each in _TYPES}
TAKEN = _OF_RUN.keys() | _FIXED | _WORLD


def engine_options(entries: Sequence[str]) -> dict[str, Any]:
    """Return vLLM's engine arguments named by `rollout.engine_options`, with their values read as YAML.

    Raises UserError for an entry that is not ``name:value``, that is named twice, that the installed vLLM does not
    know, that a user may not set, or whose value is of a wrong type.
    """
    options: dict[str, Any] = {}
    for entry in entries:
        name, colon, text = entry.partition(":")
        name = name.strip().replace("-", "_")
        if name in _OF_RUN:
            raise UserError(f"{OPTION} names {name!r}, which the option {_OF_RUN[name]} decides: set that.")
        if name in TAKEN:
            raise UserError(f"{OPTION} names {name!r}, which a run sets itself: leave it out.")
        if name not in argument_types():
            hint = did_you_mean(name, argument_types().keys() - TAKEN)
            raise UserError(f"{OPTION} names {name!r}, and vLLM has no such engine argument{hint}")
        if name in options:
            raise UserError(f"{OPTION} names {name!r} twice: name it once.")
        if not colon or not text.strip():
            raise UserError(f"{OPTION} holds {entry!r}; it must be a name and a value, as max_num_batched_tokens:8192.")
        try:
            options[name] = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise UserError(f"{OPTION} holds {entry!r}, whose value is not YAML: write it as in a config.") from error
        value, allowed = options[name], _allowed(argument_types()[name], "vllm.engine.arg_utils")
        if allowed is None or (value is None and None in allowed):  # other types than `_TYPES` pass
            continue
        if not any(type(value) is each or (each is float and type(value) is int) or value == each for each in allowed):
            wanted = [_TYPES[each] if isinstance(each, type) else each for each in allowed if each is not None]
            raise UserError(f"{OPTION} holds {entry!r}, whose value must be {' or '.join(map(str, wanted))}.")
    return options


@cache
def argument_types() -> dict[str, ast.expr]:
    """Return the type of each field of the installed vLLM's ``EngineArgs``, from its source: importing vLLM takes many
    seconds."""
    for node in _source("vllm.engine.arg_utils").body:
        if isinstance(node, ast.ClassDef) and node.name == "EngineArgs":
            fields = (statement for statement in node.body if isinstance(statement, ast.AnnAssign))
            return {field.target.id: field.annotation for field in fields if isinstance(field.target, ast.Name)}
    raise AssertionError("vLLM's source defines EngineArgs")


@cache
def _source(module: str) -> ast.Module:
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        raise UserError(f"{OPTION} is set, and vLLM is not installed here: make install.")
    place = Path(spec.origin).parent.joinpath(*module.split(".")[1:])
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _allowed(annotation: ast.expr, module: str) -> list[Any] | None:
    """Return the types, texts and None that an annotation in a module of vLLM allows; None if it cannot be read."""
    match annotation:
        case ast.Name(id=name) | ast.Subscript(value=ast.Name(id=name)) if name in _BUILTINS:
            return [_BUILTINS[name]]
        case ast.Constant(value=None):
            return [None]
        case ast.BinOp(op=ast.BitOr()):
            sides = [_allowed(side, module) for side in (annotation.left, annotation.right)]
            return None if None in sides else [each for side in sides for each in side or ()]
        case ast.Subscript(value=ast.Name(id="Literal"), slice=ast.Tuple(elts=names)):
            texts = [name.value for name in names if isinstance(name, ast.Constant)]
            return texts if len(texts) == len(names) else None
        case ast.Name(id=name):
            for node in _source(module).body:
                if isinstance(node, ast.ImportFrom) and node.module and name in [each.name for each in node.names]:
                    return _allowed(annotation, node.module) if node.module.startswith("vllm") else None
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                    value: ast.expr | None = getattr(node, "value", None)
                    return _allowed(value, module) if value is not None else None
    return None
