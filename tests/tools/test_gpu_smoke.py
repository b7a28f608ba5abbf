"""The GPU smoke run: what it would do, what it says of wrong use, and all of it with toy sizes."""

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from azr.cli.run import parse
from benchmarks import gpu_smoke, smoke_rows


def smoke(*options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu_smoke", *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=1000)


def test_a_dry_run_prints_every_command_and_what_the_plan_predicts(tmp_path: Path) -> None:
    done = smoke("--dry-run", "--second", "--real-model", tmp_path, "--out", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    for case in gpu_smoke.cases(gpu_smoke.FULL, tmp_path, tmp_path):
        assert f"\n{case.name} (at most" in "\n" + done.stdout
    line = next(line for line in done.stdout.splitlines() if line.startswith("large model: a step"))
    assert float(line.split()[-1]) > 1, "the plan's seconds stand in the table"
    totals = [line.split() for line in done.stdout.splitlines() if " list on one GPU: " in line]
    assert [words[0] for words in totals] == ["first", "second"] and all(0 < float(words[5]) <= 15 for words in totals)
    first = ("install", "attention", "update 1.5B", "update 1.5B compiled", "push", "trrpp", "engine", "gae",
             "gae resumed", "7B with adapters")  # fmt: skip
    listed = [case for case in gpu_smoke.cases(gpu_smoke.FULL, tmp_path, tmp_path) if not case.second and case.gpus < 2]
    named = [case for case in listed if not case.name.startswith("model ") and case.instead_of is None]
    assert tuple(case.name for case in named) == first and all(case.goal for case in named)
    assert {case.after for case in listed} <= {None} | {case.name for case in listed}
    two = gpu_smoke.cases(gpu_smoke.FULL, tmp_path)[-5:]
    assert [case.gpus for case in two] == [2] * 5 and all(case.goal for case in two)
    assert not (tmp_path / "new").exists()


def test_every_command_line_of_a_recipe_is_understood(tmp_path: Path) -> None:
    for sizes in (gpu_smoke.FULL, gpu_smoke.TINY):
        for case in gpu_smoke.cases(sizes, tmp_path, tmp_path / "real"):
            assert case.expected_s < case.limit_s
            for name in {gpu_smoke.RECIPE, gpu_smoke.REAL} & set(case.command):
                options = case.command[case.command.index(name) + 1 :]
                assert parse(import_module(name).config, options).config.run.root == str(tmp_path / "runs")


def test_wrong_use_is_one_sentence() -> None:
    for options, code, sentence in (
        (["--only", "nothing"], 1, "there is no case 'nothing': take some of install, attention, "),
        (["--tiny", "--out", "."], 2, "is there already and has no gpu_smoke.json: name a new folder with --out"),
    ):
        done = smoke(*options)
        assert done.returncode == code and sentence in done.stdout + done.stderr
        assert "Traceback" not in done.stderr


def case(name: str, program: str = "", limit_s: float = 60, **how: object) -> gpu_smoke.Case:
    command = [sys.executable, "-c", program]
    return gpu_smoke.Case(name=name, expected_s=1, command=command, limit_s=limit_s, **how)


def test_a_case_that_fails_is_reported_and_those_that_need_it_are_not_run(tmp_path: Path) -> None:
    fails, late = case("fails", "print('why'); exit(3)"), case("late", "import time; time.sleep(60)", limit_s=0.5)
    needs, fine = case("needs", after="fails"), case("fine")
    lines: list[str] = []
    report = gpu_smoke.Report(tmp_path, ["one"], {})
    on_disk = []

    def known(outcomes: list[gpu_smoke.Outcome]) -> None:
        report.write(outcomes)
        on_disk.append(len(json.loads((tmp_path / "gpu_smoke.json").read_text())["cases"]))

    outcomes = gpu_smoke.run_all([fails, late, needs, fine], tmp_path, 1, 1, lines.append, known)
    assert on_disk == [1, 2, 3, 4]
    assert [outcome.status for outcome in outcomes] == ["failed", "out of time", "not run", "ok"]
    assert outcomes[0].why == "why\n" and "    why" in lines


def test_what_was_cut_goes_on_with_the_cases_that_have_not_succeeded(tmp_path: Path) -> None:
    listed, lines = [case("fine", "exit(3)"), case("fails"), case("needs", after="fine")], list[str]()
    before = {
        "fine": gpu_smoke.Outcome(name="fine", status="ok", seconds=7.0),
        "fails": gpu_smoke.Outcome(name="fails", status="failed"),
    }
    outcomes = gpu_smoke.run_all(listed, tmp_path, 1, 1, lines.append, before=before)
    assert outcomes[0] is before["fine"] and [each.status for each in outcomes] == ["ok"] * 3
    assert [line.partition(":")[0] for line in lines] == ["fails", "needs"]


def test_a_fallback_runs_after_a_failure_only_and_a_case_without_its_gpus_is_left_out(tmp_path: Path) -> None:
    fails, fine, two = case("fails", "exit(3)"), case("fine"), case("two", gpus=2)
    instead, never = case("instead", instead_of="fails"), case("never", instead_of="fine")
    outcomes = gpu_smoke.run_all([fails, instead, fine, never, two], tmp_path, 1, 1, lambda line: None)
    assert [(each.name, each.status) for each in outcomes] == [
        ("fails", "failed"), ("instead", "ok"), ("fine", "ok"), ("two", "left out"),
    ]  # fmt: skip
    assert outcomes[-1].why == "needs 2 GPUs"


def test_half_a_line_of_a_killed_case_ends_no_other_and_an_update_out_of_memory_has_no_figures(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "trrpp"
    run.mkdir(parents=True)
    (run / "metrics.jsonl").write_text('{"seconds/step": 3')
    gpu_smoke.Report(tmp_path, [], {}).write([gpu_smoke.Outcome(name="trrpp", status="out of time")])
    assert json.loads((tmp_path / "gpu_smoke.json").read_text())["cases"][0]["status"] == "out of time"
    (run / "metrics.jsonl").unlink()
    full = {"checkpointing": "full", "error": None, "share_6n": 0.3, "tokens_per_s": 9.0}
    none = {"checkpointing": "none", "error": "out of memory", "share_6n": 0.0, "tokens_per_s": 0.0}
    (tmp_path / "update_1.5B.json").write_text(json.dumps([none, full]))
    (tmp_path / "update_tiny.json").write_text(json.dumps([full | {"share_6n": 0.0}]))
    assert smoke_rows.measure(tmp_path) == {
        "update 1.5B": 0.3, "update 1.5B, full": 0.3, "update 1.5B, full, tokens/s": 9.0,
        "update tiny, full, tokens/s": 9.0,
    }  # fmt: skip


def test_a_step_is_split_without_rest() -> None:
    step = {
        "seconds/step": 30.0, "seconds/train policy": 12.0, "seconds/push": 5.0, "seconds/sleep": 1.0,
        "seconds/wake": 2.0, "weights/push_gb_s": 1.0, "computed_tokens/train policy": 50,
        "policy/mismatch_mean": 0.1, "policy/mismatch_p99": 0.2,
    }  # fmt: skip
    split = smoke_rows.of_step(step)
    assert (split["play s"], split["update s"], split["handover s"]) == (10.0, 12.0, 8.0)
    assert split["update tokens/s"] == pytest.approx(50 / 12)


@pytest.mark.long
@pytest.mark.timeout(1100)
def test_all_of_it_with_toy_sizes(tmp_path: Path) -> None:
    done = smoke("--tiny", "--minutes", 15, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "out" / "gpu_smoke.json").read_text())
    statuses = {case["name"]: case["status"] for case in report["cases"]}
    left_out = {name for name, status in statuses.items() if status == "left out"}
    assert left_out == {case.name for case in gpu_smoke.cases(gpu_smoke.FULL, tmp_path) if case.gpus}
    assert {status for name, status in statuses.items() if name not in left_out} == {"ok"}
    names = {case.name for case in gpu_smoke.cases(gpu_smoke.FULL, tmp_path, tmp_path)}
    resized = {"trrpp by host", *(name for name in names if name.startswith(("update ", "model ")))}
    assert names - resized <= statuses.keys(), "every case of the whole run is run, but for its sizes"
    assert {"step s", "update tokens/s", "generated tokens/s", "mismatch mean", "valid share", "push GB/s"} <= (
        report["measured"].keys()
    )
    assert {f"update tiny, {how}, tokens/s" for how in ("none", "full")} <= report["measured"].keys()
    assert list((tmp_path / "out" / "runs" / "trrpp").glob("profile_*.json.gz")), "the profile is written"
