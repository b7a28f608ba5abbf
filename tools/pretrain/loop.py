"""Pretraining of a tiny Qwen2 model within a wall-clock budget, on a CPU."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from tools.pretrain.corpus import PaddedBatch
from tools.pretrain.tokenizer import save_tokenizer

log = logging.getLogger(__name__)

# Shapes: B = documents, T = tokens, V = vocabulary.


@dataclass(frozen=True, kw_only=True)
class ShapeConfig:
    """Size of the model; the defaults have 14M parameters."""

    hidden_size: int = 384
    layers: int = 8
    heads: int = 6
    kv_heads: int = 2
    intermediate_size: int = 1152
    max_positions: int = 1024


@dataclass(frozen=True, kw_only=True)
class OptimConfig:
    """Muon for matrices, AdamW for embeddings and norms.

    The rate warms up linearly, stays, and falls linearly to zero over the last part of the time.
    """

    minutes: float = 32.0
    """Wall-clock budget; the schedule follows the elapsed time."""
    peak_lr: float = 1e-3
    warmup_steps: int = 100
    decay_share: float = 0.8
    """Share of the time in which the rate falls to zero."""
    stop_at: float = 1.0
    """Share of the time after which the run ends, with the rate it then has."""
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.98
    grad_clip: float = 1.0


@dataclass
class PretrainProgress:
    """Where a run stands."""

    step: int = 0
    tokens: int = 0
    """Real tokens seen, padding excluded."""
    documents: int = 0
    seconds: float = 0.0

    def count(self, batches: list[PaddedBatch], seconds: float) -> None:
        """Add one update."""
        self.step += 1
        self.tokens += sum(int(batch.real_BT.sum()) for batch in batches)
        self.documents += sum(len(batch.ids_BT) for batch in batches)
        self.seconds = seconds


def new_model(shape: ShapeConfig, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen2ForCausalLM:
    """A randomly initialised model in float32 with tied embeddings.

    Attention is written out as matrix products: for 50 tokens that is twice as fast on a CPU as the fused kernel.
    """
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=True,
        attn_implementation="eager",
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Qwen2ForCausalLM(config)


def token_loss(
    logits_BTV: torch.Tensor, batch: PaddedBatch, *, answers_only: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean next-token cross-entropy over all real tokens, or those of answers only, and over those of answers
    (detached), in nats."""
    targets = batch.ids_BT[:, 1:].flatten()
    losses = cross_entropy(logits_BTV[:, :-1].float().flatten(0, 1), targets, reduction="none")
    real, answers = batch.real_BT[:, 1:].flatten(), batch.answers_BT[:, 1:].flatten()
    return losses[answers if answers_only else real].mean(), losses.detach()[answers].mean()


def learning_rate(optim: OptimConfig, step: int, elapsed_share: float) -> float:
    """The rate at a step when ``elapsed_share`` (0..1) of the time has passed."""
    warm = min(1.0, (step + 1) / optim.warmup_steps)
    left = max(0.0, 1.0 - elapsed_share)
    return optim.peak_lr * warm * min(1.0, left / optim.decay_share)


def _muon(matrices: list[torch.Tensor], optim: OptimConfig) -> torch.optim.Muon:
    """Orthogonalised momentum, scaled to the update size of Adam so that one rate serves both."""
    return torch.optim.Muon(matrices, lr=optim.peak_lr, weight_decay=optim.weight_decay, adjust_lr_fn="match_rms_adamw")


class Trainer:
    """bfloat16 weights that compute, float32 weights that are optimised.

    An update takes several batches, one per worker thread. Threads that each hold their own batch meet once per
    update, so a core that is busy with something else delays an update, not every single operation.
    """

    def __init__(self, model: Qwen2ForCausalLM, optim: OptimConfig, *, answers_only: bool = False) -> None:
        self.optim, self.answers_only = optim, answers_only
        names = [name for name, _ in model.named_parameters()]
        self.masters = [p.detach().clone() for p in model.parameters()]
        self.model = model.to(torch.bfloat16).train()
        self.weights = list(self.model.parameters())
        matrices = [p for n, p in zip(names, self.masters, strict=True) if p.dim() == 2 and "embed" not in n]
        others = [p for n, p in zip(names, self.masters, strict=True) if p.dim() == 1 or "embed" in n]
        self.optimizers: list[torch.optim.Optimizer] = [
            *(_muon(matrices[half::2], optim) for half in range(2)),
            torch.optim.AdamW(others, lr=optim.peak_lr, betas=(optim.beta1, optim.beta2), weight_decay=0.0),
        ]

    def gradient(self, batch: PaddedBatch) -> tuple[tuple[torch.Tensor, ...], float, float]:
        """Gradient of the loss, that loss, and the mean loss of answer tokens."""
        logits_BTV = self.model(input_ids=batch.ids_BT, use_cache=False).logits
        loss, answer_loss = token_loss(logits_BTV, batch, answers_only=self.answers_only)
        return torch.autograd.grad(loss, self.weights), loss.item(), answer_loss.item()

    def step(self, batches: list[PaddedBatch], rate: float, pool: ThreadPoolExecutor) -> tuple[float, float]:
        """One update; returns the loss and the mean loss of answer tokens, averaged over the batches."""
        gradients, losses, answer_losses = zip(*pool.map(self.gradient, batches), strict=True)
        for master, *parts in zip(self.masters, *gradients, strict=True):
            master.grad = torch.stack(parts).float().mean(0)
        torch.nn.utils.clip_grad_norm_(self.masters, self.optim.grad_clip)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate
        list(pool.map(lambda optimizer: optimizer.step(), self.optimizers))
        with torch.no_grad():
            torch._foreach_copy_(self.weights, self.masters)
        return sum(losses) / len(batches), sum(answer_losses) / len(batches)


def pretrain(
    trainer: Trainer,
    stream: Iterable[PaddedBatch],
    tokenizer: PreTrainedTokenizerFast,
    folder: Path,
    *,
    threads: int,
    log_every: int = 100,
    save_every_s: float = 300.0,
    max_steps: int | None = None,
) -> PretrainProgress:
    """Train until the time is up (or ``max_steps``), with snapshots of the weights in ``folder`` on the way."""
    torch.set_num_threads(1)
    progress, started, saved = PretrainProgress(), time.monotonic(), time.monotonic()
    sums, since = [0.0, 0.0], 0
    with ThreadPoolExecutor(threads) as pool:
        for group in batched(stream, threads):
            share = (time.monotonic() - started) / (60 * trainer.optim.minutes)
            if share >= trainer.optim.stop_at or progress.step == max_steps:
                break
            losses = trainer.step(group, learning_rate(trainer.optim, progress.step, share), pool)
            assert math.isfinite(losses[0]), f"the loss is {losses[0]} at step {progress.step}"
            sums, since = [a + b for a, b in zip(sums, losses, strict=True)], since + 1
            progress.count(group, time.monotonic() - started)
            if progress.step % log_every == 0:
                _report(progress, [s / since for s in sums])
                sums, since = [0.0, 0.0], 0
            if time.monotonic() - saved > save_every_s:
                save(trainer.model, tokenizer, folder, progress)
                saved = time.monotonic()
    save(trainer.model, tokenizer, folder, progress)
    return progress


def batched(stream: Iterable[PaddedBatch], size: int) -> Iterator[list[PaddedBatch]]:
    """Consecutive batches in lists of ``size``."""
    iterator = iter(stream)
    while group := list(islice(iterator, size)):
        yield group


def _report(progress: PretrainProgress, losses: list[float]) -> None:
    log.info(
        "step %d  %.2fM tokens  %dk documents  %.0f s  %.0f tokens/s  loss %.4f  answers %.4f",
        progress.step,
        progress.tokens / 1e6,
        progress.documents // 1000,
        progress.seconds,
        progress.tokens / progress.seconds,
        *losses,
    )


def save(model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path, progress: PretrainProgress) -> None:
    """Write a Hugging Face folder: bfloat16 weights, configs, tokenizer, and ``progress.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True, temperature=1.0
    )
    model.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
    (folder / "progress.json").write_text(json.dumps(vars(progress), indent=2) + "\n")
