"""``azr doctor``: what works on this machine, and what to install or do about the rest."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from azr.commands.options import Parser
from azr.config import ExecutorConfig
from azr.executor import walls

_MARKS = {True: "works", False: "no", None: ""}
_CGROUPS = Path("/sys/fs/cgroup")
_FILTERS = Path("/proc/sys/kernel/seccomp/actions_avail")
_PROBE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report."""

    name: str
    works: bool | None
    """None for a plain fact."""
    says: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """What one check found."""

    title: str
    findings: list[Finding]
    verdict: str
    """One sentence on what follows; empty where nothing does."""
    ok: bool = True


def machine() -> Section:
    """Facts that explain what works and what does not."""
    facts = {
        "python": f"{platform.python_version()}, {sys.executable}",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "user": "root" if os.geteuid() == 0 else f"uid {os.geteuid()}",
        "cores": str(len(os.sched_getaffinity(0))),
        "cgroups": _cgroup_version(),
        "user namespaces": _user_namespaces(),
        "seccomp filters": "available" if _FILTERS.exists() else "the kernel has none",
    }
    findings = [Finding(name=name, works=None, says=says) for name, says in facts.items()]
    return Section(title="This machine", findings=findings, verdict="")


def _cgroup_version() -> str:
    if (_CGROUPS / "cgroup.controllers").exists():
        return "version 2"
    return "version 1" if _CGROUPS.is_dir() and any(_CGROUPS.iterdir()) else "none mounted"


def _user_namespaces() -> str:
    try:
        command = ["unshare", "--user", "--map-root-user", "true"]
        run = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_S, check=False)
    except FileNotFoundError:
        return "unknown: the unshare tool is not installed (Debian and Ubuntu: apt-get install util-linux)"
    except subprocess.TimeoutExpired:
        return f"no answer in {_PROBE_S:g} s"
    return "permitted" if run.returncode == 0 else f"not permitted ({run.stderr.strip()})"


def backends() -> Section:
    """Which walls around model-written code hold here. The first look at a container backend builds its image."""
    report = walls.report(ExecutorConfig())
    usable = [name for name, works, _ in report if works]
    verdict = (
        f"Model-written code runs behind {usable[0]} unless executor.backend names another."
        if usable
        else "No backend works, so model-written code cannot run here: do what one of the lines above asks for."
    )
    findings = [Finding(name=name, works=works, says=says) for name, works, says in report]
    return Section(title="Executor backends, strongest first", findings=findings, verdict=verdict, ok=bool(usable))


CHECKS: dict[str, Callable[[], Section]] = {"machine": machine, "executor": backends}
"""In the order of the report. A new check is one entry."""


def main(argv: Sequence[str]) -> int:
    """0 when every check is satisfied, else 1. Raises ValueError for a mistake in the options."""
    parser = Parser("doctor", "Say what works on this machine and what to install or do about the rest.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    options = parser.parse(argv)
    sections = {}
    for name, check in CHECKS.items():
        sections[name] = check()
        if not options.json:
            print(_text(sections[name], shutil.get_terminal_size().columns), flush=True)
    healthy = all(section.ok for section in sections.values())
    if options.json:
        tree = {name: dataclasses.asdict(section) for name, section in sections.items()}
        print(json.dumps({"ok": healthy, "checks": tree}, indent=2))
    return 0 if healthy else 1


def _text(section: Section, columns: int) -> str:
    name_width = max((len(finding.name) for finding in section.findings), default=0)
    mark_width = max((len(_MARKS[finding.works]) for finding in section.findings), default=0)
    lines = [section.title]
    for finding in section.findings:
        start = f"  {finding.name:<{name_width}}  " + (f"{_MARKS[finding.works]:<{mark_width}}  " if mark_width else "")
        width = max(columns, len(start) + 30)
        wrapped = textwrap.wrap(
            finding.says, width, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False
        )
        lines += wrapped
    return "\n".join([*lines, *textwrap.wrap(section.verdict, max(columns, 40)), ""])
