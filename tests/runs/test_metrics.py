from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from azr.monitoring.monitor import response_metrics
from azr.records import Role
from azr.runs.metrics import (
    check_finite,
    funnel_metrics,
    solve_rates,
    step_metrics,
    throughput,
    trajectory_metrics,
    valid_rate,
)
from azr.tasks.base import RejectReason
from tests.runs.factory import stats, trajectory


def test_trajectories_become_means_per_kind_and_role() -> None:
    metrics = trajectory_metrics(
        [
            trajectory(Role.SOLVER, reward=1.0, accuracy=1.0, length=4),
            trajectory(Role.SOLVER, reward=-0.5, accuracy=0.0, length=8, finish="length"),
            trajectory(Role.PROPOSER, "abduction", reward=0.25, version=5),
        ]
    )
    assert metrics == {
        "abduction/proposer/trajectories": 1,
        "abduction/proposer/reward": 0.25,
        "abduction/proposer/response_length": 2.0,
        "abduction/proposer/truncated": 0.0,
        "deduction/solver/trajectories": 2,
        "deduction/solver/reward": 0.25,
        "deduction/solver/response_length": 6.0,
        "deduction/solver/truncated": 0.5,
        "deduction/solver/accuracy": 0.5,
        "weight_version": 5,
    }


def test_what_traces_wrote_or_began_is_apart() -> None:
    played = [
        trajectory(Role.SOLVER, reward=-0.5, accuracy=0.0, length=4, version=3),
        replace(trajectory(Role.SOLVER, reward=1.0, accuracy=1.0, length=8, version=9), trace_tokens=8),
        replace(trajectory(Role.SOLVER, reward=0.0, accuracy=0.0, length=6, version=2), trace_tokens=5),
    ]
    metrics = trajectory_metrics(played)
    assert metrics["weight_version"] == 3 and metrics["deduction/solver/trajectories"] == 1
    assert (metrics["deduction/solver/reward"], metrics["deduction/solver/trace/reward"]) == (-0.5, 1.0)
    assert metrics["deduction/solver/trace/accuracy"] == 1.0 and metrics["deduction/solver/prefix/accuracy"] == 0.0
    assert metrics["deduction/solver/trace/response_length"] == 8.0
    assert solve_rates(metrics) == {"deduction": 0.0}
    lengths = response_metrics(played, [0.0, 1.0, 1.0], [None] * 3)
    assert (lengths["deduction/solver/tokens/max"], lengths["deduction/solver/trace/tokens/max"]) == (4.0, 8.0)
    assert lengths["deduction/solver/repetitive"] == 0.0
    assert "weight_version" not in trajectory_metrics(played[1:2])


def test_what_length_cost_is_known_where_it_cost() -> None:
    costly = replace(trajectory(Role.SOLVER, reward=0.5), reward_parts={"right": 1.0, "overlong": -0.5})
    metrics = trajectory_metrics([costly, replace(costly, reward_parts={"right": 1.0, "overlong": 0.0})])
    assert metrics["deduction/solver/overlong"] == -0.25


def test_the_funnel_is_counted_step_by_step() -> None:
    rejected = Counter({RejectReason.MALFORMED: 3, RejectReason.DUPLICATE: 1, RejectReason.LOST: 2})
    metrics = funnel_metrics("deduction", stats(10, rejected, [0.0, 0.25, 0.25, 1.0]), 4)
    assert metrics["deduction/proposer/funnel/proposed"] == 10
    assert metrics["deduction/proposer/funnel/valid"] == 4
    assert [metrics[f"deduction/proposer/funnel/{reason}"] for reason in RejectReason] == [3, 0, 0, 0, 0, 1, 0, 2]
    assert metrics["deduction/proposer/valid_rate"] == 0.5
    assert metrics["deduction/proposer/solve_rate_hist"] == [1, 2, 0, 0, 1]
    assert metrics["deduction/proposer/solve_rate"] == 0.375
    assert metrics["deduction/proposer/learnable_rate"] == 0.5


def test_what_was_not_measured_has_no_key() -> None:
    nothing = step_metrics([], {"error": stats()}, 4, {"critic": {"loss": None}, "policy": {"loss": 0.0}})
    assert "critic/loss" not in nothing and nothing["policy/loss"] == 0.0
    assert {name for name in nothing if not name.startswith("error/proposer/funnel/")} == {"policy/loss"}
    lost = funnel_metrics("error", stats(2, Counter({RejectReason.LOST: 2})), 4)
    assert "error/proposer/valid_rate" not in lost
    assert valid_rate(nothing) is None and valid_rate(lost) is None and valid_rate({}) is None


def test_rates_of_a_step_are_read_from_its_metrics() -> None:
    funnels = {
        "deduction": stats(4, Counter({RejectReason.FAILED: 1}), [1.0] * 3),
        "abduction": stats(4, Counter(), []),
    }
    trajectories = [trajectory(Role.SOLVER, accuracy=1.0), trajectory(Role.SOLVER, "abduction", accuracy=0.0)]
    metrics = step_metrics(trajectories, funnels, 2, {})
    assert valid_rate(metrics) == 7 / 8
    assert solve_rates(metrics) == {"abduction": 0.0, "deduction": 1.0}


def test_throughput_is_known_only_for_phases_that_took_time() -> None:
    assert throughput({"solve": 100, "propose": 7, "estimate": 5}, {"solve": 4.0, "estimate": 0.0}) == {"solve": 25.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_of_a_diverged_run_are_refused(bad: float) -> None:
    with pytest.raises(RuntimeError, match=r"policy/loss is (nan|-?inf) in step 3, so training has diverged"):
        check_finite(3, {"a/hist": [1, 2], "policy/loss": bad})
