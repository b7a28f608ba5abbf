"""docs/observability.md lists every field of a line of a rollout file, and no other."""

import re
from dataclasses import fields
from pathlib import Path

from azr.records import Judgement, Reason
from azr.runs.sample_file import FIELDS, SCHEMA

DOC = Path(__file__).parents[1] / "docs" / "observability.md"


def test_the_table_of_a_rollout_line_is_the_schema():
    section = DOC.read_text().split(f"### A line of a rollout file, version {SCHEMA}")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    listed = [name for cell in cells for name in re.findall(r"`([\w.]+)`", cell)]
    assert sorted(listed) == sorted([*FIELDS, *(f"judgement.{each.name}" for each in fields(Judgement))])


def test_every_reason_is_in_the_table_of_reasons():
    section = DOC.read_text().split("## Malformed and ungraded")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    assert sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell)) == sorted(Reason)
