"""``azr exam``: grades a model on the held-out exam, with the real engine and the real executor."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from azr.cli.options import Parser, whole
from azr.evaluation.suite import read


def main(argv: Sequence[str]) -> int:
    """Prints a table, writes the JSON and returns 0. Raises UserError for a user's mistake."""
    parser = Parser("exam", "Grade a model on the held-out exam: greedy, at temperature 1, and pass@8.")
    parser.add_argument("--model", required=True, help="Hugging Face folder or hub name")
    parser.add_argument("--samples", type=whole(1, 1024), default=8, help="answers per task at temperature 1")
    parser.add_argument("--out", type=Path, help="JSON file; exam.json in the model's folder when not given")
    parser.add_argument("--exam", type=Path, default=Path("data/exam"), help="folder of the exam")
    parser.add_argument("--style", choices=("compact", "chat"), help="how it is asked; by its tokenizer when not given")
    parser.add_argument("--max-response-tokens", type=whole(1, 1_000_000), help="longest answer")
    parser.add_argument("--dtype", choices=("auto", "bfloat16", "float32"), default="auto", help="compute type")
    parser.add_argument("--seed", type=whole(0, 2**31), default=1, help="seed of the engine")
    options = parser.parse(argv)
    paper = read(options.exam)

    # Only now, because these take seconds to load.
    import torch

    from azr.evaluation import result, standalone
    from azr.hardware import compute_type

    config = standalone.settings(options.model, options.style, options.max_response_tokens)
    config = replace(config, run=replace(config.run, seed=options.seed))
    dtype = compute_type(options.dtype, "cuda" if torch.cuda.is_available() else "cpu")
    out = options.out or _beside(options.model)
    begun = time.monotonic()
    marks = asyncio.run(standalone.grade(config, paper, options.samples, dtype))
    rows = result.rows(marks)
    about = {
        "model": options.model,
        "exam": str(options.exam),
        "samples": options.samples,
        "seed": options.seed,
        "dtype": dtype,
        "style": config.model.prompt_format,
        "max_response_tokens": config.rollout.max_response_tokens,
        "seconds": round(time.monotonic() - begun, 1),
    }
    result.write(out, about, marks, rows)
    print(result.table(rows))
    print(f"{len(marks)} tasks, {options.samples} samples each, {about['seconds']:.0f} s; written to {out}")
    return 0


def _beside(model: str) -> Path:
    folder = Path(model)
    return folder / "exam.json" if folder.is_dir() else Path(f"{model.replace('/', '_')}_exam.json")
