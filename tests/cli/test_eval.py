"""``azr eval`` on a random model: the real engine and executor, a few tasks, the file and the table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from azr.cli.eval import main
from azr.errors import UserError
from azr.evaluation.suite import read_suite, subset, write_suite

ROOT = Path(__file__).parent.parent.parent


def test_a_model_is_evaluated_from_the_command_line(tiny_model_path: Path, tmp_path: Path):
    write_suite(tmp_path / "small", subset(read_suite(ROOT / "data" / "exam"), 3))
    options = ["--model", str(tiny_model_path), "--samples", "8", "--max-response-tokens", "16"]
    places = ["--exam", str(tmp_path / "small"), "--out", str(tmp_path / "eval.json")]
    done = subprocess.run(
        [sys.executable, "-m", "azr", "eval", *options, *places], cwd=ROOT, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tree = json.loads((tmp_path / "eval.json").read_text())
    assert (tree["prompt_format"], tree["samples"], len(tree["scores"])) == ("compact", 8, 9)
    assert all(score["graded"] == 8 and score["greedy"] is False for score in tree["scores"])
    assert tree["rows"][-1]["estimates"]["pass@8"]["value"] == 0
    assert done.stdout.splitlines()[0].split()[-1] == "pass@8"
    assert done.stdout.splitlines()[-1].startswith("9 tasks, 8 samples each")


@pytest.mark.parametrize(
    "options, said",
    [
        (["--model", "nowhere/at/all"], "nowhere/at/all is no model with a tokenizer"),
        (["--model", "x", "--exam", "playground"], "There is no exam in playground"),
        (["--modell", "x"], "did you mean --model?"),
    ],
)
def test_mistakes_are_one_sentence(options: list[str], said: str):
    with pytest.raises(UserError) as error:
        main(options)
    assert said in str(error.value) and "\n" not in str(error.value)
