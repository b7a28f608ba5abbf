"""``azr run`` and a recipe's command line as a user meets them."""

import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from azr.cli import run
from azr.config import GAE
from azr.config_tree import from_yaml, knobs
from tests.e2e.three_kinds import config as mini

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "argv, said",
    [
        (["--run.stepz", "3"], "There is no option --run.stepz; did you mean --run.steps?"),
        (["--steps", "3"], "There is no option --steps; did you mean --run.steps?"),
        (["--dry", "3"], "There is no option --dry; did you mean --dry-run?"),
        (["--algorithm.estimator", "gea"], "algorithm.estimator is 'gea'; it must be one of trrpp, gae"),
        (
            ["--run.steps", "many"],
            "run.steps is 'many'; it must be a whole number of at least 1 and at most 1,000,000,000.",
        ),
        (["--run.steps", "0"], "run.steps is '0'; it must be a whole number of at least 1 and"),
        (["--run.steps"], "--run.steps takes a whole number of at least 1 and at most 1,000,000,000, not nothing."),
        (["--run.steps", "3", "4"], "unrecognized arguments: 4"),
        (["--selfplay.kinds"], "--selfplay.kinds takes a list of names, not nothing."),
        (["--run.no-deterministic", "true"], "unrecognized arguments: true"),
        (["--run.no-steps"], "There is no option --run.no-steps"),
        (["--no-run.deterministic"], "did you mean --run.no-deterministic?"),
        (["--run.steps", str(10**26)], "it must be a whole number of at least 1 and at most 1,000,000,000."),
        (["--run.seed", str(2**64)], "it must be a whole number of at least 0 and at most 4,294,967,295."),
        (["--rollout.engines", "1000000"], "it must be a whole number of at least 1 and at most 4,096."),
        (["steps"], "unrecognized arguments: steps"),
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
    words = ["--run.steps", "3", "--algorithm.estimator.lambda=0.5", "--selfplay.no-train-on-estimates"]
    words += ["--run.max_minutes", "none", "--run.deterministic", "--selfplay.kinds", "deduction", "induction"]
    config = run.parse(mini, [*words, "--reward.wrong", "-1", "--ablation.new-tasks", "false"]).config
    assert config.run == replace(mini.run, steps=3, deterministic=True)
    assert config.algorithm.estimator == GAE(lambda_=0.5)
    assert not config.selfplay.train_on_estimates and not config.ablation.new_tasks
    assert config.selfplay.kinds == ("deduction", "induction")
    assert config.reward.wrong == -1 and config.model == mini.model


def test_help_lists_every_knob_with_its_value_and_bounds(capsys):
    with pytest.raises(SystemExit) as ended:
        run.launch(mini, ["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert all(f"  {knob.option} " in text for knob in knobs().values())
    assert "  --run.steps 24  (a whole number of at least 1 and at most 1,000,000,000)\n      Training steps" in text
    assert "  --algorithm.estimator.lambda 1.0  (a number of at least 0 and at most 1; only with gae)" in text
    assert len(text.splitlines()) < 4 * len(knobs())


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
