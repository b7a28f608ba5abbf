"""``azr recipes``: every shipped recipe with its model, what the plan says it takes, and what of it has run."""

from __future__ import annotations

import importlib
import json
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from azr.cli.options import PACKAGE, Parser, recipes
from azr.config import Config
from azr.plan.inputs import GIB, Assumptions, ClusterSpec
from azr.plan.planner import make_plan
from azr.plan.shapes import shape_of

_ABOUT = (
    "List the recipes that azr run takes by name. Memory and seconds are the plan's for the smallest GPUs, of 24, 48 "
    "or 80 GB, that a recipe fits on, seconds at rates that were measured on an H100; azr plan RECIPE says more. Below "
    "each stands what of it has run and with which result."
)
_SIZES_GIB = (24, 48, 80)
"""Sizes of GPUs."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A recipe as it is listed."""

    name: str
    model: str
    gpus: int
    gpu_memory_gib: float
    """Memory of the smallest GPUs that it fits on."""
    memory_gib: float
    """Memory taken on the fullest GPU."""
    step_s: float
    proven: list[str]
    """Runs of it; empty for a recipe that has only been parsed, planned and placed."""


def main(argv: Sequence[str]) -> int:
    options = parser().parse(argv)
    (folder,) = importlib.import_module(PACKAGE).__path__
    proven = tomllib.loads(Path(folder, "proven.toml").read_text(encoding="utf-8"))
    listed = [_listed(name, config, proven.get(name, [])) for name, config in recipes().items()]
    lines = (json.dumps(asdict(each)) for each in listed) if options.json else _table(listed)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def parser() -> Parser:
    parser = Parser("recipes", _ABOUT)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


def _listed(name: str, config: Config, proven: list[str]) -> Listed:
    nodes = ClusterSpec.with_gpus(config.num_gpus)
    shape = shape_of(config.model.path)
    plans = (make_plan(config, shape, replace(nodes, gpu_memory_gib=size), Assumptions()) for size in _SIZES_GIB)
    # The largest is what recipes are made for: each fits on it.
    plan = next(plan for plan in plans if not plan.problems or plan.nodes.gpu_memory_gib == max(_SIZES_GIB))
    return Listed(
        name=name,
        model=config.model.path,
        gpus=config.num_gpus,
        gpu_memory_gib=plan.nodes.gpu_memory_gib,
        memory_gib=round(plan.peak / GIB, 1),
        step_s=round(sum(plan.seconds.values()), 1),
        proven=proven,
    )


def _table(listed: Sequence[Listed]) -> Iterator[str]:
    names, models = (
        max(len(text) for text in texts) for texts in ([r.name for r in listed], [r.model for r in listed])
    )
    yield f"{'recipe':{names}}  {'model':{models}}  GPUs  of GB  GiB taken  s a step"
    for each in listed:
        numbers = f"{each.gpus:4}  {each.gpu_memory_gib:5.0f}  {each.memory_gib:9.1f}  {each.step_s:8.0f}"
        yield f"{each.name:{names}}  {each.model:{models}}  {numbers}"
        yield from (f"    ran on {proof}" for proof in each.proven)
    yield ""
    yield (
        "Without a line of its own, a recipe was planned and placed in the tests, and took one step there on CPU cores "
        "with a tiny model and small sizes."
    )
