"""Which walls around model-written code hold here. The first look at a container backend builds its image."""

from __future__ import annotations

from collections.abc import Sequence

from azr.config import ExecutorConfig
from azr.doctor.findings import Finding, Mark, Section
from azr.executor import walls


def check() -> Section:
    return judge(walls.report(ExecutorConfig()))


def judge(report: Sequence[tuple[str, bool, str]]) -> Section:
    """`report`: as `azr.executor.walls.report` gives it. One backend that works is enough for a run."""
    usable = [name for name, works, _ in report if works]
    failed = Mark.WARNING if usable else Mark.MISSING
    verdict = (
        f"Model-written code runs behind {usable[0]} unless executor.backend names another."
        if usable
        else "No backend works, so model-written code cannot run here: do what one of the lines above asks for."
    )
    findings = [Finding(name=name, mark=Mark.OK if works else failed, says=says) for name, works, says in report]
    return Section(title="Executor backends, strongest first", findings=findings, verdict=verdict)
