"""The plan against published parameter counts, hand calculations, real allocations and a measured H100."""

import json
import tomllib
from dataclasses import replace

import pytest
import torch

from azr.algorithms.attention import choose_attention
from azr.algorithms.models import CriticModel, PolicyModel
from azr.algorithms.packing import pack
from azr.cluster.push_choice import bucket_bytes
from azr.config import (
    GAE,
    REDUCE_BUCKET,
    TRRPP,
    AblationConfig,
    AlgorithmConfig,
    ClusterConfig,
    Config,
    KLConfig,
    LoraConfig,
    RolloutConfig,
    SelfPlayConfig,
    TrainConfig,
)
from azr.config_rules import contradictions
from azr.config_tree import override
from azr.errors import UserError
from azr.plan.inputs import _SHAPES as SHAPES
from azr.plan.inputs import GIB, KNOWN, Assumptions, ClusterSpec, ModelShape, Workload, shape_of
from azr.plan.memory import (
    ENGINE_GPU,
    NODE_COPIES,
    EngineMemory,
    ModelRole,
    layer_activations,
    model_roles,
    offloaded_optimizer,
    scoring,
    states,
    training,
)
from azr.plan.planner import Plan, check_memory, decide_here, make_plan, plan_run, suggest, text
from azr.records import Completion
from playground.azr_coder7b_ppo import config as recipe
from tests.conftest import byte_tokenizer
from tests.recipes import recipes
from tests.tiny_models import save_tiny

BASE_14M = "data/azr_14m_base"
ASSUMED = Assumptions()
NODE = ClusterSpec(gpus=8, gpu_memory_gib=80)
ONE_48 = ClusterSpec(gpus=1, gpu_memory_gib=48, host_memory_gib=128)
SEVEN = KNOWN["Qwen/Qwen2.5-7B"]
TINY = ModelShape(
    hidden=8, layers=2, heads=2, kv_heads=1, intermediate=16, vocabulary=32, tied=False, head_size=4, qkv_bias=True
)


def seven(**train) -> Config:
    given = {"data_parallel": 8, "shard": "offload", "gradient_checkpointing": "full"} | train
    return Config(
        algorithm=AlgorithmConfig(estimator=GAE(), kl=KLConfig(coef=0.001)),
        rollout=RolloutConfig(engines=given["data_parallel"], gpu_memory_utilization=0.85), train=TrainConfig(**given),
    )  # fmt: skip


def planned(config: Config, shape: ModelShape = SEVEN, nodes: ClusterSpec = NODE) -> Plan:
    return make_plan(config, shape, nodes, ASSUMED)


def test_known_shapes_have_the_published_number_of_parameters():
    for name, parameters in {
        "Qwen/Qwen2.5-0.5B": 494_032_768, "Qwen/Qwen2.5-1.5B": 1_543_714_304, "Qwen/Qwen2.5-Coder-3B": 3_085_938_688,
        "Qwen/Qwen2.5-7B": 7_615_616_512, "Qwen/Qwen2.5-Coder-7B": 7_615_616_512, "Qwen/Qwen2.5-32B": 32_763_876_352,
        "Qwen/Qwen2.5-Coder-14B": 14_770_033_664, "meta-llama/Llama-3.1-8B": 8_030_261_248,
        "Qwen/Qwen3-4B-Base": 4_022_468_096, "Qwen/Qwen3-0.6B": 596_049_920,
        "HuggingFaceTB/SmolLM3-3B": 3_075_098_624, "allenai/Olmo-3-7B-Think": 7_298_011_136,
        "Qwen3.5-2B-text": 1_881_825_088,
    }.items():  # fmt: skip
        assert shape_of(name).parameters == parameters, name


def test_what_a_known_shape_says_was_counted_is_what_is_counted(tmp_path):
    (known,) = (each for each in tomllib.loads(SHAPES.read_text())["shape"] if "counted" in each)
    file, shape = tmp_path / "config.json", KNOWN[known["names"][0]]
    file.write_text(json.dumps({name: value for name, value in known.items() if name not in ("names", "counted")}))
    own = {name: tuple(each) for name, each in shape.own.items()}
    assert shape_of("a/model", str(file)) == replace(shape, own=own)


@pytest.mark.parametrize("change, said", [
    ({"num_key_value_heads": None, "head_dim": None}, None),
    ({"num_attention_heads": "4"}, "has num_attention_heads '4', where a plan needs a whole number"),
    ({"hidden_size": None}, "lacks 'hidden_size'"), (None, "is not a model's config.json: it is not a JSON object"),
])  # fmt: skip
def test_a_config_is_read_as_transformers_reads_it(change, said, tmp_path):
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 8}
    tree = {"model_type": "llama", "vocab_size": 9, **sizes, **(change or {})}
    (tmp_path / "config.json").write_text(json.dumps(tree if change else [tree]))
    if said is None:
        shape = shape_of(str(tmp_path))
        assert shape.kv_heads == 4 and shape.head_size == 16
    else:
        with pytest.raises(UserError, match=said):
            shape_of(str(tmp_path))


@pytest.fixture(scope="module")
def policy() -> PolicyModel:
    return loaded(PolicyModel, torch.float32, logprob_chunk=256)


def loaded(network, dtype, folder=BASE_14M, **options):
    attention, _ = choose_attention("cpu", dtype)
    return network.from_pretrained(folder, dtype=dtype, attention=attention, **options)


def test_states_of_the_mini_are_what_torch_allocates(policy):
    shape, config = shape_of(BASE_14M), Config(algorithm=AlgorithmConfig(estimator=GAE()))
    train = replace(config.train, dtype="float32")
    critic = loaded(CriticModel, torch.float32)
    for role, network in zip(model_roles(config, shape), (policy, critic), strict=True):
        optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)
        for parameter in network.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        kept = [tensor for state in optimizer.state.values() for tensor in state.values()]
        gradients = [parameter.grad for parameter in network.parameters()]
        real = {"parameters": network.parameters(), "gradients": gradients, "optimiser": kept}
        counted = states(role, train)
        for what, tensors in real.items():
            assert sum(t.nbytes for t in tensors) == pytest.approx(counted[what], rel=0.01), (role.name, what)
        assert sum(p.numel() for p in network.parameters()) == role.parameters


@pytest.mark.parametrize("family", ["the mini", "qwen3_5_text"])
def test_activations_are_what_autograd_keeps(family, tmp_path):
    recurrent = {"layer_types": ["linear_attention"] * 2}
    folder = BASE_14M if family == "the mini" else str(save_tiny(tmp_path, family, byte_tokenizer(), **recurrent))
    shape, tokens = shape_of(folder), 600
    network = loaded(PolicyModel, torch.bfloat16, folder, logprob_chunk=256).train()
    own = {parameter.untyped_storage().data_ptr() for parameter in network.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    ids = tuple(torch.randint(5, shape.vocabulary, (tokens,)).tolist())
    batch = pack([Completion(prompt_ids=ids[:1], response_ids=ids[1:], logprobs=0.0,
                             finish_reason="length", weight_versions=0)])  # fmt: skip
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(batch, 1.0)
    role = ModelRole(name="policy", shape=shape, parameters=shape.parameters, trained=shape.parameters, has_head=True)
    expected = shape.layers * layer_activations(shape, 2) * tokens + 12 * shape.hidden * tokens
    assert sum(kept.values()) == pytest.approx(expected, rel=0.15)
    plain = training(role, TrainConfig(gradient_checkpointing="none"), tokens)["activations"]
    assert plain == pytest.approx(sum(kept.values()), rel=0.3), "the worst moment's own arrays come on top"


def test_a_tiny_shape_and_the_budget_of_a_kv_cache_by_hand():
    attention = 8 * 8 + 8 + 2 * (8 * 4 + 4) + 8 * 8
    assert TINY.in_layers // TINY.layers == attention + 3 * 8 * 16 + 2 * 8 == 608
    assert TINY.parameters == 2 * 32 * 8 + 2 * 608 + 8 == 1736
    assert TINY.critic == 32 * 8 + 2 * 608 + 8 + 8 + 1 == 1489
    # Per token and layer in bfloat16: norms 2·(4+2+2)·8, attention 2·(2·8+2·4) and 2 heads' float32, MLP 4·2·16.
    assert layer_activations(TINY, 2) == 128 + 48 + 8 + 128
    engine = EngineMemory.of(seven(), SEVEN, NODE, ASSUMED)
    assert engine.kv_token == 2 * 28 * 4 * 128 * 2
    left = 0.85 * 80 * GIB - 2 * 7_615_616_512 - ASSUMED.engine_work_gib * GIB
    assert engine.kv_tokens == int(left / 57344)
    wide = replace(seven(), rollout=RolloutConfig(engines=1, tensor_parallel=8))
    assert EngineMemory.of(wide, SEVEN, NODE, ASSUMED).kv_token == 57344 / 4, "four key heads on eight GPUs are copied"


def test_batch_in_prompts_trajectories_and_tokens():
    load = Workload.of(seven(), ASSUMED)
    assert (load.prompts, load.trajectories, load.trained) == (3 * 64 * 3, 192 + 192 * 8 + 192, 384)
    assert seven().max_trajectory_tokens == 14240 and load.max_tokens == 384 * 14240
    play = SelfPlayConfig(train_on_estimates=True)
    assert Workload.of(replace(seven(), selfplay=play), ASSUMED).trained == 384 + 192 * 8
    derived = Workload.of(replace(seven(), selfplay=replace(play, derived_tasks=2)), ASSUMED)
    assert derived.estimate_prompts == 192 * (1 + 2 * 3) and derived.trained == 384 + derived.estimates
    again = Workload.of(replace(seven(), selfplay=replace(play, repeated_tasks=16)), ASSUMED)
    assert again.estimates == (192 + 3 * 16) * 8 and again.trained == 384 + again.estimates
    stored = Workload.of(replace(seven(), ablation=AblationConfig(new_tasks=False)), ASSUMED)
    assert (stored.proposals, stored.estimates, stored.trained) == (0, 192 * 8, 192)
    solver_only = replace(seven(), ablation=AblationConfig(train_proposer=False))
    assert Workload.of(solver_only, ASSUMED).trained == 192


def test_suggestions_turns_the_options_in_order_until_it_fits():
    plan = planned(seven(shard="zero3", gradient_checkpointing="none"))
    assert plan.problems
    suggestions = suggest(plan, ASSUMED)
    options = [change.option for change in suggestions]
    assert options == ["--train.shard offload", "--train.gradient-checkpointing auto"]
    assert not suggestions[-1].problems
    assert "fits)" in text(plan, suggestions) and "does not fit" in text(plan, suggestions)


def test_suggestions_for_too_few_gpus_or_an_engine_without_room_for_a_trajectory():
    plan = planned(seven(), nodes=replace(NODE, gpus=4))
    assert plan.problems == ["it asks for 8 GPUs and there are 4"]
    (only,) = suggest(plan, ASSUMED)
    assert only.option.startswith("--train.data-parallel 4 --rollout.engines 4 ")
    assert not only.problems
    wide = replace(seven(), rollout=RolloutConfig(engines=2, tensor_parallel=4))
    first, *_ = suggest(planned(wide, nodes=replace(NODE, gpus=5)), ASSUMED)  # 5 divides no batch
    assert first.option == "--train.data-parallel 4 --rollout.engines 4 --rollout.tensor-parallel 1"
    starved = replace(seven(), rollout=RolloutConfig(engines=8, gpu_memory_utilization=0.2))
    plan = planned(starved)
    assert "KV cache holds 0 tokens" in plan.problems[0]
    assert [change.option for change in suggest(plan, ASSUMED)] == ["--rollout.gpu-memory-utilization 0.25"]


def test_where_only_less_training_fits_that_is_proposed():
    """7B on one card of 48 GB and 128 GB of host memory; its batch has no parts for more than two cards."""
    play = SelfPlayConfig(proposer_prompts=21, solver_prompts=21)
    plan = planned(replace(seven(data_parallel=1), selfplay=play, rollout=RolloutConfig(engines=1)), nodes=ONE_48)
    suggestions = suggest(plan, ASSUMED)
    options = [change.option for change in suggestions]
    assert "--train.lora.rank 32" in options and not suggestions[-1].problems
    assert "fits)" in text(plan, suggestions) and "no option" not in text(plan, suggestions)
    assert list(contradictions(suggestions[-1].config)) == []


def test_whole_models_are_split_before_they_are_offloaded():
    whole = override(recipes()["azr_coder7b_ppo"], {"train.shard": "none"})
    (only,) = suggest(planned(whole), ASSUMED)
    assert only.option == "--train.shard zero3" and not only.problems
    with pytest.raises(UserError, match="does not fit on"):
        check_memory(planned(whole))


def test_auto_recomputes_no_more_than_nine_tenths_of_the_memory_ask_for():
    auto = seven(shard="zero3", gradient_checkpointing="auto")
    chosen = {}
    for size, gib in (("0.5B", 80), ("1.5B", 80), ("7B", 80), ("7B", 320)):
        nodes, shape = replace(NODE, gpu_memory_gib=gib), KNOWN[f"Qwen/Qwen2.5-{size}"]
        plan = make_plan(auto, shape, nodes, ASSUMED)
        chosen[size, gib] = plan.decided.train.gradient_checkpointing
        assert f"\n  {plan.because}\n" in text(plan, []) and f" auto is {chosen[size, gib]}: " in plan.because
        modes = {mode: make_plan(seven(shard="zero3", gradient_checkpointing=mode), shape, nodes, ASSUMED)
                 for mode in ("none", "selective", "full")}  # fmt: skip
        assert modes[chosen[size, gib]].memory == plan.memory and suggest(plan, ASSUMED) == []
        fits = [mode for mode, each in modes.items()
                if max(each.total("train policy"), each.total("train critic")) <= 0.9 * each.usable]  # fmt: skip
        assert fits[0] == chosen[size, gib]
    assert chosen == {("0.5B", 80): "none", ("1.5B", 80): "none", ("7B", 80): "full", ("7B", 320): "none"}
    mini = recipes()["azr_14m_mini"]
    for gib, mode in ((2.8, "none"), (2.5, "selective"), (1, "full")):
        decided, because = decide_here(mini, gib, on_cpu=True)
        assert decided.train.gradient_checkpointing == mode and f" auto is {mode}: " in because
        assert decide_here(decided, 0, on_cpu=True) == (decided, "")


@pytest.mark.parametrize(("recipe", "gpus"), [("azr_coder3b_ppo", 2), ("azr_7b_ppo", 4), ("azr_14b_ppo", 8)])
def test_the_gpus_that_the_paper_s_authors_publish_as_enough_are_enough(recipe: str, gpus: int):
    config = recipes()[recipe]
    engines = gpus // config.rollout.tensor_parallel
    config = replace(config, rollout=replace(config.rollout, engines=engines))
    config = replace(config, train=replace(config.train, data_parallel=gpus))
    plan, _ = plan_run(config, ClusterSpec(gpus=gpus, gpu_memory_gib=80), ASSUMED)
    assert plan.problems == []


def test_adapters_of_seven_billion_by_hand():
    """With them there is no second model for the KL, the optimizer holds adapters only, and no vocabulary gradient."""
    lora = LoraConfig(rank=16, targets=("q_proj", "v_proj"))
    adapters = 28 * 16 * ((3584 + 3584) + (3584 + 512))
    assert SEVEN.adapters(16, lora.targets) == adapters
    each = 2 * (3584 + 3584) + 2 * (3584 + 512) + 3 * (3584 + 18944)
    assert SEVEN.adapters(8, ("all-linear",)) == 28 * 8 * each
    config = seven(shard="zero3", lora=lora)
    policy, critic = model_roles(config, SEVEN)
    assert (policy.trained, critic.trained) == (adapters, adapters + 3584 + 1)
    sizes = states(policy, config.train)
    assert sizes["parameters"] == 2 * (7_615_616_512 + adapters) / 8
    assert (sizes["gradients"], sizes["optimiser"]) == (4 * adapters / 8, 12 * adapters / 8)
    assert training(policy, config.train, 16384)["vocabulary gradient"] == 0
    plan, whole = planned(config), planned(seven(shard="zero3"))
    assert "score policy" in plan.memory and "score reference" in whole.memory
    assert plan.total("train policy") < whole.total("train policy") / 2
    assert plan.seconds["train policy"] < whole.seconds["train policy"]


def test_four_bits_of_seven_billion_by_hand():
    """A scale of 8 bits for each 64 weights, one of 32 bits for each 256 scales, and all else in the compute type."""
    linear = 28 * (2 * 3584 * 3584 + 2 * 3584 * 512 + 3 * 3584 * 18944)
    config = seven(lora=LoraConfig(rank=16, four_bit=True))
    policy, critic = model_roles(config, SEVEN)
    others = 7_615_616_512 - linear + SEVEN.adapters(16, ("all-linear",))
    packed = linear / 2 + linear / 64 + 4 * linear / 64 / 256
    assert states(policy, config.train)["parameters"] * 8 == pytest.approx(packed + 2 * others)
    assert states(critic, config.train)["parameters"] < states(policy, config.train)["parameters"]
    engine = EngineMemory.of(config, SEVEN, NODE, ASSUMED)
    assert engine.weights == 2 * 7_615_616_512, "engines hold the compute type"


LEARNING = ("score critic", "score reference", "train policy", "train critic")


def test_roles_visit_the_gpu_one_after_the_other_and_only_processes_stay_while_engines_play():
    plan = planned(seven())
    assert list(plan.memory) == ["play", *LEARNING, "push", "resume"]
    assert plan.memory["play"].keys() == {"CUDA and NCCL", "engine weights", "KV cache", "engine work"}
    assert plan.memory["play"]["CUDA and NCCL"] == pytest.approx(3 * (0.6 + 0.6) * GIB)
    assert plan.total("play") == pytest.approx(0.85 * 80 * GIB + 3 * 1.2 * GIB)
    assert all("engine weights" not in plan.memory[phase] for phase in LEARNING)
    assert all(plan.memory[phase]["engine asleep"] == 2 * GIB for phase in LEARNING)
    push = plan.memory["push"]
    assert {"policy parameters", "engine weights"} <= push.keys()
    assert not {"KV cache", "critic parameters", "policy gradients"} & push.keys()
    plan = planned(seven(shard="zero3"))
    roles = ("policy", "critic", "reference")
    for phase in LEARNING:
        assert sum(any(what.startswith(role) for what in plan.memory[phase]) for role in roles) == 1
    share = (1 + ASSUMED.fragmentation) * plan.roles[0].parameters / 8
    training_of = plan.memory["train policy"]
    assert training_of["policy parameters"] == pytest.approx(2 * share)
    assert training_of["policy gradients"] + training_of["policy optimiser"] == pytest.approx(16 * share)
    assert not {"critic gradients", "critic optimiser"} & plan.memory["score critic"].keys()
    resume = plan.memory["resume"]
    assert {what.split()[0] for what in resume} & {*roles} == {"policy"} and resume["engine asleep"] == 2 * GIB
    assert resume["policy optimiser"] == training_of["policy optimiser"]
    alone = AlgorithmConfig(estimator=TRRPP(), policy_mini_batches=2)
    stays = planned(replace(seven(shard="zero3"), algorithm=alone))
    # What one process once used it keeps until the turn ends.
    assert stays.total("score policy") == pytest.approx(stays.total("train policy"))
    assert "critic parameters" not in plan.memory["train policy"]
    apart = planned(replace(seven(data_parallel=4), cluster=ClusterConfig(colocate=False)))
    for phase in ("train policy", "resume"):
        assert {f"{role} parameters" for role in roles} <= apart.memory[phase].keys()


def test_host_memory_holds_what_leaves_the_gpu_and_is_compared_when_given():
    plan = planned(seven(), nodes=replace(NODE, host_memory_gib=128))
    optimizers, away, processes = (size / GIB for size in plan.host.values())
    # Three roles on eight ranks, and eight engines of two processes each.
    assert processes == 24 * 2.5 + 16 * 3
    assert plan.problems == [
        f"a node's 128 GiB of host memory are less than {optimizers + away + processes:.0f} GiB: optimizers "
        f"{optimizers:.0f}, trainers while engines play {away:.0f}, processes 108"
    ]
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
    largest = 2 * 152064 * 3584  # the embedding, more than 1 GiB
    assert (plan.memory["push"]["weight buckets"], plan.memory[ENGINE_GPU]["weight buckets"]) == (
        3 * largest,
        2 * largest,
    )
    together = planned(seven(shard="none"), KNOWN["Qwen/Qwen2.5-0.5B"]).memory["push"]["weight buckets"]
    assert together == 4 * 2 * KNOWN["Qwen/Qwen2.5-0.5B"].parameters, "no bucket is larger than the model"
    assert [bucket_bytes(way, 5 << 30, 9) >> 20 for way in ("host", "ipc", "nccl")] == [256, 1024, 1024]
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


def test_selective_checkpointing_and_seven_billion_on_eight_by_hand():
    share = 7_615_616_512 / 8
    policy, critic, reference = model_roles(seven(), SEVEN)
    on_gpu = states(policy, seven(shard="zero3").train)
    assert on_gpu == {
        "parameters": 2 * share, "gradients": 4 * share, "optimiser": 12 * share, "reduce bucket": 4.0 * REDUCE_BUCKET
    }  # fmt: skip
    whole = states(policy, seven(shard="none").train)
    assert whole == {name: 8 * size for name, size in on_gpu.items()} | {"reduce bucket": 0}
    offloaded = states(policy, seven().train)
    assert offloaded["gradients"] == offloaded["optimiser"] == 0
    assert offloaded_optimizer(policy, seven().train) == 20 * share
    assert states(reference, seven().train)["reduce bucket"] == 0 == offloaded_optimizer(reference, seven().train)
    assert critic.parameters == 7_615_616_512 - 152064 * 3584 + 3584 + 1
    # 28 layers' inputs; then either one layer again (norms 2·8·3584, attention 2·2·(3584+512) and 28 heads' float32,
    # MLP 8·18944) with its backward's own arrays and the output head's gradient, or the logits.
    per_token = 28 * 2 * 3584 + (57344 + 16384 + 112 + 151552) + 3 * 2 * 18944 + 8 * 3584
    worst = training(policy, seven().train, 16384)
    assert worst["activations"] == 16384 * per_token
    assert worst["vocabulary gradient"] == 6 * 152064 * 3584
    assert scoring(reference, seven().train, 16384)["logits"] == 2 * 4 * 2048 * 152064
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


def test_what_was_measured_on_an_h100_and_32k_responses_of_7b_fit_on_eight_gpus():
    small, one = KNOWN["Qwen/Qwen2.5-1.5B"], ClusterSpec.with_gpus(1)
    plan = make_plan(one_gpu(gradient_checkpointing="full"), small, one, ASSUMED)
    outside = ("CUDA and NCCL", "engine asleep")
    kept = sum(size for what, size in plan.memory["train policy"].items() if what not in outside)
    assert kept == pytest.approx(37e9, rel=0.03), "the policy was seen to keep 37 GB after an update"
    states_of = states(plan.roles[0], plan.config.train)
    assert sum(states_of.values()) == pytest.approx(18 * 1_543_714_304 + 4 * 50e6)
    without = make_plan(one_gpu(gradient_checkpointing="none"), small, one, ASSUMED)
    assert not plan.problems and any("train policy takes" in problem for problem in without.problems)
    rollout = replace(recipe.rollout, max_response_tokens=32768)
    config = replace(recipe, rollout=rollout, train=replace(recipe.train, tokens_per_micro_batch=6144 + 32768))
    plan = make_plan(config, SEVEN, NODE, ASSUMED)
    assert plan.problems == [] and "fits on 1 node(s) of 8 GPU(s)" in text(plan, [])
    assert plan.engine.kv_tokens > 20 * config.max_trajectory_tokens
    assert plan.total("play") / GIB == pytest.approx(71.6, abs=0.1)
    assert plan.total("train policy") / GIB == pytest.approx(50.9, abs=0.1)
    # Without turns, policy, critic and an engine would be there at once.
    assert plan.total("train policy") + plan.total("train critic") > plan.usable
