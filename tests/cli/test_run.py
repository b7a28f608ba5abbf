"""``azr run`` and a recipe's command line as a user meets them."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from azr.cli import run
from azr.config import Config
from azr.config_tree import from_yaml
from playground.azr_14m_mini import config as mini

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--run.stepz", "3"], "There is no option --run.stepz; did you mean --run.steps?"),
        (["--algorithm.estimator", "gea"], "invalid choice 'gea' for argument '--algorithm.estimator'"),
        (["--run.steps", "many"], "Error parsing --run.steps"),
        (["--run.steps"], "Missing value for argument '--run.steps'"),
        (["steps"], "Unrecognized options: steps"),
        (["--selfplay.kinds", "deduction", "magic"], "There is no task kind 'magic'"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(argv, said, capsys):
    with pytest.raises(SystemExit) as ended:
        run.launch(mini, [*argv, "--dry-run"])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert said in error and error.startswith("error: ") and error.count("\n") == 1


def test_dotted_overrides_reach_the_tree():
    command = run.parse(mini, ["--run.steps", "3", "--algorithm.gae_lambda=0.5", "--selfplay.no-train-on-estimates"])
    assert command.config.run.steps == 3
    assert command.config.algorithm.gae_lambda == 0.5
    assert not command.config.selfplay.train_on_estimates
    assert command.config.model == mini.model


def test_help_lists_every_knob(capsys):
    with pytest.raises(SystemExit) as ended:
        run.launch(mini, ["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(f"--{key}" in text for key in run._keys(Config()) if ".no-" not in key)


def test_a_dry_run_prints_a_config_that_can_be_run_again(capsys, tmp_path):
    run.launch(mini, ["--dry-run", "--run.steps", "7", "--run.root", str(tmp_path / "runs")])
    printed = capsys.readouterr().out
    assert from_yaml(printed).run.steps == 7
    assert "# plan: 7 steps" in printed
    assert not (tmp_path / "runs").exists()


def test_azr_run_refuses_what_is_no_config(tmp_path):
    (tmp_path / "c.yaml").write_text("run: {stepz: 3}")
    for name in ("c.yaml", "missing.yaml"):
        done = subprocess.run(
            [sys.executable, "-m", "azr", "run", str(tmp_path / name)],
            capture_output=True,
            text=True,
            cwd=ROOT,
        )
        assert done.returncode == 2
        assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def readme_recipes() -> list[list[str]]:
    """Arguments of every recipe call in the README's code blocks."""
    blocks = re.findall(r"```bash\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    lines = [line.partition("#")[0] for block in blocks for line in block.splitlines()]
    return [shlex.split(line)[2:] for line in lines if line.startswith(".venv/bin/python -m playground.")]


@pytest.mark.parametrize("command", readme_recipes(), ids=" ".join)
def test_commands_of_the_readme_parse(command):
    module, *options = command
    done = subprocess.run(
        [sys.executable, "-m", module, *options, "--dry-run"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
