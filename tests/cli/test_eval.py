"""``azr eval`` with real engines and executors: results, resuming, comparing, and mistakes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from azr.cli.main import dispatch
from azr.evaluation.answer_file import read_answers
from azr.records import Stops
from azr.runs.run_dir import PromptForm
from azr.tasks.base import Verdict
from tests import chat_tokenizers
from tests.evaluation.written import answers_to, write_evaluation
from tests.executor.public_data import file
from tests.graders.grading import needs
from tests.tiny_models import save_run, save_tiny

ROOT = Path(__file__).parent.parent.parent
BASE = ROOT / "data" / "azr_14m_base"
TIMEOUT_S = 400


def azr_eval(*argv: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "azr", "eval", *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The 14M base on a part of its exam and of CruxEval, and what was printed."""
    out = tmp_path_factory.mktemp("first") / "out"
    data = file("cruxeval.jsonl").parent
    suites = ("--data", data, "--suite", "exam,cruxeval-o", "--limit", "24")
    done = azr_eval(BASE, *suites, "--samples", "8", "--k", "1,8", "--out", out)
    return out, done.stdout


@pytest.mark.long
def test_a_model_is_evaluated_and_everything_is_on_the_record(first: tuple[Path, str]):
    out, printed = first
    tree = json.loads((out / "results.json").read_text())
    assert tree["format"] == 1 and tree["protocol"]["suites"]["cruxeval-o"]["of"] == 800
    kinds = {f"{kind}.jsonl" for kind in ("deduction", "abduction", "induction")}
    assert set(tree["protocol"]["suites"]["exam"]["sha256"]) == kinds
    assert tree["protocol"]["samples"] == 8 and len(tree["protocol"]["model"]) == 64
    assert tree["protocol"]["stops"]["token_ids"] and tree["prompts"]["exam"].startswith("<|solve|><|deduction|>")
    assert {"azr", "torch", "python"} <= tree["versions"].keys() and tree["device"] and tree["seconds"] > 0
    by_name = {(row["suite"], row["group"]): row for row in tree["rows"]}
    assert by_name["exam", ""]["questions"] == 24 and by_name["exam", "abduction"]["questions"] == 8
    assert set(by_name["cruxeval-o", ""]["estimates"]) == {"greedy", "mean@8", "pass@1", "pass@8"}
    assert by_name["exam", ""]["ungraded"] == 0 and by_name["exam", ""]["estimates"]["pass@8"]["value"] > 0
    _, answers = read_answers(out / "answers.jsonl.gz")
    assert len(answers) == 48 * 9 and all(answer.prompt and answer.response_tokens for answer in answers)
    assert (out / "table.md").read_text().strip() in printed and str(out) in printed.splitlines()[-1]


@pytest.mark.long
def test_a_second_evaluation_agrees_exactly_and_one_with_another_batch_within_the_interval(first, tmp_path):
    data = file("cruxeval.jsonl").parent
    suites = ("--data", data, "--suite", "exam,cruxeval-o", "--limit", "24", "--samples", "8", "--k", "1,8")
    azr_eval(BASE, *suites, "--out", tmp_path / "same")
    azr_eval(BASE, *suites, "--out", tmp_path / "two", "--rollout.engines", "2")
    azr_eval(BASE, *suites, "--out", tmp_path / "other", "--rollout.max-concurrent", "7")
    first_answers, same, two = (
        {(a.kind, a.problem_id, a.index): a for a in read_answers(folder / "answers.jsonl.gz")[1]}
        for folder in (first[0], tmp_path / "same", tmp_path / "two")
    )
    assert first_answers == same == two
    tables = [json.loads((folder / "results.json").read_text())["rows"] for folder in (first[0], tmp_path / "other")]
    for one, other in zip(*tables, strict=True):
        assert (one["suite"], one["group"]) == (other["suite"], other["group"])
        for name, share in other["estimates"].items():
            assert one["estimates"][name]["low"] <= share["value"] <= one["estimates"][name]["high"]


@pytest.mark.long
def test_ctrl_c_keeps_what_was_answered(tmp_path: Path):
    command = [sys.executable, "-m", "azr", "eval", str(BASE), "--samples", "8", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    while not (tmp_path / "out" / "answers.jsonl.gz").exists() or (tmp_path / "out").stat().st_size == 0:
        time.sleep(0.5)
    time.sleep(8)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and said.rstrip().endswith("interrupted")
    answered = len(read_answers(tmp_path / "out" / "answers.jsonl.gz")[1])
    assert 0 < answered < 800 * 9 and not (tmp_path / "out" / "results.json").exists()
    azr_eval(BASE, "--samples", "8", "--out", tmp_path / "out", "--resume")
    assert len(read_answers(tmp_path / "out" / "answers.jsonl.gz")[1]) == 800 * 9


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory with the policies of two steps, random ones that are asked in words."""
    form = PromptForm("Q: {{ messages[0]['content'] }} A:", Stops(("</answer>",), (256,)))
    return save_run(tmp_path_factory.mktemp("run"), 2, 4, form=form).path


@pytest.mark.long
def test_every_kind_of_suite_is_asked_through_one_engine_at_every_step_of_a_run(run: Path):
    needs("math_verify")
    needs("pyarrow")
    data = file("math500.jsonl").parent
    suites = "cruxeval-i,mbpp+,humaneval,math500,gpqa"
    options = ("--data", data, "--suite", suites, "--limit", "2", "--samples", "2", "--max-response-tokens", "24")
    printed = azr_eval(run, "--all-steps", *options, "--dtype", "float32").stdout
    for step in (2, 4):
        folder = run / "eval" / f"step_{step:06d}"
        assert f"run step {step}, percent" in printed
        _, answers = read_answers(folder / "answers.jsonl.gz")
        assert len(answers) == 5 * 2 * 3 and all(answer.prompt.startswith("Q: ") for answer in answers)
        assert not any(answer.verdict in (Verdict.RIGHT, Verdict.UNGRADED) for answer in answers)
        assert json.loads((folder / "results.json").read_text())["model"]["step"] == step


def test_two_evaluations_are_compared_and_suites_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    right, wrong = Verdict.RIGHT, Verdict.WRONG
    before = [a for i in range(30) for a in answers_to("gsm8k", str(i), "all", wrong if i < 25 else right, [])]
    after = [a for i in range(30) for a in answers_to("gsm8k", str(i), "all", wrong if i == 29 else right, [])]
    folders = [write_evaluation(tmp_path / name, each) for name, each in (("a", before), ("b", after))]
    assert dispatch(["eval", "compare", *map(str, folders)]) == 0
    printed = capsys.readouterr().out
    assert re.search(
        r"\| gsm8k \| greedy  \| +30 \| 16.7 \| 96.7 \| \+80.0 \[\+\d+.\d, \+\d+.\d\] \| +25 \| +1 \|", printed
    )
    assert "better in B: 0 1 2" in printed and "and 5 more (--all)" in printed and "worse in B: 29" in printed
    assert dispatch(["eval", "compare", "--all", *map(str, folders)]) == 0
    assert "(--all)" not in capsys.readouterr().out
    assert dispatch(["eval", "--list", "--data", str(file("cruxeval.jsonl").parent)]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"\| cruxeval-o +\| found +\| \w{12} +\| MIT +\| +800 \|", printed)
    assert re.search(r"\| livecodebench +\| not found", printed) and "mmlu-pro: " in printed
    model = save_tiny(tmp_path / "model", "qwen2", chat_tokenizers.chatml(), max_position_embeddings=256)
    data = file("cruxeval.jsonl").parent
    assert dispatch(["eval", str(model), "--data", str(data), "--suite", "cruxeval-o"]) == 2
    assert "reads 256: leave it out" in capsys.readouterr().err
