"""Options of the algorithm and of training, and sizes that no option changes.

An option that several choices of a union have is described at one of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field

from azr.config_numbers import *  # noqa: F403  # recipes take every class from azr.config
from azr.config_numbers import Count, CountOrZero, NotNegative, NumProcesses, Positive, Share
from azr.estimators import *  # noqa: F403
from azr.estimators import GAE, TRRPP, Estimator

LOGPROB_CHUNK = 2048
"""Tokens whose logits are in a trainer's memory at once."""
KEYS_PER_TOKEN = 8
"""Most keys that attention gathers per token of a micro-batch, where samples share a prompt; see `packing`."""
REDUCE_BUCKET = 50_000_000
"""Gradient elements that DeepSpeed reduces at once; it keeps a buffer of this size."""
WEIGHT_BUCKET_BYTES = {"host": 256 << 20, "ipc": 1 << 30, "nccl": 1 << 30}
"""Weights travel to the engines in buckets of this size, by transfer: on a GPU each takes 10 ms, small or large."""


@dataclass(frozen=True, kw_only=True)
class PPO:
    """PPO's clipped objective."""

    name: Literal["ppo"] = "ppo"

    clip_low: Share = 0.2
    """The ratio of new to old probability is clipped below at 1 - this: 0.2 with ppo, 3e-4 with gspo by default."""
    clip_high: NotNegative = 0.2
    """The ratio of new to old probability is clipped above at 1 + this: 0.2 with ppo, 4e-4 with gspo by default. More
    than `clip_low`, such as 0.28, is DAPO's clip-higher."""
    dual_clip: Annotated[float, Field(gt=1, le=1e6)] | None = None
    """Tokens with a negative advantage whose ratio is above this have no gradient; none for no such bound."""


@dataclass(frozen=True, kw_only=True)
class GSPO:
    """The same with one ratio for all tokens of a response: the geometric mean of theirs."""

    name: Literal["gspo"] = "gspo"

    clip_low: Share = 3e-4
    clip_high: NotNegative = 4e-4


@dataclass(frozen=True, kw_only=True)
class CISPO:
    """REINFORCE weighted by the ratio, which is clipped and not differentiated, so no token loses its gradient."""

    name: Literal["cispo"] = "cispo"

    ratio_cap: Positive = 5.0
    """Largest ratio of new to old probability."""


Objective = Annotated[PPO | GSPO | CISPO, Field(discriminator="name")]


@dataclass(frozen=True, kw_only=True)
class NoImportance:
    """Weigh all tokens alike."""

    name: Literal["none"] = "none"


@dataclass(frozen=True, kw_only=True)
class TokenCap:
    """Weigh each token by its ratio, truncated above."""

    name: Literal["token_cap"] = "token_cap"

    cap: Positive = 2.0
    """Largest weight."""


@dataclass(frozen=True, kw_only=True)
class TokenMask:
    """Weigh each token by its ratio, and leave out those whose ratio is too far from 1 on either side."""

    name: Literal["token_mask"] = "token_mask"

    bound: Annotated[float, Field(ge=1, le=1e6)] = 2.0
    """Ratios above this or below its inverse are left out: 2 with token_mask, 1.05 with sequence_mask by default."""


@dataclass(frozen=True, kw_only=True)
class SequenceCap:
    """Weigh each response by the geometric mean of its tokens' ratios, truncated above."""

    name: Literal["sequence_cap"] = "sequence_cap"

    cap: Positive = 2.0


@dataclass(frozen=True, kw_only=True)
class SequenceMask:
    """Weigh each response by the geometric mean of its tokens' ratios, and leave out those that are too far from 1."""

    name: Literal["sequence_mask"] = "sequence_mask"

    bound: Annotated[float, Field(ge=1, le=1e6)] = 1.05


Importance = Annotated[NoImportance | TokenCap | TokenMask | SequenceCap | SequenceMask, Field(discriminator="name")]


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig:
    """What the policy learns from response tokens that another model's trace gave; see docs/algorithms.md."""

    loss: Literal["shaped", "plain", "sft"] = "shaped"
    """Loss of such a token of probability p and advantage A. `shaped`: -A p/(p+gamma), as in LUFFY; `plain`: -A p;
    `sft`: -log p, and traces are in no baseline of the others."""
    gamma: Positive = 0.1
    """Of `shaped`: the smaller, the more improbable the tokens that are learned fastest, those of p = gamma."""
    sft_coef: NotNegative = 1.0
    """Of `sft`: what its loss is multiplied by."""


@dataclass(frozen=True, kw_only=True)
class KLConfig:
    """Penalty for the distance KL(policy ‖ reference); docs/algorithms.md has the formulas."""

    coef: NotNegative = 0.0
    """Weight of the KL to the reference policy; 0 leaves the reference policy out."""
    estimator: Literal["k1", "k2", "k3", "k3_unbiased"] = "k3_unbiased"
    """Estimate from a sampled token's d = log p - log p_reference. `k1`: d; `k2`: d²/2; `k3`: exp(-d) - 1 + d, as in
    GRPO; `k3_unbiased`: k3 times the importance ratio, which alone has the gradient of this KL for any policy."""
    where: Literal["loss", "reward"] = "loss"
    """`loss` differentiates the estimate; `reward` subtracts it from rewards or advantages, see docs/algorithms.md."""


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig:
    estimator: Estimator = field(default_factory=TRRPP)
    """Advantage estimator by name, with options where it has any."""
    loss_weighting: Literal["auto", "token", "trajectory", "kind_role", "constant"] = "auto"
    """What weighs the same in each optimizer step of the policy. By trajectory, short answers count as much as long
    programs; by kind_role, each (kind, role) as a whole, and so few proposals beside many solutions. By constant,
    tokens do, as by token, but their sum is divided by `rollout.max_response_tokens` for each trajectory, not by the
    batch's tokens. `auto` is constant with dr_grpo, and token with the others."""
    proposer_share: Share = 0.5
    """By kind_role, the weight of the proposers of each kind beside its solvers, of 1 in all."""
    objective: Objective = field(default_factory=PPO)
    """Loss of sampled tokens, by name; docs/algorithms.md has the formulas. They differ in steps after the first of
    `policy_mini_batches`, where the ratio of new to old probability is no longer 1."""
    kl: KLConfig = field(default_factory=KLConfig)
    entropy_coef: NotNegative = 0.0
    """Weight of the entropy bonus."""
    importance: Importance = field(default_factory=TokenCap)
    """Weights that correct for engines sampling from other probabilities than the trainer's, by name: ratios
    exp(logp_trainer - logp_engine) of tokens or of whole responses, capped or masked."""
    policy_mini_batches: Count = 1
    """Optimizer steps of the policy per training step; the batch is split into as many mini-batches."""
    drop_zero_advantage: bool = False
    """Leave trajectories without any advantage, such as groups of equal rewards, out of the policy's update: they cost
    time and have no gradient. By token, they no longer count in the tokens that the loss is averaged over; by another
    `loss_weighting`, the others weigh what they weigh with them. A KL loss then covers what is left. Not with
    `entropy_coef`, which is meant for what is always answered alike."""
    off_policy: OffPolicyConfig = field(default_factory=OffPolicyConfig)

    @property
    def by_sequence(self) -> bool:
        """Whether the loss needs to know which tokens are of the same response."""
        return isinstance(self.objective, GSPO) or isinstance(self.importance, SequenceCap | SequenceMask)

    @property
    def needs_critic(self) -> bool:
        return isinstance(self.estimator, GAE)

    @property
    def critic_mini_batches(self) -> int:
        return self.estimator.critic_mini_batches if isinstance(self.estimator, GAE) else 1

    @property
    def critic_warmup_steps(self) -> int:
        return self.estimator.critic_warmup_steps if isinstance(self.estimator, GAE) else 0

    @property
    def needs_reference(self) -> bool:
        return self.kl.coef != 0


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank adapters (arXiv 2106.09685), which policy and critic train instead of all weights. Needs the package
    peft."""

    rank: CountOrZero = 0
    """Rank of the adapters; 0 trains all weights."""
    alpha: Count = 32
    """What an adapter adds to its layer is multiplied by alpha / rank."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of an adapter's inputs that training drops at random. For supervised fine-tuning alone: sampled tokens
    would have another probability than they were sampled with."""
    targets: tuple[str, ...] = ("all-linear",)
    """Linear layers that get adapters, by the last part of their names, such as `q_proj`; `all-linear` for all but the
    output head."""
    four_bit: bool = False
    """Trainers hold the weights of linear layers in 4 bits (NF4, as in QLoRA, arXiv 2305.14314); engines get them
    back in the compute type. Needs the package bitsandbytes."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """What trainers and engines run on; `auto` is cuda where the cluster has a GPU."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Compute type of trainers and engines; optimiser state is always float32. `auto`: bfloat16, or float32 on a
    machine whose GPU, or CPU without a GPU, does not multiply bfloat16."""
    data_parallel: NumProcesses = 1
    """Ranks of each of policy, critic and reference."""
    policy_lr: NotNegative = 1e-6
    """Learning rate of the policy."""
    critic_lr: NotNegative = 5e-6
    """Learning rate of the critic."""
    warmup_steps: CountOrZero = 0
    """Optimizer steps of each model over which its rate rises linearly."""
    decay_steps: CountOrZero = 0
    """Training steps of each model after its warm-up over which its rate falls linearly to 0, however many optimizer
    steps it takes in each; 0 keeps it as it is."""
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    """Decay of Adam's mean of squared gradients."""
    weight_decay: NotNegative = 0.0
    """AdamW's, per unit of learning rate."""
    grad_clip: NotNegative = 1.0
    """Largest global gradient norm; 0 switches clipping off."""
    tokens_per_micro_batch: Count = 16384
    """Packed tokens in one forward/backward of one rank."""
    gradient_checkpointing: Literal["auto", "full", "selective", "none"] = "auto"
    """Layers whose activations the backward pass recomputes: all, every second, or none. `auto`, which a run decides at
    its start, is the least with which `azr plan` counts at most 90% of the memory; full where it cannot count."""
    kernels: Literal["auto", "liger", "compile", "plain"] = "auto"
    """Fused kernels for norms, rotary positions, gated activations and log-probabilities; `auto` takes them on GPUs,
    Liger's where that package is installed and covers the architecture. `compile` lets torch.compile make those of each
    layer, which takes a minute at the first start and needs `shard` none. `plain` is PyTorch's operations alone."""
    attention: Literal["auto", "flash_attn", "torch"] = "auto"
    """Attention of trainers on GPUs in 16 bits, over the packed stream: `flash_attn` is FlashAttention 4, `torch` the
    flash kernel of PyTorch, and `auto` the first of them that is installed and made for the GPU. Elsewhere it is
    PyTorch's over padded samples."""
    shard: Literal["auto", "zero3", "offload", "none"] = "auto"
    """`zero3` splits weights, gradients and optimiser state over the ranks by DeepSpeed; `offload` does so too, and
    keeps optimiser state in host memory; `none` keeps all of it on each rank, without DeepSpeed's work around each
    layer. `auto` is `none` for a single rank, else `zero3`."""
    profile_step: CountOrZero = 0
    """Step of whose policy update the run's folder gets a trace (`profile_N.json.gz`, for ui.perfetto.dev) and the log
    the operations that took longest; 0 for none."""
    lora: LoraConfig = field(default_factory=LoraConfig)

    @property
    def checkpointing(self) -> Literal["full", "selective", "none"]:
        """As `gradient_checkpointing`; full if its `auto` is not decided."""
        return "full" if self.gradient_checkpointing == "auto" else self.gradient_checkpointing

    @property
    def is_sharded(self) -> bool:
        """Whether DeepSpeed's ZeRO-3 splits the models over their ranks, be it a single one."""
        return self.data_parallel > 1 if self.shard == "auto" else self.shard != "none"

    @property
    def offload_optimizer(self) -> bool:
        return self.shard == "offload"
