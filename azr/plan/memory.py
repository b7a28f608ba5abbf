"""Bytes on the fullest GPU, phase by phase, counted from what the trainers and engines really do.

Legend of one-letter names: T tokens of a micro-batch, H hidden size, V vocabulary, b bytes of the compute type.

What happens, and where: trainers keep parameters, gradients and (unless offloaded) optimiser state on the GPU in every
phase, rollout included. A GPU engine frees weights and KV cache while trainers work, and has all of them again before
weights are pushed. torch's allocator returns nothing to the GPU, so each trainer process keeps the most it ever used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from azr.config import LOGPROB_CHUNK, REDUCE_BUCKET, WEIGHT_BUCKET_BYTES, Config, TrainConfig
from azr.plan.inputs import GIB, Assumptions, ClusterSpec, Workload
from azr.plan.shapes import ModelShape

LIVE_PARAMETERS = 1_000_000_000
"""Gathered parameter elements that ZeRO-3 keeps for reuse, and largest piece of an optimizer step: its defaults."""
LOGIT_COPIES = 3
"""float32 arrays (chunk, V) alive at once in the backward of `azr.algorithms.logprobs`."""

ALLOCATOR_CACHE = "kept by allocators"
ENGINE_GPU = "engine's GPU"
"""The column of the GPUs that engines have to themselves; it is the same in every phase."""

Bytes = Mapping[str, float]
"""What takes how much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRole:
    """A network with ranks of its own: policy, critic or reference."""

    name: str
    shape: ModelShape
    parameters: int
    trains: bool
    has_head: bool
    """Its output head is as large as the vocabulary."""


def model_roles(config: Config, shape: ModelShape) -> list[ModelRole]:
    """Those the config calls for, the policy first; all start from one model of this shape."""
    roles = [ModelRole(name="policy", shape=shape, parameters=shape.parameters, trains=True, has_head=True)]
    if config.algorithm.needs_critic:
        roles.append(ModelRole(name="critic", shape=shape, parameters=shape.critic, trains=True, has_head=False))
    if config.algorithm.needs_reference:
        roles.append(ModelRole(name="reference", shape=shape, parameters=shape.parameters, trains=False, has_head=True))
    return roles


def element_bytes(train: TrainConfig) -> int:
    """b: 2 or 4, on a GPU."""
    return 4 if train.dtype == "float32" else 2


def states(role: ModelRole, train: TrainConfig) -> dict[str, float]:
    """Between phases, one rank's share: ZeRO-3 with float32 gradients and Adam moments, and a float32 master copy."""
    b, share = element_bytes(train), role.parameters / train.data_parallel
    sizes = {"parameters": b * share, "gradients": 0.0, "optimiser": 0.0, "reduce bucket": 0.0}
    if role.trains:
        sizes["reduce bucket"] = 4.0 * REDUCE_BUCKET
        if not train.offload_optimizer:
            sizes |= {"gradients": 4 * share, "optimiser": (8 + 4 * (b < 4)) * share}
    return sizes


def host_states(role: ModelRole, train: TrainConfig) -> float:
    """Bytes of one rank in host memory: master copy, two moments, and gradients both as summed and as stepped on."""
    return 20 * role.parameters / train.data_parallel if role.trains and train.offload_optimizer else 0.0


def layer_activations(shape: ModelShape, b: int) -> float:
    """Bytes per token that one layer keeps for its backward.

    Both norms keep a float32 copy, what they normalised and their output; attention its rotated queries and keys,
    values, output and float32 normalisers; the MLP four arrays of its width.
    """
    norms = 2 * (4 + 2 * b) * shape.hidden
    attention = b * (2 * shape.query + 2 * shape.key) + 4 * shape.heads
    head_norms = (4 + b) * (shape.query + shape.key) * shape.qk_norm
    return norms + attention + head_norms + 4 * b * shape.intermediate


def gathered(role: ModelRole, train: TrainConfig) -> float:
    """Most bytes of whole parameters at hand in a pass; 0 for a lone rank, which has them anyway."""
    if train.data_parallel == 1:
        return 0.0
    most = LIVE_PARAMETERS + REDUCE_BUCKET + max(role.shape.embedding, role.shape.layer)
    return float(element_bytes(train) * min(role.parameters, most))


def scoring(role: ModelRole, train: TrainConfig, tokens: int) -> Bytes:
    """On top of `states` in a pass without gradients over T = `tokens` tokens."""
    b, shape = element_bytes(train), role.shape
    layer = tokens * (max(3 * b * shape.intermediate, 12 * shape.hidden) + 2 * b * shape.hidden)
    logits = 2 * 4 * min(LOGPROB_CHUNK, tokens) * shape.vocabulary * role.has_head
    return {"gathered layers": gathered(role, train), "activations": layer, "logits": logits}


def training(role: ModelRole, train: TrainConfig, tokens: int) -> Bytes:
    """On top of `states` at the worst moment of an optimizer step with micro-batches of T = `tokens` tokens."""
    b, shape = element_bytes(train), role.shape
    per_layer = layer_activations(shape, b) * tokens
    again = {"full": 1.0, "selective": 0.5, "none": 0.0}[train.gradient_checkpointing] * shape.layers
    kept = again * b * shape.hidden * tokens + (shape.layers - again) * per_layer
    recomputed = per_layer if again else 0.0
    backward = tokens * (max(3 * b * shape.intermediate, 16 * shape.hidden) + 4 * b * shape.hidden)
    # A matrix as large as the vocabulary exceeds the reduce bucket, so its gradient is converted as a whole.
    embedding = (b + 4 * (b < 4)) * shape.embedding
    head_matrix = (b + 4) * shape.embedding * role.has_head
    logits = LOGIT_COPIES * 4 * min(LOGPROB_CHUNK, tokens) * shape.vocabulary * role.has_head
    last = (4 + 4 * b) * shape.hidden * tokens
    live = {"gathered layers": gathered(role, train)}
    moments: list[dict[str, float]] = [
        live | {"activations": kept + last, "logits": logits, "vocabulary gradient": head_matrix},
        live | {"activations": kept + recomputed + backward, "vocabulary gradient": head_matrix},
        live | {"vocabulary gradient": embedding + (b * shape.embedding if role.has_head and shape.tied else 0)},
    ]
    if not train.offload_optimizer:
        moments.append({"optimizer step": 4 * min(role.parameters / train.data_parallel, LIVE_PARAMETERS)})
    return max(moments, key=lambda moment: sum(moment.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineMemory:
    """One engine's share of one GPU, bytes."""

    budget: float
    weights: float
    work: float
    kv_token: float
    """Of one token in the KV cache."""

    @property
    def kv(self) -> float:
        """What is left for the KV cache; negative when the weights alone exceed the budget."""
        return self.budget - self.weights - self.work

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache of the engine holds."""
        return max(0, int(self.kv / self.kv_token))

    @classmethod
    def of(cls, config: Config, shape: ModelShape, nodes: ClusterSpec, assumed: Assumptions) -> EngineMemory:
        b, width = element_bytes(config.train), config.rollout.tensor_parallel
        # Key heads are spread over the GPUs, and copied where there are more GPUs than heads.
        key_heads = -(-shape.kv_heads // width)
        return cls(
            budget=config.rollout.gpu_memory_utilization * nodes.gpu_memory_gib * GIB,
            weights=b * shape.parameters / width,
            work=assumed.engine_work_gib * GIB,
            kv_token=2 * b * shape.layers * key_heads * shape.head_size,
        )


def phases(
    config: Config, roles: Sequence[ModelRole], engine: EngineMemory, load: Workload, assumed: Assumptions
) -> dict[str, dict[str, float]]:
    """By phase: what takes how many bytes on a GPU that holds a rank of every role and a part of an engine.

    Where engines have GPUs of their own, the phases are those of a trainers' GPU, and `ENGINE_GPU` is an engine's.
    """
    train, tokens = config.train, min(config.train.tokens_per_micro_batch, load.max_tokens)
    resident: dict[str, float] = {}
    for role in roles:
        resident |= {f"{role.name} {what}": size for what, size in states(role, train).items() if size}
    nccl = assumed.nccl_gib if train.data_parallel > 1 else 0.0
    resident["CUDA and NCCL"] = len(roles) * (assumed.context_gib + nccl) * GIB
    most = {role.name: _most(role, train, tokens) for role in roles}
    in_engine = {"engine weights": engine.weights, "KV cache": max(0.0, engine.kv), "engine work": engine.work}
    colocate = config.cluster.colocate
    awake, asleep = (in_engine, {"engine asleep": assumed.engine_asleep_gib * GIB}) if colocate else ({}, {})
    # A bucket holds at least one parameter, and none is larger than the embedding.
    bucket = max(WEIGHT_BUCKET_BYTES, element_bytes(train) * roles[0].shape.embedding)

    def phase(engine_part: Bytes, at_work: Bytes, worker: str | None) -> dict[str, float]:
        others = sum(most.values()) - (most[worker] if worker else 0.0)
        unused = max(0.0, most[worker] - sum(at_work.values())) if worker else 0.0
        return {**resident, **engine_part, **at_work, ALLOCATOR_CACHE: others + unused}

    scorers = {role.name: scoring(role, train, tokens) for role in roles}
    scorer = max(scorers, key=lambda name: sum(scorers[name].values()))
    by_phase = {"rollout": phase(awake, {}, None), "score": phase(asleep, scorers[scorer], scorer)}
    for role in roles:
        if role.trains:
            by_phase[f"train {role.name}"] = phase(asleep, training(role, train, tokens), role.name)
    by_phase["push"] = phase(awake, {"weight bucket": bucket}, "policy")
    return by_phase if colocate else by_phase | {ENGINE_GPU: in_engine | {"weight bucket": bucket}}


def _most(role: ModelRole, train: TrainConfig, tokens: int) -> float:
    """The most a role's process takes on top of its states."""
    passes = [scoring(role, train, tokens)] + ([training(role, train, tokens)] if role.trains else [])
    return max(sum(bytes_of.values()) for bytes_of in passes)
