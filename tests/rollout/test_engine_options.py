"""`rollout.engine_options` against the argument names of the installed vLLM, and what an engine computes with."""

import os
from pathlib import Path

import pytest
import torch

from azr.config import Config
from azr.config_rules import check
from azr.config_tree import override
from azr.errors import UserError
from azr.own_data import own_data
from azr.rollout.engine_options import TAKEN, argument_types, engine_options
from azr.rollout.vllm_adapter import compute_threads
from tests.tables import table


def test_names_read_from_the_source_are_those_of_vllm() -> None:
    from vllm import AsyncEngineArgs, EngineArgs

    names = set(EngineArgs.__dataclass_fields__)
    assert argument_types().keys() == names
    assert set(AsyncEngineArgs.__dataclass_fields__) >= TAKEN


def test_values_are_read_as_in_a_config() -> None:
    entries = (
        "max-num-batched-tokens:16384", "kv_cache_dtype: fp8", "enforce_eager:true", "compilation_config:{mode: 0}",
        "cpu_offload_gb:2", "block_size:null", "runner:generate",
    )  # fmt: skip
    assert engine_options(entries) == {
        "max_num_batched_tokens": 16384, "kv_cache_dtype": "fp8", "enforce_eager": True,
        "compilation_config": {"mode": 0}, "cpu_offload_gb": 2, "block_size": None, "runner": "generate",
    }  # fmt: skip


@pytest.mark.parametrize(("entries", "sentence"), table(__file__, "options of engines"))
def test_what_cannot_be_passed_on_is_refused_before_a_start(entries: list[str], sentence: str) -> None:
    config = override(Config(), {"rollout.engine_options": entries})
    with pytest.raises(UserError, match=sentence):
        check(config)


def test_an_engine_takes_all_cores_where_they_make_it_faster(tiny_model_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(8))
    worked = own_data("azr_14m_worked")
    assert compute_threads(worked, "float32", 1) == 8
    assert compute_threads(worked, "float32", 3) == 2
    assert compute_threads(worked, "float32", 16) == 1
    assert compute_threads(worked, "bfloat16", 1) == compute_threads(str(tiny_model_path), "float32", 1) == 1
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert compute_threads(worked, "float32", 1) == 1
