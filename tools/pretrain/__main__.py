"""Pretrains the project's own 14M base model from nothing, on a CPU: ``python -m tools.pretrain [--out FOLDER]``."""

from __future__ import annotations

import argparse
import logging
import random
from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from azr.hardware import compute_type
from azr.tasks.registry import KINDS
from tools.pretrain.corpus import CORPORA, CorpusConfig, batches, make_document
from tools.pretrain.loop import OptimConfig, PretrainProgress, ShapeConfig, Trainer, new_model, pretrain
from tools.pretrain.tokenizer import train_tokenizer

VOCAB_SIZE = 640
"""Most tokens of the tokenizer."""
TOKENIZER_DOCUMENTS = 20_000
"""Documents the tokenizer's merges are learned from."""
TOKENS_PER_BATCH = 1536
"""Padded tokens per thread and update."""


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.pretrain",
        description="Pretrain the 14M base model; the defaults make the committed one.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("data/azr_14m_base"), help="folder that is written")
    parser.add_argument("--start", help="folder of a model to continue from, with its tokenizer, instead of a new one")
    parser.add_argument("--minutes", type=float, default=32.0, help="length of the learning rate's schedule")
    # Half of the way: a model that has settled has little left to learn from self-play.
    parser.add_argument("--stop-at", type=float, default=0.47, help="share of the schedule after which the run ends")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2, help="worker threads, each with its own batch per update")
    parser.add_argument("--corpus", choices=CORPORA, default="all", help="what the documents are about")
    options = parser.parse_args(argv)
    optim = OptimConfig(minutes=options.minutes, stop_at=options.stop_at)
    run(options.out, options.start, optim, options.seed, options.threads, CORPORA[options.corpus])
    print(f"How good it is: azr eval --model {options.out}")


def run(
    out: Path, start: str | None, optim: OptimConfig, seed: int, threads: int, corpus: CorpusConfig = CORPORA["all"]
) -> PretrainProgress:
    """Trains a new model, or the one in the folder `start`, and saves it with snapshots on the way."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    if compute_type("auto", "cpu") != "bfloat16":
        logging.warning(
            "this CPU has no instructions for bfloat16, in which the model and Muon compute: an update takes a minute "
            "instead of a second, so make the model on a CPU with AVX-512 BF16 or AMX"
        )
    model, tokenizer = _load(start) if start else _new(seed, corpus)
    logging.info("%.1fM parameters, %d tokens in the vocabulary", model.num_parameters() / 1e6, len(tokenizer))
    stream = batches(tokenizer, corpus, seed=seed, tokens_per_batch=TOKENS_PER_BATCH)
    trainer = Trainer(model, optim, answers_only=corpus.answers_only)
    return pretrain(trainer, stream, tokenizer, out, threads=threads)


def _new(seed: int, corpus: CorpusConfig) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    rng = random.Random(seed + 1)
    documents = (make_document(rng, corpus) for _ in range(TOKENIZER_DOCUMENTS))
    tokenizer = train_tokenizer((d.prompt + d.answer for d in documents), list(KINDS), VOCAB_SIZE)
    return new_model(ShapeConfig(), tokenizer, seed), tokenizer


def _load(folder: str) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model, PreTrainedTokenizerFast.from_pretrained(folder)


if __name__ == "__main__":
    main()
