"""README and docs: generated parts are what the code says, links lead somewhere, commands and options exist."""

from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from azr.cli import run
from azr.cli.main import COMMANDS
from azr.cli.options import knob_options, load_recipe
from tools.docs import (
    CONFIGURATION,
    ROOT,
    broken_links,
    commands,
    configuration,
    options,
    pages,
    plan_tables,
    recipe_calls,
    table_in,
)

WRITE = "python -m tools.docs writes it"


def test_the_configuration_page_is_that_of_the_config() -> None:
    assert CONFIGURATION.read_text() == configuration(), WRITE


def test_tables_of_the_plan_are_what_azr_recipes_says() -> None:
    for page, name, table in plan_tables():
        assert table_in(page.read_text(), name) == table, (page.name, WRITE)


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_commands_and_options(page: Path) -> None:
    assert broken_links(page) == []
    assert sorted(options(page) - {*knob_options()}) == []
    for program, *words in commands(page):
        assert program.removeprefix(".venv/bin/") != "azr" or words[0] in COMMANDS or words == ["--version"]
        assert words[:1] != ["-m"] or find_spec(words[1]) is not None, words
    for recipe, words in recipe_calls(page):
        run.parse(load_recipe(recipe), words)


def test_every_page_of_the_site_is_in_its_menu() -> None:
    def listed(menu: object) -> list[str]:
        if isinstance(menu, str):
            return [menu]
        return [page for each in (menu.values() if isinstance(menu, dict) else menu) for page in listed(each)]

    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(listed(nav)) == sorted(page.name for page in (ROOT / "docs").glob("*.md"))
