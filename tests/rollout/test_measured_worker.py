"""Counts of what a scheduler gave to its workers, from vLLM's own records, in the form of either model runner."""

from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

from azr.rollout.measured_worker import _GREW, MeasuredWorker, SchedulingCounts


def new(name: str, tokens: int, computed: int, all_tokens: int | None = None) -> NewRequestData:
    absent = dict.fromkeys(("sampling_params", "pooling_params", "lora_request"))
    prefill = None if all_tokens is None else [1] * all_tokens
    made = {"req_id": name, "num_computed_tokens": computed, "prefill_token_ids": prefill}
    return NewRequestData(prompt_token_ids=[1] * tokens, mm_features=[], block_ids=([],), **made, **absent)


def output(requests: list[NewRequestData], cached: CachedRequestData | None = None, **more: Any) -> SchedulerOutput:
    made = SchedulerOutput.make_empty()
    made.scheduled_new_reqs = requests
    made.scheduled_cached_reqs = cached or CachedRequestData.make_empty()
    for name, value in more.items():
        setattr(made, name, value)
    return made


def test_preempted_requests_that_come_back_cost_what_is_computed_again() -> None:
    first = output([new("a", 100, 64), new("b", 50, 0)], total_num_scheduled_tokens=86)
    preemption = output([], total_num_scheduled_tokens=1, preempted_req_ids={"b"})
    as_new = output([new("b", 50, 32, all_tokens=58)], total_num_scheduled_tokens=27)
    resumed = CachedRequestData.make_empty()
    resumed.req_ids, resumed.num_computed_tokens = ["a", "b"], [120, 32]
    resumed.resumed_req_ids, resumed.all_token_ids = {"b"}, {"b": [1] * 58}
    expected = {
        "tokens": 114, "prompt_tokens": 150, "cached_prompt_tokens": 64, "preemptions": 1, "recomputed_tokens": 26,
    }  # fmt: skip
    for back in (as_new, output([], resumed, total_num_scheduled_tokens=27)):
        counts = SchedulingCounts()
        for each in (first, preemption, back):
            counts.add(each)
        assert counts.take() == expected
        assert counts.take() == {}


def test_a_request_that_ends_while_it_waits_is_forgotten() -> None:
    counts = SchedulingCounts()
    counts.add(output([new("a", 10, 0)], total_num_scheduled_tokens=10))
    counts.add(output([], preempted_req_ids={"a"}, finished_req_ids={"a"}))
    counts.add(output([new("a", 10, 8)], total_num_scheduled_tokens=2))
    assert counts.take() == {"tokens": 12, "prompt_tokens": 20, "cached_prompt_tokens": 8, "preemptions": 1}


def test_a_neighbour_that_takes_more_than_sleep_frees_ends_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    source = find_spec("vllm.v1.worker.gpu_worker")
    assert source is not None and source.origin is not None and _GREW in Path(source.origin).read_text()
    worker = MeasuredWorker.__new__(MeasuredWorker)
    for message, is_harmless in ((f"{_GREW}.", True), ("no allocator", False)):

        def sleep(self: Any, level: int, said: str = message) -> None:
            raise AssertionError(said)

        monkeypatch.setattr(MeasuredWorker.__mro__[1], "sleep", sleep)
        with nullcontext() if is_harmless else pytest.raises(AssertionError, match=message):
            worker.sleep(2)
