"""The Python API and the list of runs, on runs made by the real writers; tests/e2e/test_notebook.py trains by it."""

import dataclasses
import itertools

import pytest

import azr
from azr.cli.main import dispatch
from azr.evaluation.periodic import Evaluated
from azr.launch import load_recipe
from azr.runs.run_dir import RunDirectory, RunOwner, write_config
from azr.tasks.base import Verdict
from tests.evaluation.written import answers_to, protocol
from tests.explorer.made_runs import small_run

MINI = load_recipe("azr_14m_mini")


def made(root, name, *, lr=1e-4, seed=1, right=0):
    """A run of two steps, whose last evaluation has this many of ten questions more right than the first."""
    run = small_run(root / name)
    placed = dataclasses.replace(MINI.run, name=name, root=str(root), seed=seed, steps=2)
    train = dataclasses.replace(MINI.train, policy_lr=lr)
    write_config(dataclasses.replace(MINI, run=placed, train=train), run.path / "config.yaml")
    for step, more in ((0, 0), (2, right)):
        verdicts = [Verdict.RIGHT] * more + [Verdict.WRONG] * (10 - more)
        answers = [answers_to("exam", f"q{i}", "", Verdict.WRONG, [each]) for i, each in enumerate(verdicts)]
        Evaluated({}, list(itertools.chain(*answers)), protocol(["exam"])).write(RunDirectory(run.path).answers(step))
    return run.path


def test_a_run_is_read(tmp_path):
    run = azr.Run(made(tmp_path, "a"))
    assert run.config.run.steps == 2 and [record["step"] for record in run.metrics] == [1, 2]
    assert [task.step for task in run.tasks] == [0, 0, 1, 1, 2]
    assert len(list(run.samples())) == 12 + 4 and {sample.step for sample in run.samples(2)} == {2}
    assert run.evaluations == {}
    assert list(run.frame("tasks")["step"]) == [0, 0, 1, 1, 2] and len(run.frame("samples")) == 16
    for wrong in (lambda: list(run.samples(3)), lambda: run.frame("answers"), lambda: run.policy):
        with pytest.raises(azr.UserError):
            wrong()
    with pytest.raises(azr.UserError, match="is not a run"):
        azr.Run(tmp_path)


async def test_commands_refuse_by_their_sentence_beside_an_event_loop(tmp_path, capsys):
    with pytest.raises(azr.UserError, match=r"run\.stesp"):
        azr.run("azr_14m_mini", run={"stesp": 2})
    with pytest.raises(azr.UserError, match="must be the name of one folder"):
        azr.run(MINI, run={"name": "a/b"})
    with pytest.raises(azr.UserError, match="/nope"):
        azr.evaluate("/nope", ["exam"], out=tmp_path / "out", limit=4)
    with pytest.raises(azr.UserError, match="no policy"):
        azr.export(azr.Run(made(tmp_path, "a")), tmp_path / "model", step=2)
    assert "error: " in capsys.readouterr().out and not (tmp_path / "out").exists()


def test_runs_are_listed_by_what_differs(tmp_path, capsys):
    for seed, right in ((1, 2), (2, 4), (3, 6)):
        made(tmp_path, f"s{seed}", seed=seed, right=right)
    other = RunOwner(made(tmp_path, "other", lr=1e-5, right=5))
    assert dispatch(["runs", str(tmp_path)]) == 0
    second, first = capsys.readouterr().out.strip().split("\n\n")
    assert (
        first.startswith("train.policy_lr 0.0001\n") and "| s2 " in first and "2/2 | finished | exam +40.0 [" in first
    )
    assert "mean of 3" in first and "exam +40.0 [-9.7, +89.7]" in first  # 4.303 * 20 / sqrt(3)
    assert second.startswith("train.policy_lr 1e-05\n") and "2/2 | running" in second and "mean" not in second
    other.release()
    assert dispatch(["runs", str(tmp_path / "s1")]) == 2
