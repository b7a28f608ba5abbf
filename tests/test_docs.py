"""README and docs: generated parts are what the code says; links lead somewhere; commands and options exist."""

from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

from azr.cli import run
from azr.cli.options import knob_options, load_recipe
from azr.config import Config
from tools import docs

WRITE = "python -m tools.docs writes it"


def test_the_configuration_page_is_that_of_the_config() -> None:
    assert docs.CONFIGURATION.read_text() == docs.configuration(), WRITE


def test_tables_of_the_plan_are_what_azr_recipes_says() -> None:
    for page, name, table in docs.plan_tables():
        assert docs.table_in(page.read_text(), name) == table, (page.name, WRITE)


@pytest.mark.parametrize("page", docs.pages(), ids=lambda page: str(page.relative_to(docs.ROOT)))
def test_links_commands_and_options(page: Path) -> None:
    assert docs.broken_links(page) == []
    assert sorted(docs.options(page) - {*knob_options()}) == []
    for program, *words in docs.commands(page):
        if program.removeprefix(".venv/bin/") == "azr":
            module = import_module(f"azr.cli.{words[0].replace('-', '_')}")
            parser = module.parser(Config()) if module is run else module.parser()
            flags = {word for word in takewhile(lambda word: word != "--", words) if word.startswith("--")}
            assert flags <= {*parser._option_string_actions, *knob_options()}, words
        assert words[:1] != ["-m"] or find_spec(words[1]) is not None, words
    for recipe, words in docs.recipe_calls(page):
        run.parse(load_recipe(recipe), words)


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = str(yaml.safe_load((docs.ROOT / "mkdocs.yml").read_text())["nav"])
    assert [page.name for page in (docs.ROOT / "docs").glob("*.md") if f"'{page.name}'" not in menu] == []
