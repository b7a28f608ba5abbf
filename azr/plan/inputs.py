"""Inputs of a plan: shapes of decoder-only models, the nodes, the rates that are assumed, and the size of a step."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from azr.algorithms.architectures import ALL_LINEAR, CHECKED, Checked
from azr.cluster.push_choice import decide_push
from azr.config import Config, DataConfig
from azr.errors import UserError, nearest
from azr.text import parse_object

GIB = 2**30
PLAIN_MFU = 0.154
"""Measured at 1.5B with `train.kernels` plain and full gradient checkpointing."""
HOST_PUSH_GB_S = 0.75
"""Measured at 1.5B with `cluster.push` host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A Llama-like decoder: RMSNorm, rotary positions, grouped-query attention, MLP."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int
    """Rows of the embedding, padding included."""
    tied: bool
    """Output head and embedding are one matrix."""
    head_size: int
    qkv_bias: bool = False
    family: Checked = CHECKED["llama"]
    recurrent: int = 0
    """Layers with a gated delta rule behind a convolution in attention's place."""
    own: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Linear layers that the sizes above do not give, as `_widths`."""
    rest: int = 0
    """Parameters of all layers, more or fewer than the sizes and the family give."""
    tables: int = 0
    """Elements of an embedding for each layer, in one matrix."""

    @property
    def query(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_size

    @property
    def key(self) -> int:
        """Width of all key heads together; values are as wide."""
        return self.kv_heads * self.head_size

    @property
    def embedding(self) -> int:
        """Elements of the embedding, and of the output head."""
        return self.vocabulary * self.hidden

    @property
    def largest(self) -> int:
        """Elements of the largest matrix."""
        return max(self.embedding, self.tables)

    @property
    def in_layers(self) -> int:
        """Parameters of all layers."""
        biases = (self.query + 2 * self.key) * self.qkv_bias
        over_qk = {"none": 0, "head": 2 * self.head_size, "all": self.query + self.key}[self.family.qk_norm]
        return self.linear + self.layers * (self.family.norms * self.hidden + biases + over_qk) + self.rest

    @property
    def linear(self) -> int:
        """Weights of all layers' linear layers, without biases."""
        return self.hidden * sum(width for _, width in self._widths.values())

    @property
    def _widths(self) -> dict[str, tuple[int, int]]:
        """By linear layer, how many there are, and of their matrices the sides that are not the hidden size, summed."""
        widths = {
            "q_proj": self.query, "k_proj": self.key, "v_proj": self.key, "qkv_proj": self.query + 2 * self.key,
            "o_proj": self.query, "gate_proj": self.intermediate, "up_proj": self.intermediate,
            "down_proj": self.intermediate, "gate_up_proj": 2 * self.intermediate,
        }  # fmt: skip
        alike = {name: (self.layers, self.layers * width) for name, width in widths.items()}
        return {name: {**alike, **self.own}.get(name, (0, 0)) for name in self.family.linear}

    @property
    def backbone(self) -> int:
        """Parameters without the output head: embeddings, layers, last norm."""
        return self.embedding + self.tables + self.in_layers + self.hidden

    @property
    def parameters(self) -> int:
        """Parameters of the language model; a tied matrix counts once."""
        return self.backbone + (0 if self.tied else self.embedding)

    @property
    def critic(self) -> int:
        """Parameters of a critic: the backbone and a scalar head with bias."""
        return self.backbone + self.hidden + 1

    def adapters(self, rank: int, targets: Sequence[str]) -> int:
        """Parameters of the adapters of this rank; `targets` as in `train.lora.targets`."""
        chosen = [self._widths[name] for name in self.family.linear if {name, ALL_LINEAR} & set(targets)]
        return rank * sum(count * self.hidden + width for count, width in chosen)


def shape_of(path: str, config_file: str | None = None) -> ModelShape:
    """The shape of the model at `path`, a local folder or hub name, or as the given config.json says.

    Raises UserError when neither is known, or for an architecture whose parameters cannot be counted here.
    """
    file = Path(config_file) if config_file is not None else Path(path) / "config.json"
    if config_file is not None or file.is_file():
        try:
            tree = parse_object(file.read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(f"{file} is not a model's config.json: {error}") from error
        return _stated(tree, file)
    if path in KNOWN:
        return KNOWN[path]
    near = nearest(path, KNOWN, least=0.8)
    hint = f" (or did you mean {near}?)" if near else ""
    raise UserError(f"The shape of {path!r} is not known here; give its config.json with --model-config{hint}.")


def _stated(tree: Mapping[str, Any], file: Path) -> ModelShape:
    """Return the shape that a config.json states. Raises UserError, which names the file, if it states none."""
    family = tree.get("model_type")
    if family not in CHECKED:
        raise UserError(f"{file} describes a {family!r} model; a plan can be made for {', '.join(CHECKED)}.")
    checked = CHECKED[family]

    def size(name: str, default: int | None = None) -> int:
        value = default if tree.get(name) is None else tree[name]
        if value is None:
            raise UserError(f"{file} lacks {name!r}, without which no plan can be made.")
        if type(value) is not int or value < 1:
            raise UserError(f"{file} has {name} {value!r}, where a plan needs a whole number of at least 1.")
        return value

    hidden, heads = size("hidden_size"), size("num_attention_heads")
    shape = ModelShape(
        hidden=hidden,
        layers=size("num_hidden_layers"),
        heads=heads,
        kv_heads=size("num_key_value_heads", heads),
        intermediate=size("intermediate_size"),
        vocabulary=size("vocab_size"),
        tied=tree.get("tie_word_embeddings", checked.tied),
        head_size=size("head_dim", hidden // heads),
        qkv_bias=tree.get("attention_bias", checked.biases),
        family=checked,
    )
    if file == _SHAPES and "counted" in tree:  # which takes torch
        return replace(shape, **tree["counted"])
    return shape if checked.alike else _counted(shape, tree)


def _counted(shape: ModelShape, tree: Mapping[str, Any]) -> ModelShape:
    """Return the shape with what of its layers differs, counted in a model without memory."""
    import torch  # only here: it takes seconds
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.for_model(**tree)
    with torch.device("meta"):
        sizes = {name: weight.shape for name, weight in AutoModel.from_config(config).named_parameters()}
    own = dict[str, tuple[int, int]]()
    for name, size in sizes.items():
        part = name.removesuffix(".weight").rpartition(".")[2]
        if part in shape.family.linear:
            count, width = own.get(part, (0, 0))
            own[part] = count + 1, width + sum(size) - shape.hidden
    tables = math.prod(sizes.get("embed_tokens_per_layer.weight", (0,)))
    shape = replace(shape, own=own, tables=tables, recurrent=config.layer_types.count("linear_attention"))
    return replace(shape, rest=sum(map(math.prod, sizes.values())) - shape.backbone)


_SHAPES = Path(__file__).with_name("shapes.toml")
KNOWN = {
    name: _stated(shape, _SHAPES)
    for shape in tomllib.loads(_SHAPES.read_text(encoding="utf-8"))["shape"]
    for name in shape["names"]
}
"""By hub name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSpec:
    """The nodes of a run, all alike. The ranks of a role fill one after the other."""

    gpus: int
    """Per node."""
    gpu_memory_gib: float
    nodes: int = 1
    host_memory_gib: float | None = None
    """Per node; None leaves it unchecked."""

    @classmethod
    def with_gpus(cls, count: int) -> ClusterSpec:
        """Return nodes with this many 80 GB GPUs, at most eight each."""
        gpus = min(8, count)
        return cls(gpus=gpus, gpu_memory_gib=80, nodes=-(-count // gpus))

    @property
    def total_gpus(self) -> int:
        return self.gpus * self.nodes


def _assume(default: float, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """Rates and allowances of one H100 SXM and its node: some were measured, others are data sheets or guesses.

    Measured, in November 2026 with a random model of 1.5B on one H100 80GB (notes/log.md): what says so. Bandwidths are
    about half of what the makers state for an 8-GPU H100 node: NVLink 450 GB/s each way, eight adapters of 400 Gbit/s.
    """

    peak_tflops: float = _assume(989, "Dense bf16 TFLOP/s of one GPU")
    train_mfu: float = _assume(
        0.325,
        "Share of the peak that updates of 1.5B reach with fused kernels and full gradient checkpointing, as 6 "
        "operations per parameter and token; measured. Scoring is as busy",
    )
    train_mfu_7b: float = _assume(
        0.28, "The same at 7B, from which on it stays; published for 8B over ranks (5,800 tokens/s, torchtitan)"
    )
    attention_cost: float = _assume(
        1.5,
        "Time of attention's operations, in those of products; 4B at 16,000 tokens then has 16%% (published 14, 27)",
    )
    memory_gb_s: float = _assume(3350, "GB/s of one GPU's memory, which bounds decoding")
    decode_efficiency: float = _assume(0.6, "Share of the memory's speed that decoding reaches")
    decode_overhead_ms: float = _assume(
        3, "Fixed milliseconds per decoded token; with the share above it gives the 29,000 tokens/s that were measured"
    )
    prefill_mfu: float = _assume(0.45, "Share of the peak at which engines read prompts")
    push_gb_s: float = _assume(26, "GB/s of a push inside a node; measured with cluster.push ipc and 3.1 GB")
    turns_s: float = _assume(
        0.9, "Seconds of a step for sleep, wake and all that is in no phase, without bytes that turns move; measured"
    )
    driver_ms: float = _assume(
        0.4,
        "Milliseconds of the one driver per trajectory, in turn; measured by benchmarks.driver with responses of 500 "
        "tokens on two CPU cores, where engines and programs answer at once. 2.5 in the runs on GPUs before that",
    )
    executor_runs_s: float = _assume(
        430, "Programs that one worker of the executor runs a second; measured on two CPU cores (docs/executor.md)"
    )
    link_gb_s: float = _assume(225, "GB/s of collectives between the GPUs of a node, per GPU")
    network_gb_s: float = _assume(200, "GB/s into, and out of, a node, all of its adapters together")
    object_store_gb_s: float = _assume(3, "GB/s that Ray's object store sends out of a node, in a push through hosts")
    pcie_gb_s: float = _assume(35, "GB/s between a GPU and its host; measured when trainers leave and return")
    host_gb_s: float = _assume(100, "GB/s of a node's memory, which bounds an offloaded optimizer")
    prompt_fill: float = _assume(
        0.25,
        "Mean prompt, as a share of rollout.max_prompt_tokens. Only seconds depend on it; bytes are for full length",
    )
    response_fill: float = _assume(
        0.1, "Mean response, as a share of rollout.max_response_tokens. Only seconds depend on it"
    )
    valid_share: float = _assume(1, "Share of the proposals that are tasks, whose solve rate is estimated")
    context_gib: float = _assume(0.6, "GiB of a trainer process's CUDA context, libraries included")
    nccl_gib: float = _assume(0.6, "GiB of NCCL buffers of one process that talks to others")
    fragmentation: float = _assume(
        0.06,
        "What torch's allocator takes on top of a trainer's arrays; with it the plan gives the 37 GB that were "
        "measured after an update",
    )
    pinned_rounding: float = _assume(
        1.03, "Bytes of host memory per byte offloaded: torch rounds page-locked blocks below 64 MB up to powers of two"
    )
    trainer_host_gib: float = _assume(
        2.5, "GiB of host memory that a trainer's process takes beside its state; a guess"
    )
    engine_host_gib: float = _assume(3, "GiB of host memory of each process of an engine; a guess")
    engine_work_gib: float = _assume(
        4, "GiB of an engine's budget that are neither weights nor KV cache: context, largest batch, CUDA graphs"
    )
    engine_asleep_gib: float = _assume(2, "GiB that a sleeping engine keeps: context, graphs, workspaces")
    reserved_gib: float = _assume(1.5, "GiB per GPU left free: the driver's own share")


def update_share(assumed: Assumptions, shape: ModelShape) -> float:
    """Return the share of the peak of updates: linear in the log of the size between 1.5B and 7B, constant beyond."""
    place = math.log(shape.parameters / 1.54e9) / math.log(7.6 / 1.54)
    return assumed.train_mfu + (assumed.train_mfu_7b - assumed.train_mfu) * min(1.0, max(0.0, place))


def with_push(config: Config) -> Config:
    """The config with the transfer that `cluster.push` `auto` takes on GPUs."""
    return decide_push(config, "cuda") if config.cluster.push == "auto" else config


def as_configured(assumed: Assumptions, config: Config) -> Assumptions:
    """Rates at most as fast as the config's choice of kernels and push was measured to be."""
    if config.cluster.push == "host":
        assumed = replace(assumed, push_gb_s=min(assumed.push_gb_s, HOST_PUSH_GB_S))
    if config.train.kernels == "plain":
        small, large = min(assumed.train_mfu, PLAIN_MFU), min(assumed.train_mfu_7b, PLAIN_MFU)
        assumed = replace(assumed, train_mfu=small, train_mfu_7b=large)
    return assumed


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One training step in prompts, trajectories and tokens; the most there can be where it depends on proposals.

    Of a run whose steps alternate, one of the larger sort.
    """

    proposals: int
    estimate_prompts: int
    estimates: int
    """Solver samples for solve rates and derived tasks: `selfplay.group_size` for each of `estimate_prompts`."""
    solves: int
    rows: int
    row_answers: int
    """Answers to rows of a file: `data.samples` for each of `rows`."""
    trained: int
    """Trajectories that the optimizers see."""
    max_tokens: int
    """Tokens that the optimizers see if every trajectory is of full length."""
    mean_prompt: float
    mean_response: float
    """Expected tokens."""

    @property
    def prompts(self) -> int:
        """Distinct prompts that the engines read."""
        return self.proposals + self.estimate_prompts + self.solves + self.rows

    @property
    def trajectories(self) -> int:
        """Responses that the engines write."""
        return self.proposals + self.estimates + self.solves + self.row_answers

    @property
    def mean_length(self) -> float:
        return self.mean_prompt + self.mean_response

    @property
    def trained_tokens(self) -> float:
        """Expected prompt and response tokens that the optimizers see."""
        return self.trained * self.mean_length

    @classmethod
    def of(cls, config: Config, assumed: Assumptions) -> Workload:
        play, data = config.selfplay, config.data
        if data.play == "alternate":
            sorts = (replace(data, play="alone"), DataConfig())
            loads = [cls.of(replace(config, data=sort), assumed) for sort in sorts]
            return max(loads, key=lambda load: load.trained)
        tasks = len(config.kinds) * play.proposer_prompts * config.rollout.refill
        rows = 0 if data.path is None else data.prompts * config.rollout.refill
        groups = tasks * (1 + play.derived_tasks * len(play.kinds))
        again = len(config.kinds) * (play.repeated_tasks * config.ablation.new_tasks + play.chained_tasks)
        groups = int(groups * assumed.valid_share) + again
        trained = sum(config.trajectories_by_step) + groups * play.group_size * play.train_on_estimates
        return cls(
            proposals=tasks * config.ablation.new_tasks,
            estimate_prompts=groups,
            estimates=groups * play.group_size,
            solves=len(config.kinds) * play.solver_prompts,
            rows=rows,
            row_answers=rows * data.samples,
            trained=trained,
            max_tokens=trained * config.max_trajectory_tokens,
            mean_prompt=assumed.prompt_fill * config.rollout.max_prompt_tokens,
            mean_response=assumed.response_fill * config.rollout.max_response_tokens,
        )
