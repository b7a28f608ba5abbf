"""``azr doctor``: whether a run can start here, and what to install or do about what is missing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from azr.cli import plan
from azr.cli.options import Parser, knob_options, overrides, split
from azr.config import Config
from azr.config_tree import override
from azr.doctor import cluster, disk, executor, gpus, limits, machine, packages, ports, recipe
from azr.doctor.findings import Section
from azr.doctor.model import Hub
from azr.errors import UserError

_ABOUT = (
    "Say whether a run can start on this machine, and what to install or do about what is missing. With --recipe it "
    "looks for what that recipe needs, with any --section.key of the config. The exit code is 0 when nothing is "
    "missing, else 1."
)


def main(argv: Sequence[str]) -> int:
    """0 when nothing is missing, else 1. Raises UserError for a mistake in the options."""
    own, about_knobs = split(argv)
    options = parser().parse(own, knob_options())
    if about_knobs and options.recipe is None:
        raise UserError(f"{about_knobs[0]} is an option of a recipe: name one with --recipe.")
    config = override(plan.recipe(options.recipe), overrides(about_knobs)) if options.recipe is not None else None
    sections = {}
    for name, section in checks(config, options.recipe, options.cluster):
        sections[name] = section
        if not options.json:
            print(section.text(shutil.get_terminal_size().columns), flush=True)
    healthy = all(section.ok for section in sections.values())
    if options.json:
        tree = {name: section.tree() for name, section in sections.items()}
        print(json.dumps({"ok": healthy, "checks": tree}, indent=2))
    return 0 if healthy else 1


def checks(config: Config | None, name: str, address: str | None) -> Iterator[tuple[str, Section]]:
    """Every check in the order of the report, as soon as it is done. A new one is one line."""
    own = config or Config()
    found = gpus.look()
    yield "machine", machine.check()
    yield "gpus", gpus.check(found)
    yield "packages", packages.check(bool(found.found))
    yield "limits", limits.check(limits.Limits.here(), len(found.found))
    yield "ports", ports.check(ports.heads())
    size = recipe.checkpoint_bytes(config) if config is not None else 0
    yield "disk", disk.check(Path(own.run.root), size, own.checkpoint.keep)
    yield "executor", executor.check()
    if config is not None:
        here = recipe.Here(gpus=found, memory=machine.memory_bytes()) if address is None else None
        yield "recipe", recipe.check(config, name, Hub.here(), here)
    if address is not None:
        bundles = config.num_gpus if config is not None else 0
        yield "cluster", cluster.check(address, bundles, own.train.device)


def parser() -> Parser:
    """Of this command's own options."""
    made = Parser("doctor", _ABOUT)
    made.add_argument("--json", action="store_true", help="print one JSON object instead")
    made.add_argument("--recipe", metavar="RECIPE", help="a recipe of playground/ by name, or a config.yaml")
    made.add_argument(
        "--cluster", metavar="ADDRESS", help="look at this Ray cluster too; auto for the one started here"
    )
    return made
