"""Say whether a run can start on this machine, and what to install or do about what is missing. With --recipe it looks
for what that recipe needs, with any --section.key of the config. The exit code is 0 when nothing is missing, else 1.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from azr.cli.options import RECIPE_HELP, Parser, load_recipe, value_text
from azr.config import Config
from azr.config_tree import knobs, override
from azr.doctor import FindingGroup, machine, ray_cluster, recipe
from azr.errors import UserError
from azr.plan.memory import checkpoint_bytes


def main(argv: Sequence[str]) -> int:
    """0 when nothing is missing, else 1. Raises UserError for a mistake in the options."""
    options, values = parser().parse_with_knobs(argv)
    if values and options.recipe is None:
        raise UserError(f"{knobs()[next(iter(values))].option} is an option of a recipe: name one with --recipe.")
    config = override(load_recipe(options.recipe), values) if options.recipe is not None else None
    report = {}
    words = [word for path, value in values.items() for word in (knobs()[path].option, value_text(value))]
    for name, section in sections(config, options.recipe, options.cluster, words):
        report[name] = section
        if not options.json:
            print(section.text(shutil.get_terminal_size().columns), flush=True)
    healthy = all(section.ok for section in report.values())
    if options.json:
        tree = {name: section.tree() for name, section in report.items()}
        print(json.dumps({"ok": healthy, "checks": tree}, indent=2))
    return 0 if healthy else 1


def sections(
    config: Config | None, name: str, address: str | None, words: Sequence[str]
) -> Iterator[tuple[str, FindingGroup]]:
    """Every section in the order of the report, as soon as it is known. A new one is one line. `words`: options of the
    config, as they were given."""
    of_run = config or Config()
    here = machine.query_gpus()
    yield "machine", machine.machine_section()
    yield "gpus", machine.gpus_section(here)
    yield "packages", machine.packages_section(bool(here.all))
    yield "limits", machine.limits_section(machine.ResourceLimits.here(), len(here.all))
    yield "network", ray_cluster.network_section()
    yield "ports", ray_cluster.ports_section(ray_cluster.ray_heads())
    size = checkpoint_bytes(recipe.known_roles(config), config.train) if config is not None else 0
    yield "disk", machine.disk_section(Path(of_run.run.root), size, of_run.checkpoint.keep)
    yield "executor", machine.executor_section(config=of_run.executor)
    if config is not None:
        gpus, memory = here if address is None else None, machine.memory_bytes()
        yield "recipe", recipe.recipe_section(config, name, gpus, memory, words)
    if address is not None:
        bundles = config.num_gpus if config is not None else 0
        yield "cluster", ray_cluster.cluster_section(address, bundles, of_run.train.device)


def parser() -> Parser:
    parser = Parser("doctor", __doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--recipe", metavar="RECIPE", help=RECIPE_HELP)
    parser.add_argument("--cluster", metavar="ADDRESS", help="also check this Ray cluster; auto: this machine's")
    return parser
