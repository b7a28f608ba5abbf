"""Published files become rows of `azr.datasets.rows`: one module for each source, and what they have in common."""

from __future__ import annotations

from azr.datasets.prepare import cruxeval, gsm8k, luffy, orz
from azr.datasets.prepare.example import Source

SOURCES: dict[str, Source] = {module.SOURCE.name: module.SOURCE for module in (luffy, orz, gsm8k, cruxeval)}
