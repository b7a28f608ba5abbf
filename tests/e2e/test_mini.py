"""The main job itself: the playground module on Ray, DeepSpeed, vLLM and the executor, read back from its folder."""

import json
import math

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from azr.hardware import compute_type
from tests.e2e import runs
from tests.e2e.runs import ROOT, rollouts
from tests.recipes import from_yaml

pytestmark = pytest.mark.long

STEPS = 2
SMALL = [
    *("--run.steps", str(STEPS), "--selfplay.proposer-prompts", "6", "--selfplay.solver-prompts", "6"),
    *("--selfplay.group-size", "4", "--selfplay.seed-tasks", "4"),
    *("--eval.limit", "12", "--eval.samples", "1"),
    *("--selfplay.kinds", "deduction", "abduction", "induction", "error"),
]
REFUSALS = ("malformed", "not_allowed", "failed", "non_deterministic", "too_large", "duplicate", "in_benchmark", "lost")
PHASES = ("propose", "validate", "estimate", "solve", "verify", "train critic", "train policy", "push")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def shown(root):
    """What the run prints."""
    return runs.succeed("tests.e2e.three_kinds", "--run.root", root, *SMALL)


@pytest.fixture(scope="module")
def run(root, shown):
    """The run's folder."""
    return root / "three_kinds"


@pytest.fixture(scope="module")
def metrics(run):
    """Of the steps; step 0 only has the exam before the first one."""
    return runs.metrics(run)[1:]


def test_every_step_is_there_once_and_engine_and_trainer_agree_after_every_push(metrics):
    for number in ("step", "weights/version"):
        assert [step[number] for step in metrics] == list(range(1, STEPS + 1))
    for step in metrics:
        assert 0 < step["policy/mismatch_mean"] < 0.02
        assert step["policy/mismatch_mean"] <= step["policy/mismatch_p99"]
        assert 0 <= step["policy/mismatch_frac_outside"] < 0.05
    assert metrics[0]["policy/kl_reference"] == pytest.approx(0, abs=1e-3)
    assert metrics[-1]["policy/kl_reference"] > 0


def test_the_exam_is_sat_before_the_first_step_and_after_the_last(run):
    lines = runs.metrics(run)
    assert lines[0]["step"] == 0 and not any(name.startswith("eval/") for name in lines[1])
    for line in (lines[0], lines[-1]):
        share = "eval/exam/mean@1"
        assert 0 <= line[f"{share}_low"] <= line[share] <= line[f"{share}_high"] <= 1
        assert {"eval/exam/deduction/greedy", "eval/exam/abduction/novel/mean@1"} <= line.keys()
    assert lines[-1]["seconds/evaluate"] > 0


def test_all_roles_and_phases_worked(metrics):
    for step in metrics:
        assert all(step[f"seconds/{phase}"] > 0 for phase in PHASES)
        assert step["policy/grad_norm"] > 0 and step["critic/grad_norm"] > 0
        assert step["executor/calls"] > 0
        assert step["batch/ungraded"] == 0
        assert step["policy/packing"] >= 0.95 and step["critic/packing"] >= 0.95
        assert step["driver/cpu_share"] < 0.1
        assert "critic/explained_variance" in step and "policy/clip_fraction" in step and "policy/entropy" in step


def test_proposals_are_valid_and_the_buffer_grows(run, metrics):
    kinds = from_yaml((run / "config.yaml").read_text()).selfplay.kinds
    assert any(metrics[-1][f"{kind}/proposer/funnel/valid"] for kind in kinds)
    for kind in kinds:
        assert sum(metrics[0][f"{kind}/proposer/funnel/{name}"] for name in ("valid", *REFUSALS)) == 6
        assert metrics[-1][f"buffer/{kind}"] >= metrics[0][f"buffer/{kind}"] >= 1
    assert sum(metrics[-1][f"buffer/{kind}"] for kind in kinds) > sum(metrics[0][f"buffer/{kind}"] for kind in kinds)
    tasks = [json.loads(line) for line in (run / "tasks.jsonl").read_text().splitlines()]
    assert len({task["id"] for task in tasks}) == len(tasks)
    assert len(tasks) == sum(metrics[-1][f"buffer/{kind}"] for kind in kinds)


def test_rollouts_hold_what_was_trained_on(run, metrics):
    for step in metrics:
        rows = rollouts(run, step["step"])
        trained = [row for row in rows if row["used"] == "trained"]
        assert len(trained) == step["batch/trajectories"]
        assert all(row["advantage"] is not None and 0 <= row["mismatch"] < 0.5 for row in trained)
        assert all(row["judgement"]["verdict"] in ("valid", *REFUSALS) for row in rows if row["role"] == "proposer")
        assert {row["role"] for row in rows} == {"proposer", "solver"}
        assert all([version for version, _ in row["weight_versions"]] == [step["step"] - 1] for row in rows)
        paid = [row for row in rows if row["judgement"]["verdict"] != "in_benchmark"]
        assert all(math.isclose(sum(row["reward_parts"].values()), row["reward"]) for row in paid)
        assert all(row["reward"] is None and row["used"] != "trained" for row in rows if row not in paid)
        assert {row["reward"] for row in rows if row["role"] == "solver"} <= {1.0, -0.5, -1.0}


def test_the_proposals_of_seeding_are_step_0_and_the_trained_policy_can_be_loaded(run):
    rows = rollouts(run, 0)
    assert {(row["role"], row["used"], row["reward"]) for row in rows} == {("proposer", "recorded", None)}
    tasks = [json.loads(line) for line in (run / "tasks.jsonl").read_text().splitlines()]
    valid = {row["problem_id"] for row in rows if row["judgement"]["verdict"] == "valid"}
    assert valid and valid == {task["id"] for task in tasks if task["step"] == 0 and task["parents"]}
    folder = run / "checkpoints" / f"step_{STEPS:06d}" / "policy"
    texts, both = [row["prompt"] for row in rollouts(run, 1)], (folder, ROOT / "data" / "azr_14m_base")
    encoded = [AutoTokenizer.from_pretrained(path)(texts).input_ids for path in both]
    assert encoded[0] == encoded[1]
    trained, base = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in both)
    assert not all(trained[name].equal(base[name]) for name in base)


def test_it_computes_in_the_type_that_suits_this_cpu_and_a_person_sees_progress_and_a_table(run, shown):
    dtype = compute_type("auto", "cpu")
    policy = run / "checkpoints" / f"step_{STEPS:06d}" / "policy"
    assert json.loads((policy / "config.json").read_text())["dtype"] == dtype
    said = f"networks compute in {dtype}", f"step {STEPS}/{STEPS}", "valid proposals", "solve rate, deduction"
    assert all(text in shown for text in (*said, "exam, deduction", str(run), "tensorboard --logdir"))
