"""Compare log-probabilities of Hugging Face, the trainer and vLLM, before and after a weight push.

Everything is the run's own: the policy's packed forward, the engine that samples, the buckets that carry weights.
Three states of the weights are compared: as loaded by each from the folder; perturbed, and pushed to vLLM; and those
of the folder again, pushed. A parameter that a push forgets or puts elsewhere shows in the second.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from azr.algorithms.attention import choose_attention
from azr.algorithms.models import PolicyModel
from azr.algorithms.packing import pack
from azr.cluster.weight_transfers import HostOutbox
from azr.config import LOGPROB_CHUNK, WEIGHT_BUCKET_BYTES, Config, RolloutConfig
from azr.config_tree import override
from azr.errors import UserError
from azr.hardware import ComputeType, Device
from azr.records import Completion
from azr.rollout.engine import RolloutEngine
from azr.rollout.quiet_start import quiet_start
from azr.text import first_line

BOUNDS: dict[ComputeType, float] = {"float32": 1e-4, "bfloat16": 0.9}
"""Largest difference of one token's log-probability, in nats, that passes by default: twice the largest that was
measured, 4.7e-5 and 0.43, both with SmolLM2-135M on a CPU."""
MOVED_SHARES: dict[ComputeType, float] = {"float32": 1e-3, "bfloat16": 1.0}
"""Largest difference after the perturbation that passes, relative to how far that moved the log-probabilities; never
below the bound. Perturbed logits are large, and so is their rounding: 9e-5 of that distance in float32 with
SmolLM2-135M, 0.6 in bfloat16. A tensor that a push leaves as it was makes at least 0.14 with SmolLM2, and 0.02 with
tiny random models (an attention bias): bfloat16 shows no more than a lost push."""
RESPONSE_TOKENS = 64
"""Longest sampled response, and length of a fixed one."""
NOISE = 0.3
"""Standard deviation of the perturbation, relative to the root mean square of each parameter."""
TIMEOUT_S = 1800.0
SAME_DIRECTION: dict[ComputeType, float] = {"float32": 0.999, "bfloat16": 0.9}
"""Least cosine of the trainer's gradient and the eager model's, of each parameter."""
NO_GRADIENT: dict[ComputeType, float] = {"float32": 1e-5, "bfloat16": 1e-2}
"""Norm of a parameter's gradient, relative to the largest of all, below which it may be rounding alone."""
GPU_SHARE = 0.55
"""vLLM's share of GPU memory; the rest holds the eager model or the trainer's, one after the other. By arithmetic,
7.6 billion parameters in float32, 28 GiB, have room in both parts of 79 GiB."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Absolute differences of log-probabilities, in nats."""

    mean: float
    largest: float

    @classmethod
    def of(cls, one_R: Tensor, other_R: Tensor) -> Gap:
        gap_R = (one_R - other_R).abs()
        return cls(float(gap_R.mean()), float(gap_R.max()))


@dataclass(frozen=True, slots=True)
class Row:
    """One state of the weights."""

    weights: str
    tokens: int
    """Tokens that vLLM sampled with these weights and both others scored."""
    gaps: tuple[Gap, Gap, Gap]
    """In the order of `PAIRS`; the first is over these tokens and those of the fixed texts."""


PAIRS = ("trainer - eager", "vLLM - eager", "vLLM - trainer")
PERTURBED = "perturbed, pushed"


@dataclass(frozen=True, slots=True)
class ModelCheck:
    rows: tuple[Row, ...]
    moved: float
    """Mean absolute difference, in nats, that perturbing makes to the fixed texts: what a lost push would show."""
    moved_share: float
    """Of `MOVED_SHARES`."""

    def perturbed_bound(self, bound: float) -> float:
        """Return the largest difference after the perturbation that passes, in nats."""
        return max(bound, self.moved_share * self.moved)

    def passes(self, bound: float) -> bool:
        """Whether no difference is above `bound`, or not a number, while the perturbation is."""
        bounds = {PERTURBED: self.perturbed_bound(bound)}
        gaps = ((gap.largest, bounds.get(row.weights, bound)) for row in self.rows for gap in row.gaps)
        return self.moved > bound and all(largest <= most for largest, most in gaps)

    def table(self) -> str:
        """Return a table: mean and largest difference of each pair, one line per state of the weights."""
        lines = [f"{'weights':<18}{'tokens':>7}" + "".join(f"{pair:>22}" for pair in PAIRS)]
        lines.append(" " * 25 + f"{'mean':>12}{'max':>10}" * len(PAIRS))
        for row in self.rows:
            cells = "".join(f"{gap.mean:>12.1e}{gap.largest:>10.1e}" for gap in row.gaps)
            lines.append(f"{row.weights:<18}{row.tokens:>7}{cells}")
        return "\n".join(lines)


async def check_model(path: str, *, dtype: ComputeType, device: Device, tokens: int) -> ModelCheck:
    """Start vLLM on the model in a folder and compare; no Ray is needed.

    `device`: of trainer and eager model, which wait in the host's memory for their turns. `tokens`: length of the
    longest prompt, at most what the model reads.

    Raises UserError for a model that transformers or vLLM cannot load, or that the trainer refuses.
    """
    eager, policy = _load(path, dtype, device)
    prompts = _prompts(path, tokens)
    fixed = _fixed(prompts)
    # Before vLLM starts, because the trainer may refuse this model.
    _trainer_logprobs(policy, device, fixed)
    texts_R = _eager_logprobs(eager, device, fixed)
    most = max(map(len, prompts))
    rollout = RolloutConfig(
        max_prompt_tokens=most, max_response_tokens=RESPONSE_TOKENS, max_concurrent=8, gpu_memory_utilization=GPU_SHARE
    )
    options = {"model.path": path, "timeout.generate_s": TIMEOUT_S, "train.dtype": dtype}
    engine = RolloutEngine(override(Config(rollout=rollout), options))
    outbox = HostOutbox().open(max(WEIGHT_BUCKET_BYTES["host"], *(each.nbytes for _, each in policy.named_weights())))

    async def row(weights: str) -> Row:
        """Sample with the engine's weights, and compare the three."""
        asking = (
            engine.generate(prompt, n=4, max_tokens=RESPONSE_TOKENS, temperature=1.0, seed=index)
            for index, prompt in enumerate(prompts)
        )
        sampled = [*itertools.chain(*await asyncio.gather(*asking))]
        vllm_R = torch.from_numpy(np.concatenate([completion.logprobs for completion in sampled]))
        # In one order, so that vLLM's part comes first in both.
        eager_R = _eager_logprobs(eager, device, [*sampled, *fixed])
        trainer_R = _trainer_logprobs(policy, device, [*sampled, *fixed])
        of_eager, of_trainer = (Gap.of(vllm_R, other_R[: len(vllm_R)]) for other_R in (eager_R, trainer_R))
        return Row(weights, len(vllm_R), (Gap.of(trainer_R, eager_R), of_eager, of_trainer))

    try:
        with quiet_start(path):
            await engine.start()
        rows = [await row("as loaded")]
        _perturb(policy, eager)
        moved = Gap.of(texts_R, _eager_logprobs(eager, device, fixed)).mean
        await _push(engine, outbox, policy, 1)
        rows.append(await row(PERTURBED))
        del eager, policy
        eager, policy = _load(path, dtype, device)
        await _push(engine, outbox, policy, 2)
        rows.append(await row("as loaded, pushed"))
        return ModelCheck(tuple(rows), moved, MOVED_SHARES[dtype])
    finally:
        outbox.close()
        await engine.shutdown()


def check_gradients(path: str, *, dtype: ComputeType, device: Device, tokens: int) -> tuple[int, list[str]]:
    """Return how many parameters the eager model trains, and a sentence for each that the trainer moves otherwise. The
    loss is the sum of fixed texts' log-probabilities. Without vLLM, and without DeepSpeed's partitioning."""
    eager, policy = _load(path, dtype, device)
    completions = _fixed(_prompts(path, tokens))
    with _visiting(eager, device):
        for completion in completions:
            _eager_pass(eager, device, completion).sum().backward()
    with _visiting(policy, device):
        policy(pack(completions), 1.0, with_entropy=False)[0].sum().backward()
    expected = {name: its.grad for name, its in eager.named_parameters() if its.grad is not None}
    least = NO_GRADIENT[dtype] * max(float(gradient.norm()) for gradient in expected.values())
    moved = {name: gradient for name, gradient in expected.items() if float(gradient.norm()) > least}
    faults = []
    for name, parameter in ((name, each) for name, each in policy.named_weights() if name in moved):
        if parameter.grad is None or not parameter.grad.any():
            faults.append(f"{name} has no gradient in the trainer.")
            continue
        cosine = float(torch.cosine_similarity(parameter.grad.flatten().float(), moved[name].flatten().float(), dim=0))
        if not cosine >= SAME_DIRECTION[dtype]:
            faults.append(f"{name} has a gradient of another direction in the trainer (cosine {cosine:.4f}).")
    return len(moved), faults


def _load(path: str, dtype: ComputeType, device: Device) -> tuple[PreTrainedModel, PolicyModel]:
    """Return the model as transformers runs it, and as the trainer does."""
    torch_dtype: torch.dtype = getattr(torch, dtype)
    try:
        eager = AutoModelForCausalLM.from_pretrained(path, dtype=torch_dtype, attn_implementation="eager")
        attention, _ = choose_attention(device, torch_dtype)
        policy = PolicyModel.from_pretrained(path, dtype=torch_dtype, attention=attention, logprob_chunk=LOGPROB_CHUNK)
    except UserError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path} holds no language model that transformers loads ({first_line(error)}).") from error
    return eager.eval(), policy.eval()


def _prompts(path: str, tokens: int) -> list[list[int]]:
    """Return token ids of a long prompt and of a short one."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} holds no tokenizer that loads ({first_line(error)}).") from error
    limit = AutoConfig.from_pretrained(path).get_text_config().max_position_embeddings
    # A fixed long text without a period that a model could repeat.
    text = "def f{0}(x, y={1}):\n    # step {0}\n    return [x + {2}, y, '{0:b}']\n"
    functions = (text.format(i, i * i, 7 * i % 11) for i in range(4000))
    ids = tokenizer.encode("".join(functions))
    return [ids[: min(tokens, limit - RESPONSE_TOKENS)], ids[:10]]


def _fixed(prompts: Sequence[Sequence[int]]) -> list[Completion]:
    """Return two responses to the long prompt and one to the short one, made of tokens of the long prompt."""
    ids: list[Any] = [*prompts]
    more: dict[str, Any] = {"logprobs": 0.0, "finish_reason": "length", "weight_versions": 0}
    return [
        Completion(prompt_ids=ids[which], response_ids=ids[0][step::step][:RESPONSE_TOKENS], **more)
        for which, step in ((0, 1), (0, 2), (1, 3))
    ]


@contextmanager
def _visiting(model: nn.Module, device: Device) -> Iterator[None]:
    """Keep the model on the device within the block only."""
    model.to(device)
    try:
        yield
    finally:
        model.to("cpu")
        if device == "cuda":
            torch.cuda.empty_cache()


@torch.no_grad()
def _eager_logprobs(eager: PreTrainedModel, device: Device, completions: Sequence[Completion]) -> Tensor:
    """Return float32 (R), computed one sample at a time."""
    with _visiting(eager, device):
        return torch.cat([_eager_pass(eager, device, c).cpu() for c in completions])


def _eager_pass(eager: PreTrainedModel, device: Device, completion: Completion) -> Tensor:
    """Return float32, one per response token, on the device where the model is."""
    ids, start = torch.tensor([completion.token_ids], device=device), len(completion.prompt_ids)
    logits = eager(ids, use_cache=False).logits[0, start - 1 : -1].float()
    return logits.log_softmax(-1).gather(1, ids[0, start:, None]).squeeze(1)


@torch.no_grad()
def _trainer_logprobs(policy: PolicyModel, device: Device, completions: Sequence[Completion]) -> Tensor:
    """Return float32 (R), computed with all samples in one packed stream."""
    with _visiting(policy, device):
        logprobs_R, _ = policy(pack(completions), 1.0, with_entropy=False)
        return logprobs_R.cpu()


@torch.no_grad()
def _perturb(policy: PolicyModel, eager: PreTrainedModel) -> None:
    """Move every parameter of the policy by noise of its own size, and give the other model the same weights."""
    generator = torch.Generator().manual_seed(1)
    pairs = zip(policy.named_weights(), eager.named_parameters(), strict=True)
    for (name, parameter), (its_name, its) in pairs:
        assert name == its_name
        # A parameter of zeros, such as a new bias, has no size of its own.
        size = max(float(parameter.float().square().mean().sqrt()), 0.01)
        noise = torch.randn(parameter.shape, generator=generator).to(parameter)
        parameter.add_(noise, alpha=NOISE * size)
        its.copy_(parameter)


async def _push(engine: RolloutEngine, outbox: HostOutbox, policy: PolicyModel, version: int) -> None:
    """Push the weights as in a run. Raises UserError when vLLM does not take a weight."""
    try:
        await engine.begin_update(version)
        for bucket in outbox.pack(version, [policy.named_weights()]):
            await engine.load_bucket(bucket)
        await engine.finish_update(version, bucket.digest)
    except Exception as error:  # vLLM reports what its worker process raised as a bare Exception
        raise UserError(f"vLLM does not take this model's weights from the trainer ({first_line(error)}).") from error
