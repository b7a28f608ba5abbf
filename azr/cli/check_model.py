"""``azr check-model PATH``: whether Hugging Face, the trainer and vLLM agree about a model, before and after a push."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from azr.cli.options import Parser, above, whole
from azr.hardware import Device
from azr.runs.model_folder import check_tokenizer_files, model_folder


def main(argv: Sequence[str]) -> int:
    """Prints a table; returns 1 when a difference is above the bound. Raises UserError for a user's mistake."""
    options = parser().parse(argv)
    folder = model_folder(options.path, fetch=True, named="PATH")
    assert folder is not None, "it is there, or was fetched"
    check_tokenizer_files(options.path, folder, named="PATH")

    # Only now, because these take seconds to load.
    import torch

    from azr.evaluation.model_check import BOUNDS, check_model

    bound = options.bound or BOUNDS[options.dtype]
    device: Device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    found = asyncio.run(check_model(str(folder), dtype=options.dtype, device=device, tokens=options.tokens))
    print(f"Differences of log-probabilities in nats, {options.path} in {options.dtype}:")
    print(found.table())
    print(f"Perturbing the weights moved the log-probabilities by {found.moved:.1e} nats on average.")
    bounds = f"{bound:g} nats, {found.perturbed_bound(bound):.1g} after the perturbation"
    if not found.passes(bound):
        print(f"A difference is above its bound ({bounds}), or the perturbation is not: do not train this model.")
        return 1
    print(f"No difference is above its bound ({bounds}).")
    return 0


def parser() -> Parser:
    parser = Parser(
        "check-model",
        "Compare log-probabilities of Hugging Face's eager attention, of the trainer's packed forward and of vLLM, "
        "before and after weights are pushed. Start with --dtype float32: only there does a small mistake show.",
    )
    parser.add_argument("path", metavar="PATH", help="Hugging Face folder or hub name")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="compute type of all three")
    parser.add_argument("--bound", type=above(0), help="most nats of difference; 1e-4 in float32, 0.3 in bfloat16")
    parser.add_argument(
        "--tokens",
        type=whole(32, 1_000_000),
        default=512,
        help="length of the longest prompt; above the model's sliding window to check that too",
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="of trainer and eager model")
    return parser
