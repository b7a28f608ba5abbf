"""The suites by name."""

from __future__ import annotations

from azr.evaluation.question import Suite

SUITES: dict[str, Suite] = {}
