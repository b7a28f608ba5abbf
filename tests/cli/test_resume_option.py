from __future__ import annotations

import pytest

from azr.cli import run
from azr.config import Config
from azr.errors import UserError


@pytest.mark.parametrize(
    "argv, wanted",
    [
        ([], None),
        (["--resume"], "latest"),
        (["--resume", "--run.steps", "3"], "latest"),
        (["--run.steps", "3", "--resume", "some/run"], "some/run"),
        (["--resume=some/run"], "some/run"),
    ],
)
def test_resume_takes_a_place_or_none(argv, wanted):
    assert run.parse(Config(), argv).resume == wanted


def test_a_new_run_has_nothing_to_go_on_from():
    assert run.resumed(Config(), None) == (Config(), None)


def test_help_speaks_of_it(capsys):
    with pytest.raises(SystemExit):
        run.parse(Config(), ["--help"])
    assert "--resume" in capsys.readouterr().out


def test_verify_says_how_much_of_a_checkpoint_is_read():
    assert run.parse(Config(), ["--resume"]).verify == "headers"
    assert run.parse(Config(), ["--resume", "--verify", "full"]).verify == "full"
    with pytest.raises(UserError, match="--verify: invalid choice: 'all'"):
        run.parse(Config(), ["--resume", "--verify", "all"])
