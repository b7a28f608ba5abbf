"""The command line and the environment of ``vllm serve`` for one model."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from azr.errors import UserError
from azr.hardware import ComputeType, cpu_engine_problem, keep_kernels
from azr.records import Stops
from azr.rollout import cpu_serve
from azr.rollout.stop_middleware import VARIABLE, StopMiddleware, stops_to_text
from azr.rollout.vllm_adapter import cpu_choices, vllm_environment

_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "max_new_tokens",
)  # fmt: skip
"""Settings that vLLM reads from generation_config.json for requests without them. Training uses none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Served model and its address."""

    folder: Path
    name: str
    """Model name in requests."""
    template: str | None
    """Text or file of the chat template, if the folder has none."""
    stops: Stops
    """Stops of requests that name none."""
    dtype: ComputeType
    host: str
    port: int
    max_model_len: int | None
    """Most tokens of prompt and response, if known."""

    def environment(self) -> dict[str, str]:
        environment = {**os.environ, **vllm_environment(str(self.folder)), VARIABLE: stops_to_text(self.stops)}
        keep_kernels(environment)
        return environment

    def command(self, others: Sequence[str]) -> list[str]:
        """Return the command line. `others`: options of vLLM, which override ours.

        Raises UserError if vLLM is not installed, or cannot compute on this machine.
        """
        options: dict[str, Any] = {
            "served-model-name": self.name,
            "host": self.host,
            "port": self.port,
            "dtype": self.dtype,
            "middleware": f"{StopMiddleware.__module__}.{StopMiddleware.__qualname__}",
            "override-generation-config": json.dumps(dict.fromkeys(_SAMPLING)),
        }
        if self.template is not None:
            options["chat-template"] = self.template
        on_cpu = _is_on_cpu()
        if on_cpu:
            choices = cpu_choices(self.max_model_len or 0)
            options |= {name.replace("_", "-"): value for name, value in choices.items()}
        words = [*_program(on_cpu=on_cpu), "serve", str(self.folder)]
        for name, value in options.items():
            if isinstance(value, bool):
                words.append(f"--{'' if value else 'no-'}{name}")
            else:
                words += [f"--{name}", str(value)]
        return [*words, *others]


def _is_on_cpu() -> bool:
    if find_spec("vllm") is None:
        raise UserError("vLLM is not installed here: make install.")
    from vllm.platforms import current_platform

    on_cpu: bool = current_platform.is_cpu()
    if on_cpu and (problem := cpu_engine_problem()) is not None:
        raise UserError(f"{problem}.")
    return on_cpu


def _program(*, on_cpu: bool) -> list[str]:
    """Return the command ``vllm`` of this environment, or its replacement."""
    if on_cpu:
        return [sys.executable, "-m", cpu_serve.__name__]
    return [str(Path(sys.executable).with_name("vllm"))]
