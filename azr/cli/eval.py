"""Ask a model the questions of benchmarks, greedily and by samples, grade its answers, and write a table, numbers and
every answer into a folder. Data files are local; --list says which, and where they come from."""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azr.cli.options import Parser, above, whole
from azr.config import Config
from azr.config_tree import override
from azr.errors import UserError
from azr.runs.model_folder import check_place

if TYPE_CHECKING:
    from azr.runs.asked_model import AskedModel

_USAGE = (
    "azr eval MODEL|RUN [--data DIR] [--suite NAME,...] [options]\n"
    "       azr eval --list [--data DIR]\n"
    "       azr eval compare A B"
)
_OPTIONS = """
Options of engines and executors may follow, such as --rollout.engines 8, --rollout.tensor-parallel 2,
--rollout.gpu-memory-utilization 0.8, --rollout.max-concurrent 512, --executor.backend docker or --cluster.address; of
a run, its own are the default, but one engine.
"""
_SECTIONS = ("rollout", "executor", "timeout", "cluster.address")
_DECIDED = {
    "rollout.temperature": "the samples' is given by --temperature",
    "rollout.max_response_tokens": "it is given by --max-response-tokens",
    "rollout.max_prompt_tokens": "prompts are as long as the questions are",
    "rollout.staleness": "nothing is trained",
    "rollout.partial": "nothing is trained",
}
"""Options that an evaluation decides itself, and what stands in their place."""
_GPU_SHARE = 0.9
"""Share of a GPU's memory if no run and no option says otherwise: nothing else is on it."""
_SHOWN = 20
"""Ids of questions that a comparison prints of each suite and measure."""


def main(argv: Sequence[str]) -> int:
    if argv and argv[0] == "compare":
        return _compare(argv[1:])
    options, values = parser().parse_with_overrides(argv)
    if options.list:
        return _list(options.data)
    if options.model is None:
        raise UserError("azr eval needs a model or a run; azr eval --help lists every option.")
    if options.all_steps and (options.step is not None or options.out is not None):
        raise UserError("--all-steps evaluates every saved policy of a run into its own folder: leave --step and --out "
                        "out.")  # fmt: skip
    ks = options.k or ((options.samples,) if options.samples else ())
    if ks and ks[-1] > options.samples:
        raise UserError(f"--k {ks[-1]} needs as many samples, and --samples is {options.samples}: raise it.")
    for path in values:
        if not path.startswith(_SECTIONS):
            raise UserError(f"azr eval has no use for {path}: it takes {', '.join(_SECTIONS)} only.")
        if path in _DECIDED:
            raise UserError(f"azr eval has no use for {path}: {_DECIDED[path]}.")
    return _evaluate(options, ks, values)


def parser() -> Parser:
    parser = Parser("eval", __doc__, usage=_USAGE, more_help=_OPTIONS)
    parser.add_model(required=False)
    parser.add_argument("--data", type=Path, help="folder of the suites' files; the exam needs none")
    parser.add_argument("--suite", type=_names, default=("exam",), metavar="NAME,...", help="suites, with commas")
    parser.add_argument("--list", action="store_true", help="list the suites and where their files come from")
    parser.add_argument("--all-steps", action="store_true", help="every policy that a run has saved")
    parser.add_argument("--samples", type=whole(0, 4096), default=0, help="samples per question, besides a greedy one")
    parser.add_argument("--temperature", type=above(0), default=1.0, help="sampling temperature")
    parser.add_argument("--k", type=_ks, help="k of pass@k, with commas (default: all samples)")
    longest = "longest response in tokens (default: the run's, else 8192)"
    parser.add_argument("--max-response-tokens", type=whole(1, 10**6), help=longest)
    parser.add_argument("--limit", type=whole(1, 10**9), help="questions of each suite, spread evenly (default: all)")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted evaluation")
    parser.add_argument("--out", type=Path, help="folder of the results (default: see docs/evaluation.md)")
    parser.add_argument("--altered", action="store_true", help="accept data files other than the tested ones")
    parser.add_argument("--seed", type=whole(0, 2**31), default=1, help="random seed of the samples")
    parser.add_argument("--deterministic", action="store_true", help="one question at a time: slow, repeatable")
    return parser


def _ks(text: str) -> tuple[int, ...]:
    return tuple(sorted({whole(1, 4096)(word) for word in text.split(",")}))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"must be names with commas between them, not {text!r}")
    return names


def _evaluate(options: argparse.Namespace, ks: tuple[int, ...], values: dict[str, Any]) -> int:
    check_place(options.model)
    # Only now, because these take seconds to load.
    from azr.evaluation import report
    from azr.evaluation.asking import Sampling
    from azr.evaluation.standalone import Evaluation, Serve, check_out, run_evaluation, serve_here
    from azr.evaluation.suites import load_suites, to_be_continued
    from azr.hardware import compute_type
    from azr.runs.asked_model import open_model
    from azr.runs.model_export import policies

    steps = sorted(policies(Path(options.model))) if options.all_steps else [options.step]
    models = [open_model(options.model, step, options.template) for step in steps]
    names = options.suite
    if models[0].codec.continues_examples:
        names = to_be_continued(names, models[0].codec.prompt_format)
        print(f"{models[0].label} continues examples ({', '.join(names)}); --template conversation asks it in words")
    suites = load_suites(names, options.data, options.limit, altered=options.altered)
    values |= {"run.seed": options.seed, "run.deterministic": options.deterministic}
    values["train.dtype"] = compute_type(options.dtype)
    longest = options.max_response_tokens or 0
    sampling = Sampling(samples=options.samples, temperature=options.temperature, max_tokens=longest, seed=options.seed)
    shared: dict[str, Any] = {"suites": suites, "sampling": sampling, "ks": ks}
    evaluations = [Evaluation(model=each, codec=each.codec, config=_config(each, values), **shared) for each in models]
    outs = [options.out or _default_out(model) for model in models]
    for out in outs:
        check_out(out, resume=options.resume)
    for evaluation, out in zip(evaluations, outs, strict=True):
        serve: Serve = serve_here
        if evaluation.config.rollout.engines > 1:
            from azr.system import serve_by_ray

            serve = serve_by_ray
        table = asyncio.run(run_evaluation(evaluation, out, serve))
        print(f"{evaluation.model.label}, percent with 95% intervals:\n\n{report.markdown(table)}\n")
        print(f"Answers are read leniently, in other forms than the asked one too.\nwritten to {out}")
    return 0


def _config(model: AskedModel, values: dict[str, Any]) -> Config:
    """Of engine and executors: the run's, changed by the options, for an engine that has the machine to itself."""
    base = model.config or Config()
    rollout = replace(base.rollout, engines=1, staleness=0, partial=False, gpu_memory_utilization=_GPU_SHARE)
    return override(replace(base, rollout=rollout), values | {"model.path": str(model.folder)})


def _default_out(model: AskedModel) -> Path:
    if model.step is not None:
        return Path(model.place) / "eval" / f"step_{model.step:06d}"
    return Path("orz_ckpt") / "eval" / re.sub(r"[^\w.+-]+", "_", model.label)


def _list(folder: Path | None) -> int:
    from azr.evaluation.report import aligned
    from azr.evaluation.suites import listing

    rows = list(listing(folder))
    print(aligned([("suite", "state", "SHA-256", "licence", "rows"), *(row[:5] for row in rows)], 4))
    print("\nWhere the files come from:\n")
    for row in rows:
        print(f"{row[0]}: {row[5]}")
    return 0


def _compare(argv: Sequence[str]) -> int:
    parser = Parser("eval compare", "Say by how much two evaluations differ on the same questions, and on which ones.")
    parser.add_argument("before", metavar="A", type=Path, help="folder of an evaluation")
    parser.add_argument("after", metavar="B", type=Path, help="folder of the evaluation to compare with")
    parser.add_argument("--all", action="store_true", help="list every changed question, not only the first ones")
    options = parser.parse(argv)

    from azr.evaluation.report import compare, differences_table

    differences, others = compare(options.before, options.after)
    print(f"A: {options.before}\nB: {options.after}\n")
    if others:
        print(f"They differ not in the model alone, but in {', '.join(others)}.\n")
    print(differences_table(differences))
    for each in differences:
        for word, ids in (("better", each.won), ("worse", each.lost)):
            shown = ids if options.all else ids[:_SHOWN]
            more = f" and {len(ids) - len(shown)} more (--all)" if len(shown) < len(ids) else ""
            if ids:
                print(f"\n{each.suite}, {each.measure}, {word} in B: {' '.join(shown)}{more}")
    return 0
