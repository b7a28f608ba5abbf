"""The suites by name."""

from __future__ import annotations

from pathlib import Path

from azr.evaluation.question import Suite
from azr.evaluation.suites import choices, competitive, exam, functions, mathematics, own, reasoning

SUITES: dict[str, Suite] = {
    suite.name: suite
    for module in (reasoning, functions, competitive, mathematics, choices, exam)
    for suite in module.SUITES
}
"""Public benchmarks and the project's own exam."""


def suites_of(folder: Path) -> dict[str, Suite]:
    """Return `SUITES` and the suites that TOML files in the folder declare. Raises UserError for an invalid TOML."""
    return SUITES | own.declared(folder, SUITES)
