"""README and docs: generated parts are what the code says; links lead somewhere; commands and options exist."""

import re
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from textwrap import dedent

import pytest
import yaml

from azr.cli import run
from azr.cli.options import option_flags
from azr.config import Config
from azr.config_tree import leaves
from azr.launch import load_recipe
from azr.records import REASONS, Judgement
from azr.runs.sample_file import FIELDS, SCHEMA
from playground.azr_coder7b_ppo import config as coder7b
from tools import docs

WRITE = "python -m tools.docs writes it"


@pytest.fixture(autouse=True)
def in_the_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages name own data relative to the clone's folder."""
    monkeypatch.chdir(docs.ROOT)


@pytest.mark.parametrize("page", docs.pages(), ids=lambda page: str(page.relative_to(docs.ROOT)))
def test_links_commands_and_options(page: Path) -> None:
    assert docs.broken_links(page) == []
    assert sorted(docs.options(page) - {*option_flags()}) == []
    for program, *words in docs.commands(page):
        if program.removeprefix(".venv/bin/") == "azr":
            module = import_module(f"azr.cli.{words[0].replace('-', '_')}")
            parser = module.parser(Config()) if module is run else module.parser()
            flags = {word for word in takewhile(lambda word: word != "--", words) if word.startswith("--")}
            assert flags <= {*parser._option_string_actions, *option_flags()}, words
        assert words[:1] != ["-m"] or find_spec(words[1]) is not None, words
    for recipe, words in docs.recipe_calls(page):
        run.parse(load_recipe(recipe), words)


def test_generated_parts_are_those_of_the_code_and_every_page_is_in_the_menu() -> None:
    assert docs.CONFIGURATION.read_text() == docs.configuration(), WRITE
    for page, name, table in docs.plan_tables():
        assert docs.table_in(page.read_text(), name) == table, (page.name, WRITE)
    loop = (docs.ROOT / "azr" / "experiment.py").read_text().split("async def run(self)")[1].split('"""')[2]
    loop = dedent(loop.split("    async def")[0]).strip()
    assert f"```python\n{loop}\n```" in (docs.ROOT / "docs" / "architecture.md").read_text(), "the loop of a run"
    menu = str(yaml.safe_load((docs.ROOT / "mkdocs.yml").read_text())["nav"])
    assert [page.name for page in (docs.ROOT / "docs").glob("*.md") if f"'{page.name}'" not in menu] == []


def names_in(page: str, heading: str) -> list[str]:
    """Return the names in the first cells of the tables of a section, sorted."""
    section = (docs.ROOT / "docs" / page).read_text().split(heading)[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return sorted(name for cell in cells for name in re.findall(r"`([\w.]+)`", cell))


def test_options_of_fidelity_and_tables_of_records_are_those_of_the_code():
    rows = [line.split("|") for line in (docs.ROOT / "docs" / "fidelity.md").read_text().splitlines()]
    entries = [entry for row in rows if len(row) > 5 for entry in re.findall(r"`([^`]+)`", row[5])]
    assert len(entries) > 30
    for entry in entries:
        ((path, value),) = yaml.safe_load(entry.replace(" 1e-6", " 1.0e-6").replace(" 5e-6", " 5.0e-6")).items()
        held = leaves(coder7b)[path]
        assert (list(held) if isinstance(held, tuple) else held) == value, entry
    listed = names_in("observability.md", f"### A line of a rollout file, version {SCHEMA}")
    assert listed == sorted([*FIELDS, *(f"judgement.{each.name}" for each in fields(Judgement))])
    assert names_in("observability.md", "## Malformed and ungraded") == sorted(REASONS)
