"""Run directories as runs write them, read back as a table and a figure."""

import io
import json
import random
import re
import shutil
from collections import Counter
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest

from azr.config import AblationConfig, Config, EvalConfig, ModelConfig, RunConfig, SelfPlayConfig, TrainConfig
from azr.errors import UserError
from azr.evaluation.scores import metrics
from azr.evaluation.scores import rows as score_rows
from azr.records import Judgement, Sample, Task
from azr.runs.progress import Progress
from azr.runs.run_dir import RunDirectory
from azr.runs.run_logger import RunLogger
from azr.runs.sample_file import write_samples
from azr.tasks.base import RejectReason, Verdict
from tests.evaluation.written import answers_to, write_evaluation
from tests.runs.factory import proposals as made_proposals
from tests.runs.factory import sample
from tools.learning_report import report
from tools.learning_report.__main__ import main
from tools.learning_report.changes import Change, over_seeds
from tools.learning_report.proposals import proposals
from tools.learning_report.runs import arms, read

KINDS = ("deduction", "abduction")
SAMPLES = 4
TASK = Task(id="0", kind="deduction", program="", inputs=(), outputs=(), fingerprint="", solve_rate=0.625)


def answers(share: float, seed: int) -> list[Sample]:
    """Of a model that is right at that rate, and always when greedy."""
    rng = random.Random(seed)
    found = list[Sample]()
    for kind, difficulty, index in product(KINDS, ("short", "novel"), range(40)):
        drawn = [Verdict.RIGHT if rng.random() < share else Verdict.WRONG for _ in range(SAMPLES)]
        found += answers_to("exam", f"{kind}-{index}-{difficulty}", f"{kind}/{difficulty}", Verdict.RIGHT, drawn)
    return found


def write_eval(folder: Path, share: float, seed: int, samples: int = SAMPLES) -> Path:
    if folder.exists():
        shutil.rmtree(folder)
    return write_evaluation(folder, answers(share, seed), samples=samples)


def config(root: Path, name: str, seed: int = 1, **sections: object) -> Config:
    named, play = RunConfig(name=name, root=str(root), seed=seed, steps=6), SelfPlayConfig(kinds=KINDS, group_size=2)
    exam, model = EvalConfig(every=2, samples=SAMPLES), ModelConfig(path=str(root / "base"))
    return replace(Config(run=named, model=model, selfplay=play, eval=exam), **sections)


def run(of: Config, shares: list[float], proposing: bool = True) -> Path:
    """A run directory whose evaluations, every other step, have these accuracies; proposals get better by the step."""
    logger = RunLogger.create(RunDirectory.of(of.run), of, Progress(io.StringIO()))
    tables = [score_rows(answers(share, seed=of.run.seed), (), SAMPLES) for share in shares]
    evals = [metrics(table) for table in tables]
    logger.log_baseline(evals[0])
    for step in range(1, 2 * len(evals) - 1):
        failed = 8 - min(step, 6)
        rejected = Counter({RejectReason.FAILED: failed, RejectReason.DUPLICATE: 2, RejectReason.LOST: 2})
        proposed = made_proposals(12, rejected, ([0.5, 1.0] * 3)[: 8 - failed]) if proposing else []
        logger.begin_step()
        parts = {"eval": evals[step // 2] if step % 2 == 0 else {}}
        if proposing:
            logger.log_tasks([replace(TASK, program="x * 2" + "\nx" * (step - 1), step=step)])
        logger.end_step(step, [sample("solver", accuracy=0.5), *proposed], parts, {})
    logger.close()
    return logger.run.path


def rows(table: str) -> dict[str, list[str]]:
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {name: row for name, *row in cells}


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Three seeds of the main arm and the three controls."""
    main = [run(config(tmp_path, f"main{seed}", seed), [0.2, 0.3, 0.4, 0.5]) for seed in (1, 2, 3)]
    fixed, noise = AblationConfig(new_tasks=False), AblationConfig(shuffle_rewards=True)
    return [
        *main,
        run(config(tmp_path, "still", train=TrainConfig(policy_lr=0.0)), [0.2, 0.2, 0.2, 0.2]),
        run(config(tmp_path, "noise", ablation=noise), [0.2, 0.2, 0.2, 0.2]),
        run(config(tmp_path, "fixed", ablation=fixed), [0.2, 0.25, 0.3, 0.3], proposing=False),
    ]


def test_arms_are_told_by_what_their_configs_change(folders: list[Path], tmp_path: Path) -> None:
    by_arm = arms([read(path) for path in folders])
    assert {name: len(runs) for name, runs in by_arm.items()} == {
        "self-play": 3, "learning rate 0": 1, "rewards shuffled": 1, "seed tasks only": 1,
    }  # fmt: skip
    one, other = config(tmp_path, "a"), config(tmp_path, "b", train=TrainConfig(policy_lr=0.0, warmup_steps=3))
    by_arm = arms([read(run(of, [0.1, 0.2])) for of in (one, other)])
    assert list(by_arm) == ["self-play", "learning rate 0, train.warmup_steps 3"]


def test_the_table_has_a_column_per_arm_and_the_evaluation_inside_the_runs(folders: list[Path]) -> None:
    shown = rows(report.table(arms([read(path) for path in folders])))
    assert shown["seeds"] == ["1, 2, 3", "1", "1", "1"] and shown["steps"] == ["6, 6, 6", "6", "6", "6"]
    main, still, *_ = shown["**mean, temperature 1**"]
    assert "[+" in main and still.endswith("(+0.0)") and "[" not in still
    assert shown["**mean, greedy**"][1] == "100.0 → 100.0 (+0.0)"
    assert len(shown["novel, temperature 1"]) == 4 and "[+" in shown["novel, temperature 1"][0]
    # Steps 1 to 3 and 4 to 6, with 10 judged proposals each: 1, 2, 3 and 4, 5, 6 became tasks, 2 more were known.
    assert shown["valid proposals"][1:] == ["40.0 → 70.0 (+30.0)", "40.0 → 70.0 (+30.0)", "-"]
    assert shown["valid and new proposals"][1] == "20.0 → 50.0 (+30.0)"
    assert shown["learnable, of the valid and new"][1:] == ["66.7 → 53.3 (-13.3)", "66.7 → 53.3 (-13.3)", "-"]


def test_the_whole_exam_is_shown_where_every_run_was_evaluated_on_it(folders: list[Path], tmp_path: Path) -> None:
    base = write_eval(tmp_path / "base", 0.2, seed=8)
    for path in folders[:-1]:
        write_eval(path / "eval" / "step_000006", 0.5, seed=9)
    *evaluated, last = folders
    runs = [read(path, base) for path in evaluated]
    start, end = map(right_samples, (answers(0.2, 8), answers(0.5, 9)))
    shown = rows(report.table(arms(runs)))
    _, still, _ = shown["**mean, temperature 1**"]
    assert len(shown["novel, temperature 1"]) == len(shown["short, greedy"]) == 3
    assert still.startswith(f"{100 * start:.1f} → {100 * end:.1f} (") and still.endswith("])")
    assert "all of it" in report.legend(runs) and "the subset" in report.legend([*runs, read(last, base)])
    write_eval(folders[0] / "eval" / "step_000006", 0.5, seed=9, samples=16)
    with pytest.raises(UserError, match="are not the same evaluation"):
        read(folders[0], base)
    with pytest.raises(UserError, match="nothing to be compared with: evaluate the first model and give it by --base"):
        read(folders[1])


def test_the_first_arm_is_compared_with_the_base_and_each_other_arm_over_seeds_and_tasks(folders, tmp_path):
    base = write_eval(tmp_path / "base", 0.2, seed=8)
    *main_arm, still, noise, fixed = folders
    for seed, (path, share) in enumerate(zip([*main_arm, fixed, still], [0.5, 0.5, 0.6, 0.3, 0.2], strict=True)):
        write_eval(path / "sealed" / "step_000006", share, seed)
    runs = [read(path, base, "sealed") for path in (*main_arm, fixed, still)]
    shown = rows(report.differences(arms(runs)))
    assert list(shown) == ["self-play minus", "---", "the base", "seed tasks only", "learning rate 0"]
    for name, least, most in (("the base", 20, 45), ("seed tasks only", 10, 38), ("learning rate 0", 20, 45)):
        gain, low, high = (float(each) for each in re.findall(r"[+-][0-9.]+", shown[name][0]))
        assert least < low < gain < high < most
    assert shown["the base"][1] == "100.0 → 100.0 (+0.0 [+0.0, +0.0])"
    assert read(noise, base, "sealed").whole is None


def test_the_table_says_how_long_the_programs_of_tasks_were(tmp_path: Path) -> None:
    fixed = config(tmp_path, "fixed", ablation=AblationConfig(new_tasks=False))
    paths = [run(config(tmp_path, "a"), [0.2, 0.3, 0.3, 0.3]), run(fixed, [0.2, 0.3], proposing=False)]
    shown = rows(report.table(arms([read(path) for path in paths])))
    assert shown["lines of a new task's program, with its head"] == ["2.0 → 5.0", "-"]
    assert shown["Halstead volume of it, bits"] == ["4.8 → 4.8", "-"]


def test_proposals_are_shown_with_their_solve_rates_or_why_they_are_no_tasks(tmp_path: Path) -> None:
    (tmp_path / "rollouts").mkdir()
    answer = (("program", "def f(x):\n    x = x + 1\n    return -x"), ("input", "3"))
    samples = [
        sample(role, problem_id=id, judgement=Judgement(verdict=verdict, answer=None if id == "2" else answer))
        for role, id, verdict in (
            ("proposer", "2", "malformed"), ("proposer", "1", "duplicate"), ("solver", "0", "right"),
            ("proposer", "0", "valid"), ("proposer", "3", "valid"),
        )
    ]  # fmt: skip
    write_samples(tmp_path / "rollouts" / "step_000001.jsonl.gz", 1, samples, lambda ids: "nothing")
    (tmp_path / "tasks.jsonl").write_text(json.dumps(asdict(TASK)) + "\n")
    assert [" ".join(line.split()) for line in proposals(tmp_path, 1, 3).splitlines()] == [
        "62% x = x + 1; return -x f(3)", "duplicate x = x + 1; return -x f(3)", "malformed nothing",
    ]  # fmt: skip


def right_samples(of: list[Sample]) -> float:
    return fmean(answer.verdict == Verdict.RIGHT for answer in of if answer.index is not None)


def test_an_interval_over_seeds_is_students() -> None:
    merged = over_seeds([Change(0.2, 0.3), Change(0.2, 0.32), Change(0.2, 0.34)])
    assert merged.gain == pytest.approx(0.12)
    assert merged.interval == pytest.approx((0.12 - 0.0497, 0.12 + 0.0497), abs=1e-4)
    assert str(merged) == "20.0 → 32.0 (+12.0 [+7.0, +17.0])"


def test_the_command_prints_the_table_and_draws_a_figure_with_a_line_per_arm(folders, tmp_path, capsys):
    out = tmp_path / "learning.png"
    main([*map(str, folders), "--out", str(out)])
    assert "| self-play | learning rate 0 |" in capsys.readouterr().out
    assert out.read_bytes().startswith(b"\x89PNG") and out.stat().st_size > 10_000
    axes, lines, volume = report.figure(arms([read(path) for path in folders])).axes
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "self-play, 3 seeds", "learning rate 0", "rewards shuffled", "seed tasks only",
    ]  # fmt: skip
    assert len(axes.collections) == 4 and len(axes.lines) == 4 + 3
    assert lines.get_title().startswith("lines of") and volume.get_title().startswith("Halstead")


def test_folders_without_results_are_named(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    of = config(tmp_path, "short")
    RunLogger.create(RunDirectory.of(of.run), of, Progress(io.StringIO())).close()
    for name, said in (("empty", "is not a run directory"), ("short", "let it end")):
        with pytest.raises(UserError, match=said):
            read(tmp_path / name)
