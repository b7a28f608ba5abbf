"""Compiles FlashAttention 4 with the arguments of azr's attention, on tensors without values: no GPU is needed.

Set FLASH_ATTENTION_ARCH, CUTE_DSL_ARCH and FLASH_ATTENTION_NUM_SMS, which say for which GPU.
"""

from types import SimpleNamespace
from typing import Any

from azr.hardware import keep_kernels

keep_kernels()

import torch  # noqa: E402
from flash_attn.cute import interface  # type: ignore[import-not-found]  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from azr.algorithms.attention import Segments, _attend_flash  # noqa: E402

SHAPES = ((12, 2, 128, -1), (14, 2, 64, -1), (4, 1, 256, -1), (4, 1, 256, 511))
"""Heads, key heads, their width, and the tokens back that each sees: Qwen2.5 1.5B and 0.5B, Gemma 3."""
NUM_QUERIES, NUM_KEYS = 256, 384
function = interface.FlashAttnVarlenFunc
RETURN_LSE = function.forward.__code__.co_varnames.index("return_lse") - 1


class Recorded:
    """In place of the autograd function, whose graph a CPU build of torch cannot make for GPU tensors."""

    trains = False

    @classmethod
    def apply(cls, *args: Any) -> Any:
        cls.saved = SimpleNamespace(set_materialize_grads=lambda wanted: None)
        cls.saved.save_for_backward = lambda *tensors: setattr(cls.saved, "saved_tensors", tensors)
        return function.forward(cls.saved, *args[:RETURN_LSE], cls.trains, *args[RETURN_LSE + 1 :])


interface.FlashAttnVarlenFunc = Recorded
for heads, key_heads, width, back in SHAPES:
    for Recorded.trains in (False, True):
        with FakeTensorMode(allow_non_fake_inputs=True):
            sizes = ((NUM_QUERIES, heads), (NUM_KEYS, key_heads), (NUM_KEYS, key_heads))
            q, k, v = (torch.empty(*size, width, dtype=torch.bfloat16, device="cuda") for size in sizes)
            borders = torch.zeros(3, dtype=torch.int32, device="cuda")
            out = _attend_flash(q, k, v, Segments(borders, borders, None, 128, 192, (), borders), (back, 0), None)
            assert out.shape == q.shape
            if Recorded.trains:
                gradients = function.backward(Recorded.saved, torch.empty_like(out), None)
                assert [each.shape for each in gradients[:3]] == [q.shape, k.shape, v.shape]
