"""Merges adapters into the weights that they belong to, one tensor at a time, as the trainer does for its engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from azr.errors import UserError
from azr.runs.model_folder import model_folder
from azr.train.adapter_files import ADAPTER_CONFIG, ADAPTER_FILE, check_base, check_four_bit, hash_weights, read_base


def merge_adapters(adapters: Path, base: str, out: Path, named: str) -> None:
    """Writes the merged weights, in the type of the adapters, into the folder `out`.

    `adapters`: a folder that a checkpoint holds; `base`: folder or hub name of the model that they were trained with;
    `named`: what messages call the base.
    Raises UserError when the base cannot be had, is another one or holds no safetensors, and OSError when `out` cannot
    be written.
    """
    import torch
    from safetensors import safe_open

    from azr.algorithms.lora import DOWN, IN_FILES, UP, four_bit_rounded, merge
    from azr.train.shards import TensorSpec, write_model

    folder = model_folder(base, fetch=True, named=named)
    assert folder is not None, "fetching finds it or raises"
    belongs = read_base(adapters)
    check_base(belongs.files, hash_weights(folder), str(adapters))
    if belongs.four_bit:
        check_four_bit()
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder} has no weights as safetensors, which merging reads: save the model as such first.")
    settings: dict[str, Any] = json.loads((adapters / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    scale = settings["lora_alpha"] / settings["r"]
    with ExitStack() as opened:
        trained = opened.enter_context(safe_open(adapters / ADAPTER_FILE, framework="pt"))
        layers = {name.removeprefix(IN_FILES).removesuffix(DOWN) for name in trained.keys() if name.endswith(DOWN)}  # noqa: SIM118
        sources = [opened.enter_context(safe_open(file, framework="pt")) for file in files]
        held = dict(sorted((name, source) for source in sources for name in source.keys()))  # noqa: SIM118
        if strange := sorted(layer for layer in layers if f"{layer}.weight" not in held):
            raise UserError(
                f"{folder} has no {strange[0]}.weight, which {adapters} has an adapter for: save the base by "
                "transformers first."
            )
        dtype: torch.dtype = trained.get_tensor(next(iter(trained.keys()))).dtype

        def tensors() -> Iterator[torch.Tensor]:
            for name, source in held.items():
                weight, layer = source.get_tensor(name).to(dtype), name.removesuffix(".weight")
                if name in belongs.four_bit:
                    weight = four_bit_rounded(weight)
                if layer in layers:
                    down, up = (trained.get_tensor(f"{IN_FILES}{layer}{part}") for part in (DOWN, UP))
                    weight = merge(weight, down, up, scale).to(dtype)
                yield weight

        specs = [TensorSpec(name, dtype, tuple(source.get_slice(name).get_shape())) for name, source in held.items()]
        write_model(out, specs, tensors())
