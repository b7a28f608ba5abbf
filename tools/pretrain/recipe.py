"""The whole pretraining: tokenizer, corpus, training, saved model."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from azr.hardware import compute_type
from azr.tasks.registry import KINDS
from tools.pretrain.corpus import CorpusConfig, batches, make_document
from tools.pretrain.loop import OptimConfig, Progress, ShapeConfig, Trainer, new_model, pretrain
from tools.pretrain.tokenizer import train_tokenizer


@dataclass(frozen=True, kw_only=True)
class PretrainConfig:
    """A pretraining run."""

    out: str
    """Folder the model is written to, and that snapshots go to on the way."""
    corpus: CorpusConfig
    optim: OptimConfig = field(default_factory=OptimConfig)
    shape: ShapeConfig = field(default_factory=ShapeConfig)
    start: str | None = None
    """Folder of a model to go on from, with its tokenizer; a new model when not given."""
    seed: int = 1
    threads: int = 2
    """Worker threads, each with its own batch per update."""
    vocab_size: int = 640
    """Most tokens of the tokenizer."""
    tokenizer_documents: int = 20000
    """Documents the tokenizer's merges are learned from."""
    tokens_per_batch: int = 1536
    """Padded tokens per thread and update."""
    save_every_s: float = 300.0
    """Seconds between snapshots."""


def run(config: PretrainConfig) -> Progress:
    """Train the model that ``config`` describes and save it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    if compute_type("auto", "cpu") != "bfloat16":
        logging.warning(
            "this CPU has no instructions for bfloat16, in which the model and Muon compute: an update takes a minute "
            "instead of a second, so make the model on a CPU with AVX-512 BF16 or AMX"
        )
    model, tokenizer = _resumed(config.start) if config.start else _fresh(config)
    logging.info("%.1fM parameters, %d tokens in the vocabulary", model.num_parameters() / 1e6, len(tokenizer))
    stream = batches(tokenizer, config.corpus, seed=config.seed, tokens_per_batch=config.tokens_per_batch)
    trainer = Trainer(model, config.optim)
    return pretrain(
        trainer, stream, tokenizer, Path(config.out), threads=config.threads, save_every_s=config.save_every_s
    )


def _fresh(config: PretrainConfig) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    rng = random.Random(config.seed + 1)
    documents = (make_document(rng, config.corpus) for _ in range(config.tokenizer_documents))
    tokenizer = train_tokenizer((d.prompt + d.answer for d in documents), list(KINDS), config.vocab_size)
    return new_model(config.shape, tokenizer, config.seed), tokenizer


def _resumed(folder: str) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model, PreTrainedTokenizerFast.from_pretrained(folder)
