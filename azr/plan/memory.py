"""Bytes on the fullest GPU, phase by phase, counted from what the trainers and engines really do.

Legend of one-letter names: T tokens of a micro-batch, H hidden size, V vocabulary, b bytes of the compute type.

What happens, and where, when engines share the trainers' GPUs: they take turns (`azr.cluster.gpu_turns`). While engines
play, parameters, gradients and optimizer state are in host memory, and of each trainer process its CUDA context and its
NCCL buffers stay. While trainers learn, engines keep their contexts and graphs, and policy, critic and reference visit
the GPU one after the other: only its parameters to score, all of its state to train. In between, parameters of the
policy and weights of the engine are both there, and the KV cache is not. Models are built, and loaded from a
checkpoint, one after the other too.

A model that has no others beside it stays for the whole turn, and torch's allocator keeps the most that it used. Where
engines have GPUs of their own nothing is moved. Fused kernels keep less than is counted here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from azr.cluster.push_choice import bucket_bytes
from azr.config import KEYS_PER_TOKEN, LOGPROB_CHUNK, REDUCE_BUCKET, Config, TrainConfig
from azr.plan.inputs import GIB, Assumptions, ClusterSpec, ModelShape, Workload, with_push

LIVE_PARAMETERS = 1_000_000_000
"""Gathered parameter elements that ZeRO-3 keeps for reuse, and largest piece of an optimizer step: its defaults."""
FOUR_BIT = 0.5 + (1 + 4 / 256) / 64
"""Bytes of a weight that is held in 4 bits: each 64 have a scale of 8 bits, and each 256 scales one of 32."""
LOGIT_COPIES = 3
"""float32 arrays (chunk, V) alive at once in the backward of `azr.algorithms.logprobs`."""

ALLOCATOR_CACHE = "kept by allocators"
NODE_COPIES = "copies in the node"
"""hpZ: over several nodes, each keeps the parameters once while it computes (`azr.hardware.hpz_partition_size`)."""
ENGINE_GPU = "engine's GPU"
"""The column of the GPUs that engines have to themselves; it is the same in every phase."""

Bytes = Mapping[str, float]
"""Bytes by what takes them."""
RECOMPUTED: dict[Literal["full", "selective", "none"], float] = {"none": 0.0, "selective": 0.5, "full": 1.0}
"""Share of the layers whose activations the backward computes again, by `train.gradient_checkpointing`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRole:
    """A network with ranks of its own: policy, critic or reference."""

    name: str
    shape: ModelShape
    parameters: int
    """Adapters included."""
    trained: int
    """Number of trained parameters; 0 for a model that is not trained."""
    has_head: bool = True
    """Its output head is as large as the vocabulary."""

    @property
    def trains(self) -> bool:
        return self.trained > 0

    @property
    def trains_all(self) -> bool:
        """Not its adapters alone."""
        return self.trained == self.parameters


def model_roles(config: Config, shape: ModelShape) -> list[ModelRole]:
    """Those the config calls for, the policy first; all start from one model of this shape."""
    lora = config.train.lora
    adapters = shape.adapters(lora.rank, lora.targets)
    whole, of_critic = shape.parameters, adapters + shape.hidden + 1 if adapters else shape.critic
    policy = ModelRole(name="policy", shape=shape, parameters=whole + adapters, trained=adapters or whole)
    critic = replace(policy, name="critic", parameters=shape.critic + adapters, trained=of_critic, has_head=False)
    reference = replace(policy, name="reference", parameters=whole, trained=0)
    return [policy, *[critic] * config.algorithm.needs_critic, *[reference] * config.has_reference]


def scorers(config: Config, roles: Sequence[ModelRole]) -> list[ModelRole]:
    """Those that look at the batch before any is trained: not a policy that takes a single optimizer step, unless it is
    the reference too."""
    algorithm = config.algorithm
    policy = algorithm.policy_mini_batches > 1 or (algorithm.needs_reference and not config.has_reference)
    return [role for role in roles if role.name != "policy" or policy]


def element_bytes(train: TrainConfig) -> int:
    """b: 2 or 4, on a GPU."""
    return 4 if train.dtype == "float32" else 2


def shares(train: TrainConfig) -> int:
    """Parts in which the ranks hold a model."""
    return train.data_parallel if train.is_sharded else 1


def states(role: ModelRole, train: TrainConfig) -> dict[str, float]:
    """Between phases, one rank's share, with float32 gradients and Adam moments, and a float32 master copy."""
    b, share = element_bytes(train), role.trained / shares(train)
    linear = role.shape.linear if train.lora.four_bit and role.trains else 0
    parameters = b * (role.parameters - linear) + FOUR_BIT * linear
    sizes = {"parameters": parameters / shares(train), "gradients": 0.0, "optimiser": 0.0, "reduce bucket": 0.0}
    if role.trains:
        sizes["reduce bucket"] = 4.0 * REDUCE_BUCKET * train.is_sharded
        if not train.offload_optimizer:
            sizes |= {"gradients": 4 * share, "optimiser": (8 + 4 * (b < 4)) * share}
    return sizes


def offloaded_optimizer(role: ModelRole, train: TrainConfig) -> float:
    """Bytes of one rank on the host for good: master copy, two moments, and gradients as summed and as stepped on."""
    return 20 * role.trained / train.data_parallel if train.offload_optimizer else 0.0


def checkpoint_bytes(roles: Sequence[ModelRole], train: TrainConfig) -> float:
    """Bytes of a checkpoint: a float32 copy and two moments of what is trained, and the policy's weights."""
    return 12 * sum(role.trained for role in roles) + element_bytes(train) * sum(role.trained for role in roles[:1])


def offloaded_bytes(role: ModelRole, train: TrainConfig) -> float:
    """Bytes of one rank that wait in host memory while engines play; gradients are dropped."""
    sizes = states(role, train)
    return sizes["parameters"] + sizes["optimiser"]


def node_copies(role: ModelRole, train: TrainConfig, nodes: ClusterSpec) -> float:
    """Bytes of one rank's share of the parameters that a node keeps for itself; none where there is one node."""
    ranks = min(train.data_parallel, nodes.gpus)
    if not train.is_sharded or train.data_parallel == ranks or ranks == 1 or train.data_parallel % ranks:
        return 0.0
    return element_bytes(train) * role.parameters / ranks


def host_memory(
    config: Config, roles: Sequence[ModelRole], nodes: ClusterSpec, assumed: Assumptions
) -> dict[str, float]:
    """Bytes per node, by what they hold."""
    train = config.train
    ranks = min(train.data_parallel, nodes.gpus)
    away = sum(offloaded_bytes(role, train) for role in roles) * config.cluster.colocate
    # Of an engine the actor, vLLM's core, and a worker for each of several GPUs.
    width = config.rollout.tensor_parallel
    processes = min(config.rollout.engines, nodes.gpus // width) * (2 + width * (width > 1))
    return {
        "optimizers": ranks * sum(offloaded_optimizer(role, train) for role in roles),
        "trainers while engines play": ranks * away * assumed.pinned_rounding,
        "processes": GIB * (ranks * len(roles) * assumed.trainer_host_gib + processes * assumed.engine_host_gib),
    }


def layer_activations(shape: ModelShape, b: int, keys: float = 1.0) -> float:
    """Bytes per token that one layer keeps for its backward.

    Norms keep a float32 copy, what they normalised and their output; attention its rotated queries, `keys` keys and
    values per token, output and float32 normalisers; the MLP four arrays of its width. Where some layers have a delta
    rule instead, which keeps more, all are counted so: 94 bytes per token and value in bfloat16, measured with
    PyTorch's own code of it.
    """
    norms = shape.family.norms * (4 + 2 * b) * shape.hidden
    attention = b * (2 * shape.query + 2 * keys * shape.key) + 4 * shape.heads
    head_norms = (4 + b) * (shape.query + shape.key) * (shape.family.qk_norm != "none")
    of_delta, values = shape.own.get("out_proj", (1, 0))
    delta = (54 + 20 * b) * keys * values / of_delta
    return norms + max(attention + head_norms, delta) + 4 * b * shape.intermediate


def gathered(role: ModelRole, train: TrainConfig) -> float:
    """Most bytes of whole parameters at hand in a pass; 0 for a rank that has them anyway."""
    if shares(train) == 1:
        return 0.0
    most = LIVE_PARAMETERS + REDUCE_BUCKET + max(role.shape.largest, role.shape.in_layers // role.shape.layers)
    return float(element_bytes(train) * min(role.parameters, most))


def scoring(role: ModelRole, train: TrainConfig, tokens: int) -> Bytes:
    """On top of `states` in a pass without gradients over T = `tokens` tokens."""
    b, shape = element_bytes(train), role.shape
    layer = tokens * (max(3 * b * shape.intermediate, 12 * shape.hidden) + 2 * b * shape.hidden)
    logits = 2 * 4 * min(LOGPROB_CHUNK, tokens) * shape.vocabulary * role.has_head
    return {"gathered layers": gathered(role, train), "activations": layer, "logits": logits}


def training(role: ModelRole, train: TrainConfig, tokens: int, keys: float = 1.0) -> Bytes:
    """On top of `states` at the worst moment of an optimizer step with micro-batches of T = `tokens` tokens, each of
    which has `keys` keys."""
    b, shape = element_bytes(train), role.shape
    per_layer = layer_activations(shape, b, keys) * tokens
    share = RECOMPUTED[train.checkpointing]
    kept = shape.layers * (share * b * shape.hidden * tokens + (1 - share) * per_layer)
    recomputed = per_layer if share else 0.0
    backward = tokens * (max(3 * b * shape.intermediate, 16 * shape.hidden) + 4 * b * shape.hidden)
    # A matrix as large as the vocabulary exceeds the reduce bucket, so its gradient is converted as a whole.
    embedding = (b + 4 * (b < 4)) * shape.largest * role.trains_all
    head_matrix = (b + 4) * shape.embedding * role.has_head * role.trains_all
    logits = LOGIT_COPIES * 4 * min(LOGPROB_CHUNK, tokens) * shape.vocabulary * role.has_head
    last = (4 + 4 * b) * shape.hidden * tokens
    live = {"gathered layers": gathered(role, train)}
    tied = b * shape.embedding * (role.has_head and shape.tied and role.trains_all)
    moments: list[dict[str, float]] = [
        live | {"activations": kept + last, "logits": logits, "vocabulary gradient": head_matrix},
        live | {"activations": kept + recomputed + backward, "vocabulary gradient": head_matrix},
        live | {"vocabulary gradient": embedding + tied},
    ]
    if not train.offload_optimizer:
        # ZeRO-3 copies the gradient; a rank that holds everything takes its norm in float64, matrix by matrix.
        largest = 8.0 * min(role.trained, shape.largest)
        copied = 4 * min(role.trained / shares(train), LIVE_PARAMETERS)
        moments.append({"optimizer step": copied if train.is_sharded else largest})
    return max(moments, key=lambda moment: sum(moment.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """One engine's share of one GPU, bytes."""

    weights: float
    work: float
    kv: float
    """Bytes left for the KV cache; negative if the weights alone exceed the budget."""
    kv_token: float
    """Bytes of one token in the KV cache."""

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache of the engine holds."""
        return max(0, int(self.kv / self.kv_token))

    @classmethod
    def of(cls, config: Config, shape: ModelShape, nodes: ClusterSpec, assumed: Assumptions) -> EngineMemory:
        b, width = element_bytes(config.train), config.rollout.tensor_parallel
        # Key heads are spread over the GPUs, and copied where there are more GPUs than heads.
        key_heads = -(-shape.kv_heads // width)
        weights, work = b * shape.parameters / width, assumed.engine_work_gib * GIB
        left = config.rollout.gpu_memory_utilization * nodes.gpu_memory_gib * GIB - weights - work
        return cls(weights=weights, work=work, kv=left, kv_token=2 * b * shape.layers * key_heads * shape.head_size)


def phases(
    config: Config,
    roles: Sequence[ModelRole],
    engine: EngineMemory,
    load: Workload,
    nodes: ClusterSpec,
    assumed: Assumptions,
) -> dict[str, dict[str, float]]:
    """By phase: what takes how many bytes on a GPU that holds a rank of every role and a part of an engine.

    Where engines have GPUs of their own, the phases are those of a trainers' GPU, and `ENGINE_GPU` is an engine's.
    """
    train, tokens = config.train, min(config.train.tokens_per_micro_batch, load.max_tokens)
    colocate, lost, play, data = config.cluster.colocate, 1 + assumed.fragmentation, config.selfplay, config.data
    # The most keys per token that attention gathers, where samples that are trained on share a prompt.
    of_play = max(play.proposals_per_prompt, play.group_size * play.train_on_estimates) if config.kinds else 1
    keys = float(min(KEYS_PER_TOKEN, max(of_play, 1 if data.path is None else data.group_size)))
    nccl = assumed.nccl_gib if train.data_parallel > 1 else 0.0
    processes = {"CUDA and NCCL": len(roles) * (assumed.context_gib + nccl) * GIB}
    in_engine = {"engine weights": engine.weights, "KV cache": max(0.0, engine.kv), "engine work": engine.work}
    asleep = {"engine asleep": assumed.engine_asleep_gib * GIB} if colocate else {}
    # No parameter is larger than the embedding. The sender's block has two halves, and ZeRO-3 gathers a third; of a
    # layer in two buckets the engine copies both.
    b, shape = element_bytes(train), roles[0].shape
    bucket = bucket_bytes(with_push(config).cluster.push, b * shape.parameters, b * shape.largest)
    sent, taken, buckets = (2.0 + train.is_sharded) * bucket, 2.0 * bucket, "weight buckets"
    passes = {role.name: [scoring(role, train, tokens), training(role, train, tokens, keys)] for role in roles}
    most = {role.name: lost * max(sum(its.values()) for its in passes[role.name][: 1 + role.trains]) for role in roles}

    def resident(role: ModelRole, *, whole: bool) -> dict[str, float]:
        sizes = states(role, train) | {NODE_COPIES: node_copies(role, train, nodes)}
        kept = sizes if whole else {what: sizes[what] for what in ("parameters", NODE_COPIES)}
        return {f"{role.name} {what}": lost * size for what, size in kept.items() if size}

    everything = {what: size for role in roles for what, size in resident(role, whole=True).items()}

    def learning(worker: ModelRole, *, trains: bool) -> dict[str, float]:
        busy = {what: lost * size for what, size in passes[worker.name][trains].items()}
        visits = colocate and len(roles) > 1
        there = resident(worker, whole=trains) if visits else everything
        cached = 0.0 if visits else sum(most.values()) - sum(busy.values())
        return {**processes, **there, **asleep, **busy, ALLOCATOR_CACHE: max(0.0, cached)}

    by_phase = {f"score {role.name}": learning(role, trains=False) for role in scorers(config, roles)}
    by_phase |= {f"train {role.name}": learning(role, trains=True) for role in roles if role.trains}
    if not colocate:
        resume = processes | everything
        idle, serving = resume | {ALLOCATOR_CACHE: sum(most.values())}, in_engine | {buckets: taken}
        return {"play": idle, **by_phase, "push": idle | {buckets: sent}, "resume": resume, ENGINE_GPU: serving}
    parameters = {"policy parameters": lost * states(roles[0], train)["parameters"]}
    push = {**processes, **parameters, "engine weights": engine.weights, **asleep, buckets: sent + taken}
    loaded = max((resident(role, whole=True) for role in roles if role.trains), key=lambda sizes: sum(sizes.values()))
    resume = {**processes, **asleep, **loaded}
    return {"play": processes | in_engine, **by_phase, "push": push, "resume": resume}
