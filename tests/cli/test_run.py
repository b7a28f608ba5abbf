"""``azr run`` and a recipe's command line as a user meets them."""

from dataclasses import replace

import pytest

from azr.cli import run
from azr.config import GAE, Config
from azr.config_tree import config_options
from tests.e2e.three_kinds import config as mini


def test_dotted_overrides_reach_the_tree():
    words = ["--run.steps", "3", "--algorithm.estimator.lambda=0.5", "--selfplay.no-train-on-estimates"]
    words += ["--run.max_minutes", "none", "--run.deterministic", "--reward.wrong", "-1"]
    words += ["--ablation.new-tasks", "False"]
    config, separate = (
        run.parse(mini, [*words, "--selfplay.kinds", *kinds]).config
        for kinds in (["deduction", "induction"], ["deduction, induction"])
    )
    assert config == separate
    assert config.run == replace(mini.run, steps=3, deterministic=True)
    assert config.algorithm.estimator == GAE(lambda_=0.5)
    assert not config.selfplay.train_on_estimates and not config.ablation.new_tasks
    assert config.selfplay.kinds == ("deduction", "induction")
    assert config.reward.wrong == -1 and config.model == mini.model


@pytest.mark.parametrize("argv, wanted", [
    ([], None), (["--resume"], "latest"), (["--resume", "--run.steps", "3"], "latest"),
    (["--run.steps", "3", "--resume", "some/run"], "some/run"), (["--resume=some/run"], "some/run"),
])  # fmt: skip
def test_resume_takes_a_place_or_none(argv, wanted):
    assert run.parse(Config(), argv).resume == wanted
    assert run.parse(Config(), [*argv, "--verify", "full"]).verify == "full"


def test_help_lists_every_option_with_its_value_and_bounds(capsys):
    with pytest.raises(SystemExit) as ended:
        run.launch(mini, ["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "--resume" in text
    assert all(f"  {option.flag} " in text for option in config_options().values())
    assert "  --run.steps 24  (a whole number of at least 1 and at most 1,000,000,000)\n      Training steps" in text
    assert "  --algorithm.estimator.lambda 1.0  (a number of at least 0 and at most 1; only with gae)" in text
    assert len(text.splitlines()) < 4 * len(config_options())
