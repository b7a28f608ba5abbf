"""Say what a recipe takes of each GPU and how long a step lasts, before anything is started. After RECIPE, the name of
a file in playground/ or a config.yaml, come these options and any --section.key of the config. The exit code is 0
when the run fits and 1 when it does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from azr.cli.options import RECIPE_HELP, Parser, above, whole
from azr.config_rules import check
from azr.config_tree import override
from azr.errors import UserError
from azr.launch import load_recipe
from azr.plan.inputs import Assumptions, ClusterSpec
from azr.plan.planner import plan_run, text

USAGE = "usage: azr plan RECIPE [--gpus N] [--gpu-memory GIB] [--section.key value ...]"


def main(argv: Sequence[str]) -> int:
    """Exit code 0 when the recipe fits, 1 when it does not. Raises UserError for a mistake in the options or the
    config, or a model of unknown shape."""
    options, values = parser().parse_with_overrides(argv)
    if options.recipe is None:
        raise UserError(f"azr plan needs a recipe, such as azr_coder7b_ppo; {USAGE}")
    config = override(load_recipe(options.recipe), values)
    check(config)
    nodes = ClusterSpec(
        gpus=options.gpus, gpu_memory_gib=options.gpu_memory, nodes=options.nodes, host_memory_gib=options.host_memory
    )
    assumed = Assumptions(**{field.name: getattr(options, field.name) for field in dataclasses.fields(Assumptions)})
    plan, suggestions = plan_run(config, nodes, assumed, options.model_config)
    print(text(plan, suggestions))
    return 1 if plan.problems else 0


def parser() -> Parser:
    parser = Parser("plan", __doc__)
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help=RECIPE_HELP)
    parser.add_argument("--gpus", type=whole(1, 10_000), default=8, help="GPUs per node")
    parser.add_argument("--gpu-memory", type=above(1), default=80.0, metavar="GIB", help="memory of one GPU")
    parser.add_argument("--nodes", type=whole(1, 1_000), default=1, help="number of equal nodes")
    parser.add_argument("--host-memory", type=above(1), metavar="GIB", help="memory per node; unchecked if not given")
    parser.add_argument("--model-config", metavar="FILE", help="config.json of a model that is not here")
    rates = parser.add_argument_group("assumptions", "defaults are one H100 SXM's; measure yours and say so")
    for field in dataclasses.fields(Assumptions):
        flag = f"--{field.name.replace('_', '-')}"
        rates.add_argument(flag, type=above(0), default=field.default, metavar="X", help=field.metadata["meaning"])
    return parser
