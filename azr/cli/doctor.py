"""Say whether a run can start on this machine, and what to install or do about what is missing. What a recipe needs,
``azr run RECIPE --dry-run`` says. The exit code is 0 when nothing is missing, else 1."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from azr.cli.options import Parser
from azr.config import RunConfig
from azr.doctor import FindingGroup, machine


def main(argv: Sequence[str]) -> int:
    """0 when nothing is missing, else 1."""
    options, report = parser().parse(argv), {}
    for name, section in sections():
        report[name] = section
        if not options.json:
            print(section.text(shutil.get_terminal_size().columns), flush=True)
    healthy = all(section.ok for section in report.values())
    if options.json:
        tree = {name: {**asdict(section), "ok": section.ok} for name, section in report.items()}
        print(json.dumps({"ok": healthy, "checks": tree}, indent=2))
    return 0 if healthy else 1


def sections() -> Iterator[tuple[str, FindingGroup]]:
    """Every section in the order of the report, as soon as it is known. A new one is one line."""
    here = machine.query_gpus()
    yield "machine", machine.machine_section()
    yield "gpus", machine.gpus_section(here)
    yield "packages", machine.packages_section(bool(here.all))
    yield "limits", machine.limits_section(len(here.all))
    yield "network", machine.network_section()
    yield "disk", machine.disk_section(Path(RunConfig().root))
    yield "executor", machine.executor_section()


def parser() -> Parser:
    parser = Parser("doctor", __doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    return parser
