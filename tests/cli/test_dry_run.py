"""``--dry-run`` prints config and plan, and ends with 2 where the run itself would be refused."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from azr.cli import run
from azr.config import Config
from azr.config_tree import override
from azr.errors import UserError
from azr.runs.run_dir import RunDirectory, RunOwner
from playground.azr_14m_mini import config as mini
from tests.conftest import byte_tokenizer
from tests.hub_server import Hub, azr, open_hub
from tests.recipes import from_yaml
from tests.runs.test_resume import save
from tests.tiny_models import save_weights

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path) -> Config:
    """The mini with a run directory and a model of its own."""
    model = tmp_path / "model"
    byte_tokenizer().save_pretrained(model)
    tree = json.loads((ROOT / "data/azr_14m_base/config.json").read_text())
    (model / "config.json").write_text(json.dumps({**tree, "max_position_embeddings": 4096}))
    save_weights(model)
    values = {"run.root": str(tmp_path / "runs"), "model.path": str(model), "rollout.max_prompt_tokens": 3000}
    return override(mini, values)


def dry_run(config: Config, *options: str) -> int | str | None:
    try:
        run.launch(config, ["--dry-run", *options])
    except SystemExit as ended:
        return ended.code
    return 0


def test_what_would_run_is_printed_and_nothing_is_written(here, capsys):
    assert dry_run(here, "--run.steps", "7", "--run.name", "läufer ✓") == 0
    printed = capsys.readouterr()
    decided = {"train.gradient_checkpointing": "none"}
    assert from_yaml(printed.out) == override(here, {"run.steps": 7, "run.name": "läufer ✓", **decided})
    assert "\n# train.gradient_checkpointing auto is none: training takes " in printed.out and not printed.err
    assert "name: läufer ✓\n" in printed.out
    assert "# plan: 7 steps" in printed.out and "\n# on CPUs, GiB: policy 0." in printed.out
    assert "\n# fits in this machine's memory: " in printed.out and "1 node(s)" not in printed.out
    assert not Path(here.run.root).exists()


def test_a_temporary_folder_that_is_too_deep_for_ray_is_refused(here, monkeypatch, capsys):
    monkeypatch.setenv("TMPDIR", "/tmp/" + "deep/" * 9)
    assert dry_run(here) == 2
    assert "which is too long a path for Ray's sockets" in capsys.readouterr().err


def test_a_run_that_is_there_is_not_overwritten_but_may_go_on(here, capsys):
    there = RunDirectory.of(here.run).create(here)
    assert dry_run(here) == 2
    assert "already holds a run: it has no checkpoint, so --resume begins it again" in capsys.readouterr().err
    (there.checkpoints / "step_000003").mkdir()
    assert dry_run(here) == 2
    assert "already holds a run: continue it by --resume" in capsys.readouterr().err
    assert dry_run(here, "--resume", str(there.checkpoints / "step_000099")) == 2
    assert "has no checkpoint of step 99: there are those of steps 3." in capsys.readouterr().err


def test_a_run_may_begin_again_beside_the_one_that_is_there(here, capsys):
    there = RunDirectory.of(here.run).create(here)
    assert dry_run(here, "--restart") == 0
    kept = there.keep_aside()
    assert kept is not None and (kept / "config.yaml").is_file() and kept.name.startswith(f"{here.run.name}.")
    assert there.keep_aside() is None and not there.path.exists()


def test_a_restart_that_is_refused_leaves_the_run_where_it_was(here, capsys):
    there = RunDirectory.of(here.run).create(here)
    for options in (["--model.path", "/nowhere/model"], ["--selfplay.seeds", "/nowhere/seeds.jsonl"]):
        for more in ([], ["--dry-run"]):
            with pytest.raises(SystemExit) as ended:
                run.launch(here, ["--restart", *more, *options])
            assert ended.value.code == 2 and options[1] in capsys.readouterr().err
    assert list(there.path.parent.iterdir()) == [there.path]


def test_a_copied_run_begins_again_where_the_copy_is(here, tmp_path, capsys):
    original = RunDirectory.of(here.run).create(here).path
    copy = tmp_path / "copies" / "copy"
    shutil.copytree(original, copy)
    assert run.main([str(copy), "--restart", "--dry-run"]) == 0
    assert f"into {copy}\n" in capsys.readouterr().out
    assert run.main([str(copy), "--run.name", "other", "--dry-run"]) == 0
    assert f"into {original.parent / 'other'}\n" in capsys.readouterr().out


def test_a_run_begun_in_the_clone_goes_on_from_another_folder(tmp_path, monkeypatch, capsys):
    begun = override(mini, {"run.root": str(tmp_path)})
    assert begun.model.path == "data/azr_14m_worked" and begun.eval.path == "data/exam_worked"
    path = RunDirectory.of(begun.run).create(begun).path
    monkeypatch.chdir(tmp_path)
    assert run.main([str(path), "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert from_yaml(printed).model.path == str(ROOT / begun.model.path) and "changed" not in printed
    there = {"model.path": str(ROOT / begun.model.path), "eval.path": str(ROOT / begun.eval.path)}
    assert dry_run(override(begun, there), "--resume") == 0
    assert "changed" not in capsys.readouterr().out


@pytest.mark.parametrize("options, said", [
    (["--run.steps", "3"], "step 3 of --run.steps 3 is done, so nothing is left: raise it to continue"),
    (["--run.max-minutes", "0.4"], "the 3 steps have taken 0.5 minutes of --run.max-minutes 0.4, so nothing"),
])  # fmt: skip
async def test_a_run_at_its_end_starts_nothing(here, options, said, monkeypatch, capsys):
    there = RunDirectory.of(here.run).create(here)
    there.metrics.touch()
    there.tasks.touch()
    await save(there, 3)
    before = there.config.read_text()
    assert dry_run(here, "--resume", *options) == 0
    assert f"\n# {said}" in capsys.readouterr().out
    with monkeypatch.context() as patch:
        patch.setattr(run, "prepare", pytest.fail)
        run.launch(here, ["--resume", *options])
    assert capsys.readouterr().out.startswith(said) and there.config.read_text() == before


def test_a_run_that_is_alive_is_neither_resumed_nor_renamed(here, capsys):
    there = RunDirectory.of(here.run).create(here)
    owner = RunOwner(there.path)
    with pytest.raises(UserError, match=f"is in use by process {os.getpid()}"):
        there.keep_aside()
    with pytest.raises(SystemExit) as ended:
        run.launch(here, ["--resume"])
    assert ended.value.code == 2
    assert f"is in use by process {os.getpid()}" in capsys.readouterr().err
    owner.release()
    for _ in range(2):  # a resume that is refused gives the run back
        with pytest.raises(SystemExit):
            run.launch(here, ["--resume", "--selfplay.kinds", "abduction"])
        assert "selfplay.kinds was" in capsys.readouterr().err


def test_a_model_that_is_too_large_for_the_cpus_memory_is_told_so(here, capsys, monkeypatch):
    monkeypatch.setattr(run, "memory_bytes", lambda: 24 << 30)
    assert dry_run(here, "--model.path", "Qwen/Qwen2.5-14B", "--train.device", "cpu") == 0
    printed = capsys.readouterr().out
    assert "was not checked" in printed and "\n# does not fit in this machine's memory: " in printed
    assert re.search(r"\n# expected: .+ for 24 steps if nothing else runs here", printed)


def dry_run_at(hub: Hub, folder: Path) -> subprocess.CompletedProcess[str]:
    there = ["--model.path", "someone/some-model", "--run.root", folder / "runs"]
    return azr(hub, folder, "run", "azr_14m_mini", "--dry-run", *there)


@pytest.mark.parametrize("answer, said", [
    (None, "nor a model of the hub; give a Hugging Face model folder."),
    ((403, {"X-Error-Code": "GatedRepo"}), "The hub refuses model.path"),
], ids=["no such model", "gated"])  # fmt: skip
def test_what_the_hub_refuses_is_refused(answer, said, tmp_path):
    with open_hub() as hub:
        hub.answer = answer
        done = dry_run_at(hub, tmp_path)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("error: ") and said in done.stderr and done.stderr.count("\n") == 1


def test_a_hub_that_does_not_answer_leaves_the_model_unchecked(tmp_path):
    with open_hub() as hub:
        hub.answer = (500, {})
        broken = dry_run_at(hub, tmp_path)
    for done in (broken, dry_run_at(hub, tmp_path)):  # which is gone now
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == (
            "# model.path someone/some-model was not checked: it is not in the cache, and the hub does not answer"
        )
