import math
from collections import Counter
from types import SimpleNamespace

import pytest

from azr.monitoring.monitor import response_metrics
from azr.records import Judgement, Role, Sample
from azr.runs import metrics as measures
from azr.runs.metrics import PhaseClock, check_finite
from azr.tasks.base import RejectReason
from tests.runs.factory import Clock, completion, proposals, sample


def test_samples_become_means_per_kind_and_role() -> None:
    counted = sample("proposer", "abduction", reward=0.25, version=5, used="recorded")
    cut_off = sample("solver", reward=-0.5, accuracy=0.0, length=8, finish="length", used="cut off")
    others = [sample("solver", reward=1.0, accuracy=1.0, version=9, used=used) for used in ("estimate", "stale")]
    others += [sample("solver", reward=None, version=9, used="ungraded")]
    others += [sample("proposer", reward=None, version=9, used="recorded")]
    metrics = measures.reward_metrics([sample("solver", reward=1.0, accuracy=1.0, length=4), cut_off, counted, *others])
    proposer = {"trajectories": 1, "reward": 0.25, "response_length": 2.0, "truncated": 0.0}
    solver = {"trajectories": 2, "reward": 0.25, "response_length": 6.0, "truncated": 0.5, "accuracy": 0.5}
    wanted = {f"abduction/proposer/{name}": value for name, value in proposer.items()}
    wanted |= {f"deduction/solver/{name}": value for name, value in solver.items()}
    assert metrics == wanted | {"weight_version": 5}
    costly = [sample("solver", reward_parts={"right": 1.0, "overlong": penalty}) for penalty in (-0.5, 0.0)]
    assert measures.reward_metrics(costly)["deduction/solver/overlong"] == -0.25


def test_traces_are_apart() -> None:
    played = [
        sample("solver", reward=-0.5, accuracy=0.0, length=4, version=3),
        sample("solver", reward=1.0, accuracy=1.0, length=8, version=9, trace_tokens=8),
    ]
    metrics = measures.reward_metrics(played)
    assert metrics["weight_version"] == 3 and metrics["deduction/solver/trajectories"] == 1
    assert (metrics["deduction/solver/reward"], metrics["deduction/solver/trace/reward"]) == (-0.5, 1.0)
    assert metrics["deduction/solver/trace/accuracy"] == 1.0
    assert metrics["deduction/solver/trace/response_length"] == 8.0
    assert measures.solve_rates(metrics) == {"deduction": 0.0}
    lengths = response_metrics(played, [0.0, 1.0])
    assert (lengths["deduction/solver/tokens/max"], lengths["deduction/solver/trace/tokens/max"]) == (4.0, 8.0)
    assert lengths["deduction/solver/repetitive"] == 0.0
    assert "weight_version" not in measures.reward_metrics(played[1:2])


def test_rewards_of_a_batch_and_of_its_groups_are_those_of_trl() -> None:
    rewards = {"a": (1.0, 0.0, 0.0, 1.0), "b": (0.5, 0.5), "alone": (-0.5,)}
    played = [sample("solver", reward=each, group=group, length=2) for group in rewards for each in rewards[group]]
    others = [sample("solver", reward=9.0, used="stale", group="a"), sample("solver", reward=9.0, trace_tokens=2)]
    metrics = measures.group_metrics([*played, *others])
    wanted = {"reward": 2.5 / 7, "response_length": 2.0, "reward_std": (1 / 3) ** 0.5 / 2, "idle_groups": 0.5}
    assert metrics == pytest.approx(wanted)
    assert measures.group_metrics(others) == {}
    assert measures.group_metrics(played[-1:]) == {"reward": -0.5, "response_length": 2.0}


def test_the_funnel_is_counted_step_by_step() -> None:
    rejected = Counter({RejectReason.MALFORMED: 3, RejectReason.DUPLICATE: 1, RejectReason.LOST: 2})
    metrics = measures.funnel_metrics("deduction", proposals(10, rejected, [0.0, 0.25, 0.25, 1.0]), 4)
    assert metrics["deduction/proposer/funnel/proposed"] == 10
    assert metrics["deduction/proposer/funnel/valid"] == 4
    assert [metrics[f"deduction/proposer/funnel/{reason}"] for reason in RejectReason] == [3, 0, 0, 0, 0, 1, 0, 2]
    assert metrics["deduction/proposer/valid_rate"] == 0.5
    assert metrics["deduction/proposer/solve_rate_hist"] == [1, 2, 0, 0, 1]
    assert metrics["deduction/proposer/solve_rate"] == 0.375
    assert metrics["deduction/proposer/learnable_rate"] == 0.5


def test_rates_of_a_step_are_read_from_its_metrics_and_what_was_not_measured_has_no_key() -> None:
    nothing = measures.step_metrics([], ["error"], 4, {"critic": {"loss": None}, "policy": {"loss": 0.0}})
    assert "critic/loss" not in nothing and nothing["policy/loss"] == 0.0
    assert {name for name in nothing if not name.startswith("error/proposer/funnel/")} == {"policy/loss"}
    lost = measures.funnel_metrics("error", proposals(2, Counter({RejectReason.LOST: 2})), 4)
    assert "error/proposer/valid_rate" not in lost
    assert [measures.valid_rate(each) for each in (nothing, lost, {})] == [None] * 3
    samples = proposals(4, Counter({RejectReason.FAILED: 1}), [1.0] * 3) + proposals(4, kind="abduction")
    samples += [sample("solver", accuracy=1.0), sample("solver", "abduction", accuracy=0.0)]
    metrics = measures.step_metrics(samples, [], 2, {})
    assert measures.valid_rate(metrics) == 7 / 8
    assert measures.solve_rates(metrics) == {"abduction": 0.0, "deduction": 1.0}


def given_up(role: Role, group: str) -> Sample:
    return sample(role, reward=None, group=group, length=0, finish="given_up", verdict="ungraded", used="ungraded")


def test_a_proposal_that_was_given_up_is_lost_and_tokens_are_those_that_were_sampled() -> None:
    metrics = measures.funnel_metrics("deduction", [*proposals(2), given_up("proposer", "propose:2")], 4)
    assert metrics["deduction/proposer/funnel/proposed"] == 3 and metrics["deduction/proposer/funnel/lost"] == 1
    assert metrics["deduction/proposer/funnel/valid"] == 2 and metrics["deduction/proposer/valid_rate"] == 1.0
    samples = [
        *proposals(2), given_up("solver", "estimate:a"), sample("solver", length=5),
        sample("solver", length=3, group="data:0:a"), sample("solver", length=7, trace_tokens=7, group="data:0:a"),
    ]  # fmt: skip
    assert measures.sampled_tokens(samples) == {"propose": 4, "estimate": 0, "solve": 8}


def test_what_was_lost_given_up_or_not_graded_is_ungraded_and_malformed_shares_are_of_what_was_sampled() -> None:
    answers = [given_up("solver", "solve:a"), sample("solver", verdict="ungraded", reward=None)]
    lost = proposals(3, Counter({RejectReason.LOST: 1, RejectReason.FAILED: 1}))
    assert sum(map(measures._is_lost, [*lost, *answers, sample("solver", verdict="wrong")])) == 3
    samples = [sample("solver", verdict=each) for each in ("malformed", "right")] + [given_up("solver", "solve:a")]
    samples += [sample("solver", verdict="right", finish="length"), sample("solver", verdict="wrong", used="estimate")]
    samples += [sample("solver", verdict="malformed", trace_tokens=2)]
    assert measures.malformed_share(samples, "solver") == 0.5 and measures.malformed_share(samples, "proposer") is None


def test_malformed_and_ungraded_are_counted_by_reason_whatever_they_were_used_for() -> None:
    samples = [
        sample("solver", "math", judgement=Judgement(verdict="malformed", reason="no_box"), used="unlearnable"),
        sample("solver", "math", judgement=Judgement(verdict="malformed", reason="no_box"), used="stale"),
        sample("solver", "math", judgement=Judgement(verdict="ungraded", reason="grader_failed"), reward=None),
        sample("solver", "math", judgement=Judgement(verdict="malformed", reason="cut_off"), trace_tokens=2),
        sample("proposer", judgement=Judgement(verdict="lost", reason="lost")),
        sample("proposer", judgement=Judgement(verdict="duplicate")), sample("solver", "math", judgement=None),
    ]  # fmt: skip
    assert measures.reason_metrics(samples) == {
        "math/solver/malformed/no_box": 2, "math/solver/unlearnable": 1, "math/solver/ungraded/grader_failed": 1,
        "math/solver/trace/malformed/cut_off": 1, "deduction/proposer/ungraded/lost": 1,
    }  # fmt: skip
    assert measures.step_metrics(samples, (), 1, {}).items() >= measures.reason_metrics(samples).items()


def test_parts_that_graders_of_rows_give_are_metrics() -> None:
    samples = [
        sample("solver", "math", group="data:0:1", judgement=Judgement(verdict="wrong", parts=parts))
        for parts in ({"style": 0.25, "short": True}, {"style": 0.75, "short": False}, {"style": 0.5}, {})
    ]
    own = sample("solver", judgement=Judgement(verdict="right", parts={"base": True}))
    of_rows = {"math/solver/parts/style": 0.5, "math/solver/parts/short": 0.5}
    assert measures.part_metrics([*samples, own]) == {"deduction/solver/parts/base": 1.0} | of_rows


def test_what_groups_teach_is_told_apart_by_where_their_tasks_are_from() -> None:
    scores = {
        "000003:000003-deduction-0001": (1, 0, 1, 0), "000003:000003-deduction-0002": (1, 1),
        "000003:000002-deduction-0001": (1, 0, 0, 0), "000003:seed-deduction": (0, 0),
        "000003:000003-deduction-chain-0001": (1, 0, 0, 0), "000003:000003-induction-0004-deduction-0": (1, 0),
    }  # fmt: skip
    samples = [
        sample("solver", group=f"estimate:{group}", accuracy=score) for group, some in scores.items() for score in some
    ]
    samples += [sample("solver", group="solve:000003:seed-deduction", accuracy=1.0)]
    samples += [sample("solver", group="estimate:000003:000003-deduction-0009", accuracy=None, used="ungraded")]
    expected = {
        "own": (2, 0.75, 1.0, 0.5, 0.5), "replayed": (2, 0.125, 0.75, 0.375, 0.5), "derived": (1, 0.5, 1.0, 1.0, 0.0),
        "chained": (1, 0.25, 0.75, 0.75, 0.0),
    }  # fmt: skip
    names = "groups", "solve_rate", "teaching_mass", "mass_per_group", "idle"
    assert measures.teaching_metrics(samples) == {
        f"deduction/solver/{origin}/{name}": value
        for origin, values in expected.items()
        for name, value in zip(names, values, strict=True)
    }
    assert measures.step_metrics(samples, (), 1, {}).items() >= measures.teaching_metrics(samples).items()


def versions(*versions: int, used: str = "trained") -> Sample:
    return sample("solver", completion=completion(versions, versions=versions), used=used)


def test_ages_are_of_the_sampled_tokens_that_are_trained_on() -> None:
    samples = [versions(4, 5), versions(5, 5), versions(0, used="cut off"), versions(2, 5, used="stale")]
    samples += [versions(1, used="estimate"), sample("solver", trace_tokens=2, version=0)]
    assert measures.staleness_metrics(samples, 5) == {"dropped": 1.0, "mean": 0.25, "max": 1.0, "mixed": 0.5}
    assert measures.staleness_metrics([], 5) == {"dropped": 0.0}


def test_numbers_of_a_diverged_run_are_refused() -> None:
    for bad in (math.nan, math.inf, -math.inf):
        with pytest.raises(RuntimeError, match=f"policy/loss is {bad} in step 3, so training has diverged"):
            check_finite(3, {"a/hist": [1, 2], "policy/loss": bad})


def test_duplicates_are_counted_by_what_they_repeat_and_copies_are_a_share_of_readable_ones() -> None:
    played = proposals(4, Counter({RejectReason.DUPLICATE: 3}), [0.5])
    for each, parts in zip(
        played[:3], ({"repeats_seed": True}, {"repeats_seed": True}, {"repeats_step": True}), strict=True
    ):
        each.judgement = Judgement(verdict=each.verdict, parts=parts)
    metrics = measures.funnel_metrics("deduction", played, 2)
    found = {name: metrics[f"deduction/proposer/repeats/{name}"] for name in ("seed", "buffer", "reference", "step")}
    assert found == {"seed": 2, "buffer": 0, "reference": 0, "step": 1}
    played = proposals(4, Counter({RejectReason.DUPLICATE: 2}), [0.5])
    for each, copied in zip(played[:3], (True, False, True), strict=True):
        each.judgement = Judgement(verdict=each.verdict, parts={"copied": copied})
    assert measures.funnel_metrics("deduction", played, 2)["deduction/proposer/copied"] == 2 / 3
    assert "deduction/proposer/copied" not in measures.funnel_metrics("deduction", proposals(2, Counter(), []), 2)


def clocked(monkeypatch: pytest.MonkeyPatch) -> tuple[PhaseClock, Clock, Clock]:
    """Times phases by the clocks that come with it, of wall time and of CPU time."""
    wall, cpu = Clock(), Clock()
    monkeypatch.setattr(measures, "time", SimpleNamespace(perf_counter=wall, process_time=cpu))
    return PhaseClock(), wall, cpu


def test_time_that_overlapped_phases_cost_alone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, wall, _ = clocked(monkeypatch)
    with clock.phase("solve"):
        with clock.phase("verify"):
            wall.now = 3.0
        wall.now = 4.0
    with clock.phase("verify"), clock.phase("validate"):
        wall.now = 6.0
    wall.now = 7.0
    assert clock.step_timing().exposed_s == 2.0
    with clock.phase("solve"):
        wall.now = 9.0
    assert clock.step_timing().exposed_s == 0.0


def test_a_phase_across_steps_is_split_between_them_and_over_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, wall, _ = clocked(monkeypatch)
    with clock.phase("solve"):
        wall.now = 2.0
        assert clock.step_timing().seconds == {"solve": 2.0}
        wall.now = 5.0
    assert clock.step_timing().seconds == {"solve": 3.0}
    assert clock.step_timing().seconds == {}
    with pytest.raises(RuntimeError), clock.phase("solve"):
        wall.now = 6.0
        raise RuntimeError
    wall.now = 9.0
    assert clock.step_timing().seconds == {"solve": 1.0}


def test_overlapping_work_counts_once_and_learning_beside_play_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, wall, cpu = clocked(monkeypatch)
    first, second, other = clock.phase("solve"), clock.phase("solve"), clock.phase("propose")
    first.__enter__()
    wall.now = 1.0
    second.__enter__()
    other.__enter__()
    wall.now = 3.0
    first.__exit__(None, None, None)
    wall.now = 4.0
    second.__exit__(None, None, None)
    wall.now = 6.0
    with clock.phase("solve"):
        wall.now = 7.0
    other.__exit__(None, None, None)
    cpu.now, wall.now = 2.0, 8.0
    timing = clock.step_timing()
    assert timing.seconds == {"solve": 5.0, "propose": 6.0}
    assert timing.wall_s == 8.0 and timing.cpu_share == 0.25
    clock, wall, _ = clocked(monkeypatch)
    with clock.phase("train policy"):
        wall.now = 1.0
        with clock.phase("verify"):
            wall.now = 3.0
        with clock.phase("solve"):
            wall.now = 7.0
    assert clock.step_timing().learned_beside_s == 4.0
    assert clock.step_timing().learned_beside_s == 0.0
