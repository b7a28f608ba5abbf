"""A step over nodes: hand-made phases, limits of the bandwidths, and the verdict in a sentence."""

import math
from dataclasses import replace

import pytest

from azr.errors import UserError
from azr.plan.inputs import KNOWN, Assumptions, ClusterSpec
from azr.plan.nodes import NodeStep, grown, nodes_text, over_nodes, verdict
from azr.plan.seconds import expected_longest, seconds_of
from playground.azr_coder3b_ppo import config as small
from playground.azr_coder7b_ppo import config as recipe

NODE = ClusterSpec(gpus=8, gpu_memory_gib=80)
SEVEN = KNOWN["Qwen/Qwen2.5-7B"]
COUNTS = (1, 2, 8, 64)
SHORT = Assumptions(response_fill=1.0)
"""All responses are as long as they may be, so that more of them have no longer one among them."""


def ratio(steps: list[NodeStep]) -> float:
    return steps[-1].seconds / steps[0].seconds


def steps(assumed: Assumptions, config=recipe) -> list[NodeStep]:
    return over_nodes(config, SEVEN, NODE, COUNTS, assumed)


def test_the_work_of_a_gpu_stays():
    eight = grown(recipe, NODE, 8)
    assert eight.train.data_parallel == eight.rollout.engines == 64 == eight.num_gpus
    assert eight.trajectories_by_step == (8 * recipe.trajectories_by_step[0],)
    assert grown(small, NODE, 1).train.data_parallel == 8, "a recipe for two GPUs fills the node"
    with pytest.raises(UserError, match=r"1 node\(s\) of 4 GPU\(s\) are no multiple of the 8"):
        grown(recipe, replace(NODE, gpus=4), 1)
    for step, count in zip(steps(Assumptions()), COUNTS, strict=True):
        assert step.plan.load.trajectories == 1920 * count and step.plan.config.num_gpus == 8 * count
        assert step.plan.load.trained / step.plan.config.num_gpus == 48


def test_a_step_is_its_phases_in_turn_by_hand():
    first, *_ = steps(Assumptions())
    plan = first.plan
    writing = (14 * 7.6156 + 12 * 7.0706) / 2
    assert writing < plan.seconds["play"], "so it is done beside the next play"
    assert first.seconds == pytest.approx(sum(plan.seconds.values()))
    slow = over_nodes(recipe, SEVEN, NODE, [1], Assumptions(disk_gb_s=0.2))[0]
    left = (10 * writing - plan.seconds["play"]) / recipe.checkpoint.every
    assert slow.seconds - first.seconds == pytest.approx(left, rel=0.01)


def test_with_nothing_serial_and_no_networks_a_step_is_as_long_on_any_number_of_nodes():
    free = replace(SHORT, network_gb_s=1e12, link_gb_s=1e12, pcie_gb_s=1e12, host_gb_s=1e12, driver_ms=1e-9)
    free = replace(free, executor_runs_s=1e12, disk_gb_s=1e12, object_store_gb_s=1e12)
    assert ratio(steps(free)) == pytest.approx(1, abs=1e-3)


def test_without_a_network_a_step_never_ends_and_says_why():
    cut = steps(replace(SHORT, network_gb_s=1e-6))
    assert cut[0].seconds < 1000 < 1e6 < cut[1].seconds
    assert "and waits for network" in verdict(cut)


def test_what_is_serial_grows_with_the_nodes_and_bounds_the_step_in_the_end():
    slow = steps(Assumptions(driver_ms=20, response_fill=0.05))
    assert slow[-1].phases["play"]["driver"] == pytest.approx(64 * slow[0].phases["play"]["driver"])
    assert slow[-1].phases["play"]["driver"] == pytest.approx(1920 * 64 * 0.02)
    assert "play grows by" in verdict(slow) and "waits for driver" in verdict(slow)
    by_host = replace(recipe, cluster=replace(recipe.cluster, push="host"))
    host = steps(replace(SHORT, driver_ms=1e-9), by_host)
    sent = 15.2312 * 63 / Assumptions().object_store_gb_s
    assert seconds_of(host[-1].phases["push"]) - seconds_of(host[0].phases["push"]) == pytest.approx(sent, rel=0.01)
    assert "push grows by" in verdict(host) and "waits for object store" in verdict(host)


def test_the_longest_response_is_what_keeps_the_recipe_from_the_goal_at_the_rates_aimed_at():
    found = steps(Assumptions())
    assert 1.15 < ratio(found) < 1.35
    assert "play grows by" in verdict(found) and "waits for longest response" in verdict(found)
    assert verdict(found[:1]) == "on 1 nodes a step takes 1.00 times as long as on 1: within 1.15"


def test_with_partial_rollouts_nobody_waits_for_the_longest_and_the_step_stays_within_the_goal():
    partial = replace(recipe, rollout=replace(recipe.rollout, staleness=1, partial=True))
    assert partial.steps_ahead == 0, "engines and trainers take turns"
    found = steps(Assumptions(), partial)
    nine_in_ten = 2 * 0.1 * 8096 * math.log(10)
    full = steps(Assumptions())[0].phases["play"]["longest response"]
    tokens = expected_longest(192, 809.6, 8096) + expected_longest(1536, 809.6, 8096)
    assert found[0].phases["play"]["longest response"] == pytest.approx(full * nine_in_ten / tokens)
    assert ratio(found) <= 1.15 and verdict(found).endswith("within 1.15")
    assert "rollout.staleness 1 and rollout.partial," in nodes_text(found)


def test_engines_apart_play_beside_the_trainers_and_the_slowest_bounds_the_step():
    apart = replace(
        recipe,
        rollout=replace(recipe.rollout, engines=4, staleness=1),
        train=replace(recipe.train, data_parallel=4),
        cluster=replace(recipe.cluster, colocate=False),
    )
    first, *_, last = steps(Assumptions(), apart)
    in_turn = steps(Assumptions(), replace(apart, rollout=replace(apart.rollout, staleness=0)))[0]
    playing = seconds_of(first.plan.bounds["play"]) + seconds_of(first.phases["push"])
    learning = sum(map(seconds_of, first.phases.values()))
    assert first.seconds == pytest.approx(max(playing, learning))
    assert first.seconds < in_turn.seconds
    assert "play" not in first.phases and first.beside.keys() == {"driver", "play and push"}
    assert last.beside["driver"] == pytest.approx(1920 * 64 * 0.4e-3)
    busy = steps(Assumptions(driver_ms=5), apart)
    cheap = over_nodes(apart, SEVEN, NODE, COUNTS, Assumptions(driver_ms=5, object_store_gb_s=1e9))
    assert busy[-1].beside["driver"] == cheap[-1].beside["driver"] == cheap[-1].seconds
    assert verdict(cheap).endswith("it waits for driver, 614 s")


def test_it_is_deterministic_and_each_column_says_whether_it_fits():
    text = nodes_text(steps(Assumptions()))
    assert text == nodes_text(steps(Assumptions()))
    assert "at measured rates" in text
    assert [line.split() for line in text.splitlines() if line.startswith("  fits")] == [["fits", *["yes"] * 4]]
    starved = over_nodes(recipe, SEVEN, replace(NODE, gpu_memory_gib=30), [1, 2], Assumptions())
    assert "no" in nodes_text(starved).split("fits")[1]
