"""``azr export RUN OUT``: takes a trained model out of a run as a plain Hugging Face folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from azr.cli.options import Parser, whole
from azr.errors import UserError
from azr.runs.model_export import export, find_source


def main(argv: Sequence[str]) -> int:
    options = parser().parse(argv)
    if not (parent := options.out.absolute().parent).exists():
        raise UserError(f"There is no folder {parent}: make it, or write to another place.")
    source = find_source(options.run, options.step)
    nbytes = export(
        source,
        options.out,
        remove_think_tokens=options.think_tokens == "remove",
        merged=not options.adapter,
        base=options.base,
    )
    whose = f"{options.run}" if source.step is None else f"step {source.step} of {options.run}"
    print(f"{whose} is now in {options.out}, {nbytes / 1e6:.1f} MB")
    return 0


def parser() -> Parser:
    parser = Parser("export", "Write a run's policy as a Hugging Face folder that transformers and vLLM load.")
    parser.add_argument("run", metavar="RUN", type=Path, help="run directory, or the folder of a model")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to write; it must be new or empty")
    parser.add_argument("--step", type=whole(0, 10**9), help="which policy of the run; the last one when not given")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--merge", action="store_true", help="of a run with adapters: merged into its base (default)")
    form.add_argument("--adapter", action="store_true", help="of a run with adapters: these alone, as peft loads them")
    parser.add_argument("--base", metavar="MODEL", help="where the model is now that the run began with, if it moved")
    parser.add_argument(
        "--think-tokens",
        choices=("keep", "remove"),
        default="keep",
        help="remove: the tags <think> and </think> become plain text for the tokenizer, which Qwen3 base models need",
    )
    return parser
