"""Two deterministic steps with every role at work, self-play and rows mixed: a run killed in step 3 plays step 2 again
from the checkpoint of step 1, to the same bits."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from playground.azr_0b5 import config as recipe
from tests.e2e import chat_model
from tests.e2e.runs import assert_same_rollouts, assert_same_states, content, metrics, rollouts, run_struck, succeed

pytestmark = pytest.mark.timeout(900)
OPTIONS = [
    *("--run.deterministic", "--checkpoint.every", "1", "--checkpoint.keep", "3", "--train.device", "cpu"),
    *("--algorithm.estimator", "gae", "--data.play", "mixed", "--data.prompts", "2", "--data.samples", "2"),
    *("--selfplay.proposer-prompts", "3", "--selfplay.solver-prompts", "1", "--selfplay.references", "2"),
    *("--selfplay.induction-inputs", "4", "--selfplay.group-size", "3", "--selfplay.seed-tasks", "3"),
    *("--rollout.max-prompt-tokens", "400", "--rollout.max-response-tokens", "48", "--data.traces", "1"),
    *("--rollout.turns", "3", "--eval.limit", "6", "--eval.samples", "1", "--eval.every", "2"),
]

ENVIRONMENT = """
class Urge:
    def reset(self, row): pass

    def step(self, response): return None if "boxed" in response else "Go on."
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The run as the kill left it, and as it is after the resume."""
    root = tmp_path_factory.mktemp("runs")
    model = chat_model.teach(recipe, root / "model", references=2, induction_inputs=4)
    ask, trace = {"grader": "math", "source": "digits"}, "It is {0}.</think>\\boxed{{{0}}}"
    rows = [ask | {"prompt": f"Which digit is {n}?", "answer": str(n), "traces": [trace.format(n)]} for n in range(8)]
    (root / "urge.py").write_text(ENVIRONMENT)
    (root / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    command = ["playground.azr_0b5", *OPTIONS, "--model.path", model, "--data.path", root / "rows.jsonl"]
    command += ["--data.environment", f"{root / 'urge.py'}:Urge"]
    command += ["--run.root", root, "--run.name", "run"]
    code, output = run_struck(
        *command, "--run.steps", "3", when={"step 2/3 · valid": lambda pid: os.killpg(pid, signal.SIGKILL)}
    )
    assert code == -signal.SIGKILL, output[-3000:]
    shutil.copytree(root / "run", root / "killed")
    succeed(*command, "--run.steps", "2", "--resume", root / "run" / "checkpoints" / "step_000001")
    return root / "killed", root / "run"


def test_numbers_tasks_texts_weights_and_optimizer_states_are_the_same_bit_for_bit(runs: tuple[Path, Path]) -> None:
    killed, run = runs
    assert [line["step"] for line in metrics(run)] == [1, 2]
    assert content(run) == content(killed)[:2]
    assert_same_rollouts(killed, run, range(3))
    assert_same_states(killed, run, 2, "policy", "critic")
    tasks, before = ((folder / "tasks.jsonl").read_text() for folder in (run, killed))
    assert tasks and before.startswith(tasks)


def test_every_role_worked_and_what_was_trained_on_is_recorded(runs: tuple[Path, Path]) -> None:
    for step in metrics(runs[1]):
        assert step["policy/grad_norm"] > 0 and step["critic/grad_norm"] > 0 and step["policy/mismatch_mean"] < 0.02
        rows = rollouts(runs[1], step["step"])
        trained = [row for row in rows if row["used"] == "trained"]
        assert len(trained) == step["batch/trajectories"] and all(row["advantage"] is not None for row in trained)
        assert {row["role"] for row in rows} == {"proposer", "solver"}
        assert {row["trace_tokens"] > 0 for row in rows if row["kind"] == "digits"} == {False, True}
        talks = [row for row in rows if row["observed"]]
        assert talks and all("Go on." in row["response"] and row["judgement"]["parts"]["turns"] > 1 for row in talks)
