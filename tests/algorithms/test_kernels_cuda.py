"""The fused kernels against the plain path on a GPU; also `python -m benchmarks.kernels`."""

from __future__ import annotations

import pytest
import torch

from benchmarks.kernels import compare


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_fused_kernels_are_as_near_to_float32_as_the_plain_path() -> None:
    gaps = list(compare("cuda"))
    assert len(gaps) > 200
    assert [gap for gap in gaps if not gap.passes] == []
