"""Seconds of a step, also over nodes, against hand calculations, limits, and the row that was measured on an H100."""

import math
import re
from dataclasses import replace

import pytest
import torch

from azr.config import (
    GAE,
    GRPO,
    AlgorithmConfig,
    ClusterConfig,
    Config,
    DataConfig,
    KLConfig,
    RolloutConfig,
    SelfPlayConfig,
    TrainConfig,
)
from azr.doctor.machine import product_flops
from azr.plan.inputs import KNOWN, Assumptions, ClusterSpec, Workload, update_share
from azr.plan.memory import EngineMemory, model_roles
from azr.plan.planner import cpu_time, make_plan, text
from azr.plan.seconds import StepTimes, expected_longest, forward_flops, seconds_of, token_seconds
from playground.azr_14m_learn import config as learn
from playground.azr_14m_mini import config as mini
from playground.azr_coder7b_ppo import config as recipe

ASSUMED = Assumptions()
NODE = ClusterSpec(gpus=8, gpu_memory_gib=80)
SEVEN, SMALL = KNOWN["Qwen/Qwen2.5-7B"], KNOWN["Qwen/Qwen2.5-1.5B"]


def seven(**train) -> Config:
    return Config(
        algorithm=AlgorithmConfig(estimator=GAE(), kl=KLConfig(coef=0.001)), rollout=RolloutConfig(engines=8),
        train=TrainConfig(**{"data_parallel": 8} | train),
    )  # fmt: skip


def times(config: Config, nodes: ClusterSpec = NODE, assumed: Assumptions = ASSUMED, **more) -> StepTimes:
    return StepTimes(config=config, load=Workload.of(config, assumed), nodes=nodes, assumed=assumed, **more)


def test_seconds_by_hand():
    policy, *_ = model_roles(seven(), SEVEN)
    length = 0.25 * 6144 + 0.1 * 8096
    layers = SEVEN.in_layers
    attention, head = 2 * 28 * 3584 * length, 0.1 * 8096 * 2 * 152064 * 3584
    load = Workload.of(seven(), ASSUMED)
    assert forward_flops(policy, load) == pytest.approx(384 * (length * (2 * layers + attention) + head))
    flops = 384 * (length * (2 * layers + 1.5 * attention) + head)
    assert forward_flops(policy, load, 1.5) == pytest.approx(flops)
    engine = EngineMemory.of(seven(), SEVEN, NODE, ASSUMED)
    assert token_seconds(engine, 0, ASSUMED) == pytest.approx(15_231_233_024 / (3350e9 * 0.6) + 0.003)
    step = times(seven()).train(policy, 1)
    stepping = 28 * 7_615_616_512 / 8 / 3350e9
    # Four passes, counted as three operations per parameter and token.
    assert step["arithmetic"] == pytest.approx(4 * flops / (8 * 989e12 * 0.28 * 4 / 3) + stepping, rel=1e-3)
    # Seven micro-batches gather 2 bytes twice and reduce 4, seven eighths of them from others.
    assert step["links in a node"] == pytest.approx(7 * 8 * 7_615_616_512 * 7 / 8 / 225e9 + stepping)
    assert "network" not in step
    whole = times(seven(shard="none")).train(policy, 2)
    # Each rank steps over all parameters, whose gradients the ranks add up once an update.
    assert whole["links in a node"] == pytest.approx(2 * 2 * 4 * 7_615_616_512 * 7 / 8 / 225e9 + 2 * 8 * stepping)
    assert "links in a node" not in times(seven(data_parallel=1)).train(policy, 1)
    assert seconds_of(times(seven(shard="offload")).train(policy, 1)) > step["arithmetic"]
    assert seconds_of(times(seven()).train(policy, 2)) > step["arithmetic"]
    none = times(seven(gradient_checkpointing="none")).train(policy, 1)
    assert none["arithmetic"] - stepping == pytest.approx(0.75 * (step["arithmetic"] - stepping))
    assert times(seven()).push(policy) == {"push inside a node": pytest.approx(15.231233024 / 26)}
    # Critic and reference come and go to score, 2 bytes; policy and critic to train, 14.
    moved = 2 * (2 * 7.0706 + 2 * 7.6156 + 14 * 7.6156 + 14 * 7.0706) / 8
    turns = times(seven()).turns(model_roles(seven(), SEVEN))["sleep, wake, offload"]
    assert turns == pytest.approx(0.9 + moved / 35, rel=0.001)


def test_between_nodes():
    config, two = seven(data_parallel=16), replace(NODE, nodes=2)
    config = replace(config, rollout=replace(config.rollout, engines=16))
    policy, *_ = model_roles(config, SEVEN)
    step = times(config, two).train(policy, 1)
    stepping = 28 * 7_615_616_512 / 16 / 3350e9
    # Four micro-batches reduce 4 bytes each; parameters cross once, and are gathered from the node's copy after that.
    assert step["network"] == pytest.approx((4 * 4 + 2) * 7_615_616_512 / 2 / 200e9 + stepping)
    uneven = seven(data_parallel=12)
    assert times(uneven, two).train(policy, 1)["network"] > step["network"], "no copies, so all gathers cross"
    by_host = replace(config, cluster=replace(config.cluster, push="host"))
    through_host, direct = times(by_host, two).push(policy), times(config, two).push(policy)
    assert through_host == {"object store": pytest.approx(15.231233024 * (1 / 26 + 1 / 3))}
    assert direct["network"] == pytest.approx(15.231233024 / 200)


def test_a_push_that_auto_makes_through_hosts_is_planned_so():
    config = seven(data_parallel=4)
    plans = [
        make_plan(replace(config, cluster=ClusterConfig(push=push)), SEVEN, NODE, ASSUMED) for push in ("auto", "host")
    ]
    assert plans[0].bounds == plans[1].bounds and "a push through hosts" in text(plans[0], [])


def test_the_longest_response():
    assert expected_longest(1, 100, 1e6) == pytest.approx(100)
    assert expected_longest(3, 100, 1e6) == pytest.approx(100 * (1 + 1 / 2 + 1 / 3))
    assert expected_longest(100_000, 100, 500) == pytest.approx(500, rel=0.01), "the limit bounds it"
    assert expected_longest(1, 100, 200) == pytest.approx(100 * (1 - math.exp(-2)))
    assert expected_longest(7, 500, 500) == 500 and expected_longest(0, 100, 500) == 0
    grows = [expected_longest(n, 800, 8096) for n in (100, 1000, 10_000)]
    assert grows == sorted(grows) and grows[2] < 2 * grows[0] and grows[2] < 8096


MEASURED = Assumptions(prompt_fill=0.01, response_fill=1.0, valid_share=0)
"""Random weights: every response has full length, and no proposal is a task."""


def first_h100(**train) -> Config:
    """The run of the table in notes/log.md: 192 responses of 1,024 tokens, trrpp, one GPU."""
    return Config(
        selfplay=SelfPlayConfig(proposer_prompts=32, solver_prompts=32),
        rollout=RolloutConfig(max_prompt_tokens=3072, max_response_tokens=1024, gpu_memory_utilization=0.45),
        train=TrainConfig(tokens_per_micro_batch=16384, **train),
    )


def test_the_measured_rows_of_an_h100_and_an_h200():
    load = Workload.of(first_h100(), MEASURED)
    assert (load.trajectories, load.trained, load.estimates) == (192, 192, 0)
    then = replace(first_h100(kernels="plain"), cluster=ClusterConfig(push="host"))
    slow = make_plan(then, SMALL, ClusterSpec.with_gpus(1), MEASURED).seconds
    assert slow["train policy"] == pytest.approx(12.2, rel=0.1)
    assert load.trained_tokens / slow["train policy"] == pytest.approx(16_500, rel=0.1)
    assert slow["push"] == pytest.approx(4.9, rel=0.05)
    longer = replace(MEASURED, prompt_fill=0.05)  # 226,000 tokens, as then
    load = Workload.of(first_h100(), longer)
    seconds = make_plan(first_h100(), SMALL, ClusterSpec.with_gpus(1), longer).seconds
    assert seconds["play"] == pytest.approx(13.3, rel=0.25)
    assert seconds["train policy"] == pytest.approx(6.3, rel=0.1)
    assert load.trained_tokens / seconds["train policy"] == pytest.approx(36_100, rel=0.1)
    assert seconds["push"] == pytest.approx(0.12, rel=0.2)
    assert seconds["turns"] == pytest.approx(2.04, rel=0.1)
    assert sum(seconds.values()) == pytest.approx(21.4, rel=0.15)


def test_a_published_step_of_8b_on_16_h100s_is_what_the_plan_says_to_expect():
    """GRPO of 2,048 responses of about 1,060 tokens in four optimizer steps, on-policy: 97.7 s (NeMo-RL)."""
    published = Config(
        algorithm=AlgorithmConfig(estimator=GRPO(), kl=KLConfig(coef=0.01), policy_mini_batches=4),
        data=DataConfig(path="rows.jsonl", play="alone", prompts=64, samples=32),
        rollout=RolloutConfig(engines=16, max_prompt_tokens=1024, max_response_tokens=3072, gpu_memory_utilization=0.8),
        train=TrainConfig(data_parallel=16),
    )
    rates, nodes = replace(ASSUMED, prompt_fill=0.2, response_fill=0.345), ClusterSpec.with_gpus(16)
    seconds = make_plan(published, KNOWN["meta-llama/Llama-3.1-8B"], nodes, rates).seconds
    assert 1.2 < 97.7 / sum(seconds.values()) < 1.6, seconds


def test_with_a_step_ahead_proposals_and_what_follows_them_are_decoded_together():
    ahead = replace(
        first_h100(), rollout=replace(first_h100().rollout, staleness=1), cluster=ClusterConfig(colocate=False)
    )
    engine = EngineMemory.of(ahead, SMALL, ClusterSpec.with_gpus(2), MEASURED)
    assert ahead.steps_ahead == 1
    decoding = [
        times(config, ClusterSpec.with_gpus(2), MEASURED).play(model_roles(config, SMALL)[0], engine)["decoding"]
        for config in (first_h100(), ahead)
    ]
    assert decoding[1] < 0.7 * decoding[0]


def test_the_share_of_the_peak_changes_between_the_sizes_that_were_measured():
    shares = [update_share(ASSUMED, KNOWN[f"Qwen/Qwen2.5-{size}"]) for size in ("0.5B", "1.5B", "3B", "7B", "14B")]
    assert shares[0] == 0.325 == pytest.approx(shares[1], abs=0.001) and shares[3] == pytest.approx(0.28, abs=0.001)
    assert shares[1] > shares[2] > shares[3] >= shares[4] == 0.28


def test_slower_parts_make_slower_phases_and_the_slowest_bounds():
    slow = replace(ASSUMED, peak_tflops=100, memory_gb_s=1000)
    slower, now = (make_plan(seven(), SEVEN, NODE, rates) for rates in (slow, ASSUMED))
    assert all(slower.seconds[phase] > now.seconds[phase] for phase in ("play", "score", "train policy"))
    busy = make_plan(seven(), SEVEN, NODE, replace(ASSUMED, driver_ms=1000))
    assert busy.seconds["play"] == pytest.approx(1920) == busy.bounds["play"]["driver"]
    few = make_plan(seven(), SEVEN, NODE, replace(ASSUMED, executor_runs_s=1)).bounds["play"]
    assert few["executor"] == pytest.approx((4 * 192 + 192 * 8 + 192) / 4) == max(few.values())


def test_with_partial_rollouts_nobody_waits_for_the_longest():
    partial = replace(recipe, rollout=replace(recipe.rollout, staleness=1, partial=True))
    waited, full = (
        make_plan(each, SEVEN, NODE, ASSUMED).bounds["play"]["longest response"] for each in (partial, recipe)
    )
    tokens = expected_longest(192, 809.6, 8096) + expected_longest(1536, 809.6, 8096)
    assert waited == pytest.approx(full * 2 * 0.1 * 8096 * math.log(10) / tokens)


@pytest.mark.parametrize("config, gflops, measured_s", [(mini, 1900, 13), (mini, 70, 94), (learn, 1900, 27),
                                                        (learn, 390, 47)])  # fmt: skip
def test_steps_on_cpus_take_what_was_measured_on_three_kinds_of_cpu(config, gflops, measured_s):
    low, high = map(int, re.findall(r"(\d+) min", cpu_time(config, 30, gflops * 1e9)))
    assert 1.15 * low < measured_s * 30 / 60 < high / 1.15


def test_a_machines_products_are_measured_alike_beside_other_work():
    threads = torch.get_num_threads()
    once, again = (product_flops("float32", 0.05) for _ in range(2))
    assert 0.4 < once / again < 2.5 and once > 1e9 and torch.get_num_threads() == threads
