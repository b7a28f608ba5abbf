"""docs/fidelity.md names options that exist, with the values that a GPU recipe has."""

import re
from pathlib import Path

import yaml

from azr.config_tree import leaves
from playground.azr_coder7b_ppo import config

TEXT = (Path(__file__).parent.parent / "docs" / "fidelity.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith("| topic")
]


def test_every_row_has_all_columns():
    assert len(ROWS) > 40
    assert [row for row in ROWS if len(row) != 6 or not all(row[:4])] == []


def test_every_knob_exists_and_has_the_value_of_the_recipe():
    for entry in [entry for row in ROWS for entry in re.findall(r"`([^`]+)`", row[4])]:
        ((path, value),) = yaml.safe_load(entry.replace(" 1e-6", " 1.0e-6").replace(" 5e-6", " 5.0e-6")).items()
        held = leaves(config)[path]
        assert (list(held) if isinstance(held, tuple) else held) == value, entry
