"""List the recipes that azr run takes by name. Memory and seconds are the plan's for the smallest GPUs, of 24, 48 or
80 GB, that a recipe fits on, seconds at rates that were measured on an H100; azr plan RECIPE says more. Below each
stands what of it has run and with which result."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from azr.cli.options import Parser
from azr.config import Config
from azr.launch import PACKAGE, recipes
from azr.plan.inputs import GIB
from azr.plan.planner import known_plan

_SIZES_GIB = (24, 48, 80)
"""Sizes of GPUs."""


def main(argv: Sequence[str]) -> int:
    options = parser().parse(argv)
    (folder,) = importlib.import_module(PACKAGE).__path__
    proven = tomllib.loads(Path(folder, "proven.toml").read_text(encoding="utf-8"))
    listed = [_listed(name, config, proven.get(name, [])) for name, config in recipes().items()]
    lines = map(json.dumps, listed) if options.json else _table(listed)
    sys.stdout.writelines(f"{line}\n" for line in lines)
    return 0


def parser() -> Parser:
    parser = Parser("recipes", __doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    return parser


def _listed(name: str, config: Config, proven: list[str]) -> dict[str, Any]:
    """``proven``: runs of it; empty for a recipe that has only been parsed, planned and placed."""
    plans = filter(None, (known_plan(config, size) for size in _SIZES_GIB))
    # The largest is what recipes are made for: each fits on it.
    plan = next(plan for plan in plans if not plan.problems or plan.nodes.gpu_memory_gib == max(_SIZES_GIB))
    return {
        "name": name,
        "model": re.sub(r"^/.*/(?=data/)", "", config.model.path),
        "gpus": config.num_gpus,
        "gpu_memory_gib": plan.nodes.gpu_memory_gib,
        "memory_gib": round(plan.peak / GIB, 1),
        "step_s": round(sum(plan.seconds.values()), 1),
        "proven": proven,
    }


def _table(listed: Sequence[dict[str, Any]]) -> Iterator[str]:
    names, models = (max(len(each[key]) for each in listed) for key in ("name", "model"))
    yield f"{'recipe':{names}}  {'model':{models}}  GPUs  of GB  GiB taken  s a step"
    for each in listed:
        numbers = "{gpus:4}  {gpu_memory_gib:5.0f}  {memory_gib:9.1f}  {step_s:8.0f}".format_map(each)
        yield f"{each['name']:{names}}  {each['model']:{models}}  {numbers}"
        yield from (f"    ran on {proof}" for proof in each["proven"])
    yield "\nA recipe without such a line was planned, placed, and took a step with a tiny model on CPUs, in the tests."
