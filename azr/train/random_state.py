"""Every random state of a process as JSON data."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor


def random_state(device: torch.device) -> dict[str, Any]:
    """States of Python's, NumPy's and torch's generators, and of the GPU's when `device` is one."""
    numpy = np.random.get_state(legacy=False)
    assert isinstance(numpy, dict)
    key = numpy["state"]["key"].tolist()
    state = {
        "python": random.getstate(),
        "numpy": numpy | {"state": numpy["state"] | {"key": key}},
        "torch": _text(torch.get_rng_state()),
    }
    if device.type == "cuda":
        state["cuda"] = _text(torch.cuda.get_rng_state(device))
    return state


def restore_random_state(state: Mapping[str, Any], device: torch.device) -> None:
    """Undo `random_state`. A run that moves from CPU to GPU starts the GPU's generator anew."""
    version, inner, gauss = state["python"]
    random.setstate((version, tuple(inner), gauss))
    numpy = state["numpy"]
    key = np.array(numpy["state"]["key"], dtype=np.uint32)
    np.random.set_state(numpy | {"state": numpy["state"] | {"key": key}})
    torch.set_rng_state(_tensor(state["torch"]))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(_tensor(state["cuda"]), device)


def _text(state: Tensor) -> str:
    return state.numpy().tobytes().hex()


def _tensor(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
