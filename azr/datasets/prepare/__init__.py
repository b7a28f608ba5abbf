"""Published files become rows of `azr.datasets.rows`: modules of sources, and what they have in common."""

from __future__ import annotations

from azr.datasets.prepare.cruxeval import SOURCE as CRUXEVAL
from azr.datasets.prepare.example import Source
from azr.datasets.prepare.mathematics import GSM8K, LUFFY, ORZ

SOURCES: dict[str, Source] = {source.name: source for source in (LUFFY, ORZ, GSM8K, CRUXEVAL)}
