"""``azr check-model PATH``: compare Hugging Face, trainer and vLLM on a model, and find the form that it follows."""

from __future__ import annotations

import asyncio
import textwrap
from argparse import Namespace
from collections.abc import Sequence

from azr.cli.options import Parser, above, whole
from azr.doctor.machine import check_gpus, query_gpus
from azr.hardware import Device, compute_type
from azr.runs.model_folder import check_tokenizer_files, check_weights, model_folder


def main(argv: Sequence[str]) -> int:
    """Print two tables; return 1 if a difference is above its bound, or no form teaches. Raises UserError for a user's
    mistake."""
    options = parser().parse(argv)
    if options.device == "cuda":
        check_gpus(query_gpus(), "--device", "set it to auto or cpu")
    folder = model_folder(options.path, fetch=True, named="PATH")
    assert folder is not None, "it is there, or was fetched"
    check_tokenizer_files(options.path, folder, named="PATH")
    check_weights(folder)
    from transformers.utils.logging import disable_progress_bar  # only now: it takes seconds to load

    disable_progress_bar()
    agree = options.only == "forms" or _logprobs_agree(options, str(folder))
    teaches = options.only == "logprobs" or _form_teaches(options, str(folder))
    return 0 if agree and teaches else 1


def _logprobs_agree(options: Namespace, folder: str) -> bool:
    # Only now, because these take seconds to load.
    import torch

    from azr.doctor.model_check import BOUNDS, check_gradients, check_model

    bound = options.bound or BOUNDS[options.dtype]
    device: Device = options.device if options.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    trained, faults = check_gradients(folder, dtype=options.dtype, device=device, tokens=options.tokens)
    print(f"Gradients of {trained} parameters, trainer against eager: {len(faults) or 'none'} otherwise.")
    for fault in faults:
        print(f"  {fault}")
    print("Log-probabilities of all three, before and after a push: some minutes on a CPU.", flush=True)
    found = asyncio.run(check_model(folder, dtype=options.dtype, device=device, tokens=options.tokens))
    print(f"Differences of log-probabilities in nats, {options.path} in {options.dtype}:")
    print(found.table())
    print(f"Perturbing the weights moved the log-probabilities by {found.moved:.1e} nats on average.")
    if faults:
        print("The trainer would not train all parameters as it should: do not train this model.")
        return False
    bounds = f"{bound:g} nats, {found.perturbed_bound(bound):.1g} after the perturbation"
    if not found.passes(bound):
        print(f"A difference is above its bound ({bounds}), or the perturbation is not: do not train this model.")
        return False
    print(f"No difference is above its bound ({bounds}).")
    return True


def _form_teaches(options: Namespace, folder: str) -> bool:
    from azr.evaluation.form_check import FORMS, MAX_TOKENS, RESPONSES, SAMPLES, check_forms

    dtype = compute_type("auto")
    count = f"{RESPONSES} proposals and answers in each of up to {len(FORMS)} forms"
    print(f"{count}: some minutes on a CPU.", flush=True)
    found = asyncio.run(check_forms(folder, dtype=dtype))
    print(f"Shares of {SAMPLES} responses of at most {MAX_TOKENS} tokens, {options.path} in {dtype}:")
    print(found.table())
    print(f"A proposal in {found.best}:\n{textwrap.indent(found.example(), '    ')}")
    print(found.advice())
    return found.learns


def parser() -> Parser:
    parser = Parser(
        "check-model",
        "Compare log-probabilities of Hugging Face's eager attention, of the trainer's packed forward and of vLLM, "
        "before and after weights are pushed; only --dtype float32 shows a small mistake. Then ask "
        "held-out tasks in every prompt form, and say which one to take.",
    )
    parser.add_argument("path", metavar="PATH", help="Hugging Face folder or hub name")
    parser.add_argument("--only", choices=("logprobs", "forms"), help="which check (default: both)")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="compute type of all three")
    parser.add_argument("--bound", type=above(0), help="accepted difference in nats (default: 1e-4; 0.9 in bfloat16)")
    longest = "tokens of the longest prompt; more than the sliding window checks that too"
    parser.add_argument("--tokens", type=whole(32, 1_000_000), default=512, help=longest)
    place = "device of the trainer and the eager model"
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help=place)
    return parser
