"""The tree grows only for a stated reason."""

import pytest

from azr.config_tree import config_options
from tests.ratchets import CAPS, ROOT, SPINE, capped, excesses, figures, new_table, table

FIGURES = figures(ROOT)


@pytest.mark.parametrize("name", FIGURES)
def test_no_figure_is_above_its_limit(name):
    assert excesses({name: FIGURES[name]}, table()) == []


@pytest.mark.parametrize("part", CAPS)
def test_no_part_of_the_tree_is_above_its_cap(part):
    assert capped(FIGURES)[part] <= CAPS[part], "a cap never rises: take something away"


def test_every_row_has_a_subject_and_a_reason():
    assert [name for name, row in table().items() if name not in FIGURES or not row["why"]] == []


def test_every_file_of_the_spine_is_there():
    assert [pattern for pattern in SPINE if not list(ROOT.glob(pattern))] == []


def test_options_are_those_of_the_config():
    # A name that several choices have is one option with a field in each.
    assert FIGURES["options"]["count"] == sum(len(option.owners) or 1 for option in config_options().values())


def test_a_figure_that_rises_needs_a_reason():
    old = {"up": {"lines": 50, "why": "one"}, "down": {"count": 9, "why": "two"}}
    measured = {"up": {"lines": 51}, "down": {"count": 8}, "new": {"files": 1}}
    above_up, above_new = excesses(measured, old)
    assert above_up.startswith("up has 51 lines, above its limit of 50") and above_new.startswith("new has 1 files")
    assert new_table(measured, old, "three").splitlines()[1:] == [
        '"up" = { lines = 100, why = "three" }',
        '"down" = { count = 8, why = "two" }',
        '"new" = { files = 1, why = "three" }',
    ]
