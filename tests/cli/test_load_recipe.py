"""A config by a recipe's name, a module, or a YAML file that builds on another."""

import importlib
import json
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from azr.cli.main import dispatch
from azr.cli.options import Parser
from azr.config import DrGRPO
from azr.config_tree import override
from azr.errors import UserError
from azr.launch import load_recipe, read_config
from azr.launch import recipes as shipped
from azr.runs.run_dir import RunDirectory
from playground.azr_14m_mini import config as mini
from playground.azr_coder7b_ppo import config as coder
from tests.mistakes import mistake
from tests.recipes import from_yaml, recipes


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)


def test_a_tilde_is_the_home_folder_in_a_file_in_quotes_and_after_an_equals_sign(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    below, above = "base: azr_14m_mini\nrun: {root: ~/runs}\n", "base: ~/below.yaml\ndata: {path: ~/rows.jsonl}\n"
    write(tmp_path, below=below, above=above)
    config = read_config(tmp_path / "above.yaml")
    assert (config.run.root, config.data.path) == (f"{tmp_path}/runs", f"{tmp_path}/rows.jsonl")
    for words in (["--data.path=~/b", "--run.root", "~/c"], ["--data.path", "~/b", "--run.root=~/c"]):
        config = override(config, Parser("test", "").parse_with_overrides(words)[1])
        assert (config.data.path, config.run.root) == (f"{tmp_path}/b", f"{tmp_path}/c")
    parser = Parser("test", "")
    parser.add_argument("place", type=Path)
    parser.add_argument("--out")
    options = parser.parse(["~/d", "--out=~/e"])
    assert (options.place, options.out) == (tmp_path / "d", f"{tmp_path}/e")
    assert parser.parse(["a~b", "--out", "=~"]).out == "=~"


@pytest.mark.parametrize("text, said", [
    ("config = (", "SyntaxError: '(' was never closed"), ("raise SystemExit('bye')", "SystemExit: bye"),
    ("import gone", "ModuleNotFoundError: No module named 'gone'"), ("1 / 0", "ZeroDivisionError: division by zero"),
])  # fmt: skip
def test_a_script_that_cannot_be_run_is_one_sentence_after_its_traceback(tmp_path, text, said, capsys):
    (tmp_path / "mine.py").write_text(text)
    with mistake(says=f"mine.py cannot be run: {said}"):
        load_recipe(str(tmp_path / "mine.py"))
    assert said in capsys.readouterr().err


def test_options_may_come_before_the_recipe():
    for words, kinds in (
        ("--kind x --selfplay.kinds deduction recipe", ["deduction"]),
        ("--selfplay.kinds deduction,abduction recipe", ["deduction", "abduction"]),
        ("recipe --selfplay.kinds deduction abduction --kind x", ["deduction", "abduction"]),
    ):
        parser = Parser("test", "")
        parser.add_argument("recipe")
        parser.add_argument("--kind")
        options, values = parser.parse_with_overrides(words.split())
        assert (options.recipe, options.kind in (None, "x"), values) == ("recipe", True, {"selfplay.kinds": kinds})


def test_a_module_of_the_users_is_found_from_where_they_are(tmp_path, monkeypatch):
    (tmp_path / "mine_of_load_recipe").mkdir()
    (tmp_path / "mine_of_load_recipe" / "small.py").write_text(
        "from dataclasses import replace\nfrom playground.azr_14m_mini import config\n"
        "config = replace(config, run=replace(config.run, steps=3))\n"
    )
    (tmp_path / "mine_of_load_recipe" / "empty.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    assert load_recipe("mine_of_load_recipe.small").run.steps == 3
    for name, says in (("empty", "has no config of a run: give it one"), ("gone", "There is no recipe module")):
        with mistake(says=says):
            load_recipe(f"mine_of_load_recipe.{name}")


def test_a_name_and_its_module_are_the_same_recipe_and_a_file_changes_its_base_and_so_on(tmp_path):
    assert load_recipe("azr_14m_mini") is load_recipe("playground.azr_14m_mini") is mini
    assert shipped() == recipes()
    (tmp_path / "deep").mkdir()
    write(tmp_path, first="base: azr_coder7b_ppo\nrun: {steps: 7}\nalgorithm: {estimator: {name: dr_grpo}}")
    write(tmp_path / "deep", second="base: ../first.yaml\nrun: {name: second}")
    config = read_config(tmp_path / "deep" / "second.yaml")
    assert config.run == replace(coder.run, steps=7, name="second") and config.algorithm.estimator == DrGRPO()
    assert config.selfplay == coder.selfplay and config.train == coder.train


MINI = "base: azr_14m_mini\n"
ALIASES = ["a0: &a0 [x]", *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12))]
BROKEN = {
    "circle": ("base: back.yaml", "circle.yaml builds on back.yaml builds on circle.yaml: a config cannot build on"),
    "back": ("base: circle.yaml", "a config cannot build on itself"),
    "itself": ("base: itself.yaml", "itself.yaml builds on itself.yaml: a config cannot build on itself"),
    "orphan": ("base: gone.yaml", "is not a config of a run: There is no file "),
    "unnamed": ("base: azr_coder7b", "There is no recipe 'azr_coder7b'; did you mean azr_coder7b_ppo?"),
    "number": ("base: 7", "base is 7; it must be the name of a recipe"),
    "empty": ("base:\nrun: {steps: 3}", "base is None; it must be the name of a recipe"),
    "twice": ("run: {steps: 3}\nrun: {seed: 4}", "run is stated twice: leave one of them out"),
    "option_twice": (MINI + "run: {steps: 3, seed: 4, steps: 5}", "steps is stated twice: leave one of them out"),
    "dots": (MINI + "run: {steps: 4}\nrun.steps: 7", "run.steps is stated twice: leave one of them out"),
    "wrong": (MINI + "run: {stepz: 3}", "There is no option 'run.stepz' in a config; did you mean run.steps?"),
    "listed": ("[1]", "A config is a mapping of sections, not list"),
    "deep": ("run: " + 20_000 * "[", "it is nested too deep"),
    "partial": ("run: {steps: 3}", "it names no base and no model: add the recipe"),
    "open": (MINI + "run: [1,2", "This is not YAML, line 2: expected ',' or ']', but got the file ends"),
    "void": ("", "A config is a mapping of sections, and this one is empty"),
    "alias": ("\n".join(ALIASES), "a config has no aliases"),
    "digits": (f"run: {{steps: {100_000 * '9'}}}", "This is not YAML: Exceeds the limit"),
    "binary": (None, "it is not text in UTF-8"),
}  # fmt: skip


def test_what_is_wrong_with_a_base_is_one_sentence(tmp_path):
    for name, (text, _) in BROKEN.items():
        (tmp_path / f"{name}.yaml").write_bytes(b"\xff\xfe\0" if text is None else text.encode())
    for name, (_, says) in BROKEN.items():
        with pytest.raises(UserError) as raised:
            read_config(tmp_path / f"{name}.yaml")
        said = str(raised.value)
        assert f"/{name}.yaml" in said and says in said and "\n" not in said
    with pytest.raises(UserError, match=r"^There is no file .*/gone\.yaml\.$"):
        read_config(tmp_path / "gone.yaml")


def test_azr_run_takes_a_name_and_a_file_and_the_folder_of_a_run_to_go_on_with(tmp_path, monkeypatch, capsys):
    write(tmp_path, mine="base: azr_14m_mini\nrun: {steps: 5}")
    recipe = "from dataclasses import replace\nfrom playground.azr_14m_mini import config\n"
    (tmp_path / "own.py").write_text(f"{recipe}config = replace(config, run=replace(config.run, steps=6))\n")
    for argv, steps in (
        [["azr_14m_mini", "--run.steps", "3"], 3],
        [["--run.steps", "3", "azr_14m_mini"], 3],
        [["--selfplay.kinds", "deduction,abduction", "azr_14m_mini"], 24],
        [[str(tmp_path / "mine.yaml")], 5],
        [[str(tmp_path / "own.py")], 6],
    ):
        assert dispatch(["run", *argv, "--dry-run", "--run.root", str(tmp_path / "runs")]) == 0
        assert from_yaml(capsys.readouterr().out).run.steps == steps
    decided = {"train.gradient_checkpointing": "none"}
    named = override(mini, {"run.root": str(tmp_path), "run.name": "first", "run.steps": 7, **decided})
    folder = RunDirectory.of(named.run).create(named).path
    assert dispatch(["run", str(folder), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert from_yaml(printed) == named and "has no checkpoint yet: it starts again from its beginning" in printed
    assert dispatch(["run", "--dry-run", "--resume", str(folder)]) == 0
    assert from_yaml(capsys.readouterr().out) == named
    moved = folder.rename(tmp_path / "moved")
    for words in ([str(moved)], [str(moved), "--resume"], ["--resume", str(moved)]):
        assert dispatch(["run", *words, "--dry-run"]) == 0
        assert from_yaml(capsys.readouterr().out).run.name == "moved"
    moved.rename(folder)
    assert dispatch(["run", str(folder), "--run.name", "second", "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert from_yaml(printed).run.name == "second" and "starts again" not in printed


def test_every_recipe_is_listed_with_what_it_takes(capsys):
    assert dispatch(["recipes", "--json"]) == 0
    lines = {line["name"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert lines.keys() == recipes().keys()
    of_coder = lines["azr_coder7b_ppo"]
    assert of_coder["model"] == "Qwen/Qwen2.5-Coder-7B" and of_coder["gpus"] == 8
    assert 40 < of_coder["memory_gib"] < of_coder["gpu_memory_gib"] == 48 and of_coder["step_s"] > 10
    assert lines["azr_coder1b5_lora"]["gpu_memory_gib"] == lines["azr_qwen3_4b_lora"]["gpu_memory_gib"] == 24
    assert lines["azr_14b_ppo"]["gpu_memory_gib"] == 80
    for name, line in lines.items():
        said = re.findall(r"(\d+) GB", importlib.import_module(f"playground.{name}").__doc__ or "")
        assert said in ([], [str(int(line["gpu_memory_gib"]))]), name
    assert dispatch(["recipes"]) == 0
    table = capsys.readouterr().out
    assert all(f"\n{name} " in table for name in recipes())
    proven = tomllib.loads((Path(__file__).parents[2] / "playground" / "proven.toml").read_text())
    assert proven.keys() <= recipes().keys() and all(text in table for texts in proven.values() for text in texts)
