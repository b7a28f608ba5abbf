"""README and docs: generated parts are what the code says; links lead somewhere; commands and options exist."""

import re
import shlex
from dataclasses import fields
from importlib import import_module
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

from azr.cli import run
from azr.cli.main import dispatch
from azr.cli.options import knob_options, load_recipe
from azr.config import Config
from azr.config_tree import leaves
from azr.records import REASONS, Judgement
from azr.runs.sample_file import FIELDS, SCHEMA
from playground.azr_coder7b_ppo import config as coder7b
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


ROWS_OF_FIDELITY = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (docs.ROOT / "docs" / "fidelity.md").read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| topic")
]


def test_every_row_of_fidelity_has_all_columns():
    assert len(ROWS_OF_FIDELITY) > 40
    assert [row for row in ROWS_OF_FIDELITY if len(row) != 6 or not all(row[:4])] == []


def test_every_option_of_fidelity_has_the_value_of_the_recipe():
    for entry in [entry for row in ROWS_OF_FIDELITY for entry in re.findall(r"`([^`]+)`", row[4])]:
        ((path, value),) = yaml.safe_load(entry.replace(" 1e-6", " 1.0e-6").replace(" 5e-6", " 5.0e-6")).items()
        held = leaves(coder7b)[path]
        assert (list(held) if isinstance(held, tuple) else held) == value, entry


def names_in(page: str, heading: str) -> list[str]:
    """Return the names in the first cells of the tables of a section, sorted."""
    section = (docs.ROOT / "docs" / page).read_text().split(heading)[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return sorted(name for cell in cells for name in re.findall(r"`([\w.]+)`", cell))


def test_the_tables_of_a_rollout_line_and_of_reasons_are_those_of_the_code():
    listed = names_in("observability.md", f"### A line of a rollout file, version {SCHEMA}")
    assert listed == sorted([*FIELDS, *(f"judgement.{each.name}" for each in fields(Judgement))])
    assert names_in("observability.md", "## Malformed and ungraded") == sorted(REASONS)


def cluster_commands() -> list[list[str]]:
    """Every command line of the page on clusters' code blocks, variables set before it left out."""
    blocks = re.findall(r"```bash\n(.*?)```", (docs.ROOT / "docs" / "cluster.md").read_text(), re.DOTALL)
    lines = [shlex.split(line, comments=True) for block in blocks for line in block.splitlines()]
    return [[word for word in line if not re.match(r"[A-Z_]+=", word) or line[0] == "export"] for line in lines if line]


def calls_of(program: str) -> list[list[str]]:
    """Arguments of the calls of a program, on the machine or in the container."""
    words = program.split()
    found = []
    for line in cluster_commands():
        inside = line[line.index("head") + 1 :] if line[:2] == ["docker", "compose"] and "exec" in line else line
        plain = [inside[0].removeprefix(".venv/bin/"), *inside[1:]] if inside else []
        if plain[: len(words)] == words:
            found.append(plain[len(words) :])
    return found


def test_the_plans_of_the_page_on_clusters_fit(capsys):
    calls = calls_of("azr plan")
    assert calls and all(dispatch(["plan", *options]) == 0 for options in calls)


def test_ray_understands_its_lines_and_the_compose_file_says_the_same():
    from ray.scripts.scripts import start

    composed_services = yaml.safe_load((docs.ROOT / "docker" / "compose.yaml").read_text())["services"]
    documented = [start.make_context("start", list(options)).params for options in calls_of("ray start")]
    head, worker = (shlex.split(composed_services[name]["command"])[2:] for name in ("head", "worker"))
    composed = [start.make_context("start", options).params for options in (head, worker)]
    assert [call["head"] for call in documented] == [call["head"] for call in composed] == [True, False]
    assert documented[0]["port"] == composed[0]["port"] == 6379
    assert documented[1]["address"].endswith(":6379") and composed[1]["address"].endswith(":6379")
    assert calls_of("ray get-auth-token") == [["--generate"]]
