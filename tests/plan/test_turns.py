"""Memory in turns: what is where while engines play and while trainers learn, and the measured H100."""

from dataclasses import replace

import pytest

from azr.config import TRRPP, AlgorithmConfig, ClusterConfig, Config, RolloutConfig, TrainConfig
from azr.plan.inputs import GIB, KNOWN, ClusterSpec
from azr.plan.memory import ENGINE_GPU, NODE_COPIES, model_roles, states, training
from azr.plan.planner import make_plan, suggest, text
from playground.azr_coder7b_ppo import config as recipe
from tests.plan.test_plan import ASSUMED, NODE, SEVEN, planned, seven

LEARNING = ("score critic", "score reference", "train policy", "train critic")


def test_while_engines_play_only_the_trainers_processes_stay():
    plan = planned(seven())
    assert list(plan.memory) == ["play", *LEARNING, "push"]
    assert plan.memory["play"].keys() == {"CUDA and NCCL", "engine weights", "KV cache", "engine work"}
    assert plan.memory["play"]["CUDA and NCCL"] == pytest.approx(3 * (0.6 + 0.6) * GIB)
    assert plan.total("play") == pytest.approx(0.85 * 80 * GIB + 3 * 1.2 * GIB)
    assert all("engine weights" not in plan.memory[phase] for phase in LEARNING)
    assert all(plan.memory[phase]["engine asleep"] == 2 * GIB for phase in LEARNING)
    push = plan.memory["push"]
    assert {"policy parameters", "engine weights"} <= push.keys()
    assert not {"KV cache", "critic parameters", "policy gradients"} & push.keys()


def test_policy_critic_and_reference_visit_the_gpu_one_after_the_other():
    plan = planned(seven(shard="zero3"))
    roles = ("policy", "critic", "reference")
    for phase in LEARNING:
        assert sum(any(what.startswith(role) for what in plan.memory[phase]) for role in roles) == 1
    share = (1 + ASSUMED.fragmentation) * plan.roles[0].parameters / 8
    training_of = plan.memory["train policy"]
    assert training_of["policy parameters"] == pytest.approx(2 * share)
    assert training_of["policy gradients"] + training_of["policy optimiser"] == pytest.approx(16 * share)
    assert not {"critic gradients", "critic optimiser"} & plan.memory["score critic"].keys()
    alone = AlgorithmConfig(estimator=TRRPP(), policy_mini_batches=2)
    stays = planned(replace(seven(shard="zero3"), algorithm=alone))
    # What one process once used it keeps until the turn ends.
    assert stays.total("score policy") == pytest.approx(stays.total("train policy"))
    assert "critic parameters" not in plan.memory["train policy"]
    apart = planned(replace(seven(data_parallel=4), cluster=ClusterConfig(colocate=False)))
    assert {f"{role} parameters" for role in roles} <= apart.memory["train policy"].keys()


def test_what_leaves_the_gpu_is_in_host_memory():
    plan = planned(seven())
    policy, critic, reference = plan.roles
    assert plan.host["optimizers"] == 8 * (20 / 8) * (policy.parameters + critic.parameters)
    away = 2 * (policy.parameters + critic.parameters + reference.parameters)
    assert plan.host["trainers while engines play"] == pytest.approx(away * ASSUMED.pinned_rounding)
    on_gpu = planned(seven(shard="zero3"))
    assert on_gpu.host["optimizers"] == 0
    with_states = away + 12 * (policy.parameters + critic.parameters)
    assert on_gpu.host["trainers while engines play"] == pytest.approx(with_states * ASSUMED.pinned_rounding)
    assert on_gpu.total("play") == plan.total("play") and on_gpu.total("train policy") > plan.total("train policy")


def test_engines_apart_have_gpus_of_their_own_and_nothing_is_moved():
    together = seven(data_parallel=4)
    config = replace(together, cluster=ClusterConfig(colocate=False))
    plan = planned(config)
    assert plan.config.num_gpus == 8 and not plan.problems
    trainers = [parts for phase, parts in plan.memory.items() if phase != ENGINE_GPU]
    engines = {"engine weights", "KV cache", "engine work", "engine asleep"}
    assert all(not engines & parts.keys() and "policy parameters" in parts for parts in trainers)
    budget = 0.85 * NODE.gpu_memory_gib * GIB
    assert plan.total(ENGINE_GPU) - plan.memory[ENGINE_GPU]["weight buckets"] == pytest.approx(budget)
    assert plan.host["trainers while engines play"] == 0 and "turns" not in plan.seconds
    first, *_ = suggest(planned(config, nodes=replace(NODE, gpus=4)), ASSUMED)
    assert first.option.startswith("--train.data-parallel 2 --rollout.engines 2 "), "half of the GPUs train"


def test_over_nodes_each_keeps_a_copy_of_the_parameters():
    sixteen = seven(data_parallel=16)
    plan = planned(sixteen, nodes=replace(NODE, nodes=2))
    copies = f"policy {NODE_COPIES}"
    share = (1 + ASSUMED.fragmentation) * 2 * plan.roles[0].parameters / 8
    assert plan.memory["train policy"][copies] == pytest.approx(share)
    assert copies not in plan.memory["play"] and copies not in planned(seven()).memory["train policy"]
    uneven = planned(seven(data_parallel=12), nodes=replace(NODE, nodes=2))
    assert copies not in uneven.memory["train policy"], "eight ranks and four are not alike"


def learning(config: Config, nodes: ClusterSpec = NODE) -> float:
    return planned(config, nodes=nodes).total("train policy")


def test_knobs_move_bytes_the_way_they_should():
    now = learning(seven())
    assert learning(seven(shard="zero3")) > now
    none, selective = (learning(seven(gradient_checkpointing=mode)) for mode in ("none", "selective"))
    assert none > selective > now
    assert learning(seven(tokens_per_micro_batch=32768)) > now > learning(seven(tokens_per_micro_batch=14240))
    assert learning(seven(data_parallel=4)) > now
    assert learning(seven(dtype="float32")) > now
    less = replace(seven(), rollout=RolloutConfig(engines=8, gpu_memory_utilization=0.3))
    assert learning(less) == now, "the engine's share is not there while trainers learn"
    assert planned(less).total("play") == pytest.approx(planned(seven()).total("play") - 0.55 * 80 * GIB)
    sizes = [KNOWN[f"Qwen/Qwen2.5-{size}"] for size in ("0.5B", "1.5B", "3B", "7B", "14B")]
    totals = [planned(seven(), shape).total("train policy") for shape in sizes]
    assert totals == sorted(totals)


def test_selective_checkpointing_keeps_every_second_layer():
    role, tokens = model_roles(seven(), SEVEN)[0], 100_000
    full, selective, none = (
        training(role, TrainConfig(gradient_checkpointing=mode), tokens)["activations"]
        for mode in ("full", "selective", "none")
    )
    per_layer = 2 * 8 * 3584 + 2 * 2 * (3584 + 512) + 4 * 28 + 8 * 18944
    assert selective - full == pytest.approx(14 * tokens * (per_layer - 2 * 3584))
    assert none - selective == pytest.approx(14 * tokens * (per_layer - 2 * 3584) - tokens * per_layer)


def one_gpu(**train) -> Config:
    """As the first H100 ran it: 1.5B, trrpp, 192 trajectories, micro-batches of 16,260 tokens, ZeRO-3."""
    return Config(
        rollout=RolloutConfig(max_prompt_tokens=3072, max_response_tokens=1024, gpu_memory_utilization=0.45),
        algorithm=AlgorithmConfig(estimator=TRRPP()),
        train=TrainConfig(tokens_per_micro_batch=16260, shard="zero3", **train),
    )


def test_what_was_measured_on_an_h100():
    small, one = KNOWN["Qwen/Qwen2.5-1.5B"], ClusterSpec.with_gpus(1)
    plan = make_plan(one_gpu(), small, one, ASSUMED)
    outside = ("CUDA and NCCL", "engine asleep")
    kept = sum(size for what, size in plan.memory["train policy"].items() if what not in outside)
    assert kept == pytest.approx(37e9, rel=0.03), "the policy was seen to keep 37 GB after an update"
    states_of = states(plan.roles[0], plan.config.train)
    assert sum(states_of.values()) == pytest.approx(18 * 1_543_714_304 + 4 * 50e6)
    without = make_plan(one_gpu(gradient_checkpointing="none"), small, one, ASSUMED)
    assert not plan.problems and any("train policy takes" in problem for problem in without.problems)


def test_32k_responses_of_7b_fit_on_eight_gpus():
    rollout = replace(recipe.rollout, max_response_tokens=32768)
    config = replace(recipe, rollout=rollout, train=replace(recipe.train, tokens_per_micro_batch=6144 + 32768))
    plan = make_plan(config, SEVEN, NODE, ASSUMED)
    assert plan.problems == [] and "fits on 1 node(s) of 8 GPU(s)" in text(plan, [])
    assert plan.engine.kv_tokens > 20 * config.max_trajectory_tokens
    assert plan.total("play") / GIB == pytest.approx(71.6, abs=0.1)
    assert plan.total("train policy") / GIB == pytest.approx(50.9, abs=0.1)
    # Without turns, policy, critic and an engine would be there at once.
    assert plan.total("train policy") + plan.total("train critic") > plan.usable
