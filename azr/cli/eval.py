"""``azr eval``: evaluates a model on the held-out exam, with the real engine and the real executor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from azr.cli.options import Parser, whole
from azr.evaluation.suite import read_suite


def main(argv: Sequence[str]) -> int:
    """Prints a table, writes the JSON and returns 0. Raises UserError for a user's mistake."""
    parser = Parser("eval", "Evaluate a model on the held-out exam: greedy, at temperature 1, and pass@8.")
    parser.add_argument("--model", required=True, help="Hugging Face folder or hub name")
    parser.add_argument("--samples", type=whole(1, 1024), default=8, help="answers per task at temperature 1")
    parser.add_argument("--out", type=Path, help="JSON file; eval.json in the model's folder when not given")
    parser.add_argument("--exam", type=Path, default=Path("data/exam"), help="folder of the exam")
    parser.add_argument(
        "--prompt-format", choices=("compact", "chat"), help="how it is asked; by its tokenizer when not given"
    )
    parser.add_argument("--max-response-tokens", type=whole(1, 1_000_000), help="longest answer")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto", help="compute type")
    parser.add_argument("--seed", type=whole(0, 2**31), default=1, help="seed of the engine")
    options = parser.parse(argv)
    benchmark = read_suite(options.exam)

    # Only now, because these take seconds to load.
    import torch

    from azr.evaluation import results, standalone
    from azr.hardware import compute_type

    config = standalone.eval_config(options.model, options.prompt_format, options.max_response_tokens)
    config = replace(config, run=replace(config.run, seed=options.seed))
    dtype = compute_type(options.dtype, "cuda" if torch.cuda.is_available() else "cpu")
    out = options.out or _default_out(options.model)
    started = time.monotonic()
    scores = asyncio.run(standalone.evaluate_model(config, benchmark, options.samples, dtype))
    seconds = time.monotonic() - started
    about = {
        "model": options.model,
        "exam": str(options.exam),
        "samples": options.samples,
        "seed": options.seed,
        "dtype": dtype,
        "prompt_format": config.model.prompt_format,
        "max_response_tokens": config.rollout.max_response_tokens,
        "seconds": round(seconds, 1),
    }
    results.write_results(out, about, scores)
    print(results.text_table(results.rows(scores)))
    print(f"{len(scores)} tasks, {options.samples} samples each, {seconds:.0f} s; written to {out}")
    return 0


def _default_out(model: str) -> Path:
    folder = Path(model)
    return folder / "eval.json" if folder.is_dir() else Path(f"{model.replace('/', '_')}_eval.json")
