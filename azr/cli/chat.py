"""Talk with a model: a run's policy with the chat template and the ends of its training, or any Hugging Face model.
Without a terminal, each line of standard input is a message, and only answers go to standard output."""

from __future__ import annotations

import asyncio
import contextlib
import math
import secrets
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from azr.cli.options import Parser, above, share, whole
from azr.errors import UserError
from azr.runs.model_folder import check_place

if TYPE_CHECKING:
    from azr.runs.asked_model import AskedModel

RESPONSE_TOKENS = 4096
"""Longest answer of a model that belongs to no run."""
CONTEXT = 32768
"""Longest conversation that room is made for; models say that they read much more than a GPU has memory for."""


def main(argv: Sequence[str]) -> int:
    options = parser().parse(argv)

    check_place(options.model)
    # Only now, because these take seconds to load.
    from azr.cli.conversation import AnswerOptions, Conversation, talk
    from azr.config import RolloutConfig
    from azr.hardware import compute_type
    from azr.rollout.engine import RolloutEngine
    from azr.rollout.quiet_start import quiet_start
    from azr.runs.asked_model import open_model

    model = open_model(options.model, options.step, options.template)
    if model.codec.template is None and not options.raw:
        raise UserError(
            f"{options.model} has the compact format and cannot chat: use --raw and type a prompt such as "
            "<|solve|><|deduction|><|program|>def f(x): return x + 1<|input|>2<|answer|>."
        )
    context = _context(model, options.context)
    seed = secrets.randbelow(2**31) if options.seed is None else options.seed
    engine = RolloutEngine(
        str(model.folder),
        RolloutConfig(
            max_concurrent=1,
            tensor_parallel=options.tensor_parallel,
            gpu_memory_utilization=options.gpu_memory_utilization,
        ),
        stops=model.codec.stops,
        generate_timeout_s=math.inf,
        dtype=compute_type(options.dtype),
        seed=seed,
        max_model_len=context,
    )
    of_run = model.config.rollout.max_response_tokens if model.config else RESPONSE_TOKENS
    how = AnswerOptions(
        raw=options.raw,
        max_response_tokens=options.max_response_tokens or of_run,
        context=context,
        temperature=options.temperature,
        seed=seed,
    )
    # No text that comes in or goes out can end the conversation.
    for stream in (sys.stdin, sys.stdout):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    if sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  gives input() its line editing and history
    with asyncio.Runner() as runner:
        try:
            started = time.monotonic()
            print(f"loading {model.label} ...", file=sys.stderr, flush=True)
            with quiet_start(str(model.folder)):
                runner.run(engine.start())
            print(f"ready after {time.monotonic() - started:.0f} s; /help says more", file=sys.stderr, flush=True)
            talk(Conversation(model.codec, engine, how), runner.run)
        finally:
            runner.run(engine.shutdown())
    return 0


def parser() -> Parser:
    parser = Parser("chat", __doc__)
    parser.add_model()
    parser.add_argument("--raw", action="store_true", help="send your text as the prompt: no template, no history")
    parser.add_argument("--temperature", type=temperature, default=1.0, help="sampling temperature; 0 is greedy")
    parser.add_argument(
        "--max-response-tokens",
        type=whole(1, 10**6),
        help=f"longest response in tokens (default: the run's, else {RESPONSE_TOKENS})",
    )
    parser.add_argument(
        "--context",
        type=whole(2, 10**7),
        help=f"longest conversation in tokens (default: the model's context, at most {CONTEXT})",
    )
    parser.add_argument("--seed", type=whole(0, 2**31), help="random seed (default: a new one each time)")
    parser.add_argument("--tensor-parallel", type=whole(1, 1024), default=1, help="tensor parallel size")
    parser.add_argument(
        "--gpu-memory-utilization", type=share, default=0.85, help="share of a GPU's memory for the engine"
    )
    return parser


def temperature(text: str) -> float:
    return 0.0 if text in ("0", "0.0") else above(0)(text)


def _context(model: AskedModel, wanted: int | None) -> int:
    if wanted is not None and model.context is not None and wanted > model.context:
        raise UserError(f"--context is {wanted}, but {model.place} reads {model.context} tokens: lower it.")
    return wanted or min(model.context or CONTEXT, CONTEXT)
