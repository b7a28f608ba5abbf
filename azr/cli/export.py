"""``azr export RUN|MODEL OUT``: takes a trained model out of a run as a plain Hugging Face folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from azr.cli.options import Parser, whole
from azr.errors import UserError


def main(argv: Sequence[str]) -> int:
    options = parser().parse(argv)
    if not (parent := options.out.absolute().parent).exists():
        raise UserError(f"There is no folder {parent}: make it, or write to another place.")
    # Only now, because this loads the hub's library.
    from azr.runs.model_export import check_hub, export, find_source, push

    source = find_source(options.run, options.step)
    if options.push_to_hub is not None:
        check_hub(options.push_to_hub)
    elif options.private:
        raise UserError("--private says how a repository of the hub is made: add --push-to-hub OWNER/NAME.")
    nbytes = export(source, options.out, merged=not options.adapter, base=options.base)
    whose = f"{options.run}" if source.step is None else f"step {source.step} of {options.run}"
    print(f"{whose} is now in {options.out}, {nbytes / 1e6:.1f} MB")
    if options.push_to_hub is not None:
        print(f"pushed to {push(options.out, options.push_to_hub, private=options.private)}")
    return 0


def parser() -> Parser:
    parser = Parser(
        "export", "Write a run's policy, or the text model of one that reads images, as a folder of weights."
    )
    parser.add_argument("run", metavar="RUN|MODEL", type=Path, help="run directory, Hugging Face folder or hub name")
    parser.add_argument("out", metavar="OUT", type=Path, help="folder to write; it must be new or empty")
    parser.add_argument("--step", type=whole(0, 10**9), help="step of the run's policy (default: the last)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--merge", action="store_true", help="adapters: merge them into the base model (default)")
    form.add_argument("--adapter", action="store_true", help="adapters: write these alone, as peft loads them")
    parser.add_argument("--base", metavar="MODEL", help="adapters: path of the base model, if it moved")
    parser.add_argument("--push-to-hub", metavar="OWNER/NAME", help="also upload OUT to this repository of the hub")
    parser.add_argument("--private", action="store_true", help="make that repository a private one if it is new")
    return parser
