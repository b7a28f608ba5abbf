"""docs/observability.md lists every field of a rollout record, and no other."""

import re
from dataclasses import fields
from pathlib import Path

from azr.runs.rollout_record import SCHEMA, RolloutRecord

DOC = Path(__file__).parents[1] / "docs" / "observability.md"


def test_the_table_of_a_rollout_line_is_the_schema():
    section = DOC.read_text().split(f"### A line of a rollout file, version {SCHEMA}")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    listed = [name for cell in cells for name in re.findall(r"`(\w+)`", cell) if cell != "`schema`"]
    assert sorted({"schema", *listed}) == sorted(field.name for field in fields(RolloutRecord))
