"""``azr exam`` on a random model: the real engine and executor, a few questions, the file and the table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from azr.cli.eval import main
from azr.evaluation.periodic import part
from azr.evaluation.suite import read, write

ROOT = Path(__file__).parent.parent.parent


def test_a_model_is_graded_from_the_command_line(tiny_model_path: Path, tmp_path: Path):
    write(tmp_path / "small", part(read(ROOT / "data" / "exam"), 3))
    options = ["--model", str(tiny_model_path), "--samples", "8", "--max-response-tokens", "16"]
    places = ["--exam", str(tmp_path / "small"), "--out", str(tmp_path / "exam.json")]
    done = subprocess.run(
        [sys.executable, "-m", "azr", "exam", *options, *places], cwd=ROOT, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tree = json.loads((tmp_path / "exam.json").read_text())
    assert (tree["style"], tree["samples"], len(tree["marks"])) == ("compact", 8, 9)
    assert all(mark["graded"] == 8 and mark["greedy"] is False for mark in tree["marks"])
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
    with pytest.raises(ValueError) as error:
        main(options)
    assert said in str(error.value) and "\n" not in str(error.value)
