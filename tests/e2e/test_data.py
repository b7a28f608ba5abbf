"""Recipes of data files, end to end with the 14M model: fine-tuning learns, and a killed run is the same run."""

from __future__ import annotations

import gzip
import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from benchmarks.data_learning import SFT, SIZES, TEMPLATE, write_questions
from tests.e2e.test_faults import MEASURED

ROOT = Path(__file__).parent.parent.parent
STEPS = 4
# 20 rows, 6 a step: the first epoch ends amid step 4, which the second process plays.
MIXED = shlex.split(
    f"--run.deterministic --run.steps {STEPS} --checkpoint.every 1 --data.prompts 6 --data.samples 2 --data.traces 1 "
    "--data.prefix random --train.policy-lr 1e-3"
)


def start(recipe: str, folder: Path, name: str, rows: int, *options: str) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    template, data = folder / "template.jinja", folder / "rows.jsonl"
    template.write_text(TEMPLATE)
    write_questions(data, "larger", rows)
    command = [sys.executable, "-m", f"playground.{recipe}", *SIZES, *options]
    command += ["--model.path", "data/azr_14m_base", "--model.template", str(template), "--data.path", str(data)]
    command += ["--run.root", str(folder), "--run.name", name]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finish(process: subprocess.Popen[str], kill_after: str = "") -> tuple[int, str]:
    """Exit code and output; the process is killed at the first line that begins with ``kill_after``."""
    lines: list[str] = []
    try:
        for line in process.stdout:
            lines.append(line)
            if kill_after and line.startswith(kill_after):
                process.kill()
        return process.wait(60), "".join(lines)
    finally:
        process.kill()


def metrics(run: Path) -> list[dict]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in line.items() if not name.startswith(MEASURED)} for line in lines]


def test_fine_tuning_on_traces_learns_their_form_within_sixteen_steps(tmp_path: Path) -> None:
    code, output = finish(start("sft", tmp_path, "sft", 16 * 64, *SFT, "--run.steps", "16"))
    assert code == 0, output[-3000:]
    lines = metrics(tmp_path / "sft")
    probabilities = [line["policy/trace_prob"] for line in lines]
    assert len(lines) == 16 and probabilities[0] < 0.02 and probabilities[-1] > 0.4, probabilities
    assert all(line["data/traces"] == 64 and not line["policy/sampled_tokens"] for line in lines)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_killed_amid_an_epoch_goes_on_bit_for_bit_with_prefixes_on_a_real_engine(tmp_path: Path) -> None:
    code, output = finish(start("luffy_7b", tmp_path, "straight", 20, *MIXED))
    assert code == 0, output[-3000:]
    code, output = finish(start("luffy_7b", tmp_path, "killed", 20, *MIXED), kill_after="step 3/4 \u00b7 solve")
    assert code == -signal.SIGKILL, output[-3000:]
    code, output = finish(start("luffy_7b", tmp_path, "killed", 20, *MIXED, "--resume"))
    assert code == 0 and "going on after step" in output, output[-3000:]

    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert metrics(straight) == metrics(killed)
    assert [line["data/epoch"] for line in metrics(killed)] == [0, 0, 0, 1]
    for step in range(1, STEPS + 1):
        name = f"rollouts/step_{step:06d}.jsonl.gz"
        first, second = (gzip.decompress((run / name).read_bytes()) for run in (straight, killed))
        assert first == second and first
        rows = [json.loads(line) for line in first.splitlines()]
        continued = [row for row in rows if 0 < row["trace_tokens"] < row["response_tokens"]]
        assert len(rows) == 18 and continued, "some responses were begun by a trace and ended by the policy"
    for place in ("policy/model.safetensors", "trainers/policy/rank_000.safetensors"):
        first, second = (load_file(run / "checkpoints" / f"step_{STEPS:06d}" / place) for run in (straight, killed))
        assert first.keys() == second.keys() and all(first[name].equal(second[name]) for name in first)
