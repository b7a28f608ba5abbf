"""The update benchmark with toy sizes, on the CPU: the worker and its engine without Ray, at one rank."""

import json

import pytest

from benchmarks import update

pytestmark = pytest.mark.long


def test_a_way_is_measured_and_one_that_cannot_be_had_leaves_it_alone(tmp_path, capsys):
    sizes = ["--size", "tiny", "--tokens", "128", "--prompt", "8", "--response", "40", "--steps", "1"]
    options = [*sizes, "--micro-batches", "2", "--checkpointing", "selective", "--json", str(tmp_path / "out")]
    assert update.main([*options, "--kernels", "liger", "plain"]) == 1
    liger, plain = json.loads((tmp_path / "out").read_text())
    assert "train.kernels is liger, but they need a GPU" in liger["error"]
    assert plain["error"] is None and plain["tokens_per_s"] > 0 and len(plain["table"]) == update.ROWS
    assert 150 < plain["tokens"] <= 256 and plain["parameters"] > 100_000
    assert "plain kernels (as train.kernels says)" in capsys.readouterr().out
