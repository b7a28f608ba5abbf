import errno
import logging
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from azr.config import Config, RunConfig
from azr.errors import UserError
from azr.records import Stops
from azr.runs import run_dir
from azr.runs.progress import logging_to
from azr.runs.run_dir import OWNER_FILE, PromptForm, RunDirectory, RunOwner
from tests.recipes import from_yaml


def config(root: Path, name: str = "first") -> Config:
    return replace(Config(), run=RunConfig(root=str(root), name=name))


def test_the_saved_config_reads_back_as_the_same_config(tmp_path: Path, monkeypatch) -> None:
    wanted = config(tmp_path / "runs")
    monkeypatch.setattr("sys.argv", ["/bin/azr", "run", "mini", "--run.name", "a\nb: [\u2028"])
    run = RunDirectory.of(wanted.run).create(wanted)
    assert run.path == tmp_path / "runs" / "first"
    assert from_yaml(run.config.read_text()) == wanted
    run.rewrite_config(wanted)
    first, second, third = run.config.read_text().split("\n")[:3]
    assert all(each.endswith("): azr run mini --run.name 'a\\nb: [\\u2028'") for each in (first, second))
    assert first.startswith("# 20") and third == "run:"
    assert from_yaml(run.config.read_text()) == wanted
    assert run.checkpoints.is_dir()
    assert run.rollouts(12) == run.path / "rollouts" / "step_000012.jsonl.gz"
    assert run.rollouts(12).parent.is_dir()


def test_an_empty_folder_is_free(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    run = RunDirectory.of(config(tmp_path).run)
    run.check_free()
    assert run.create(config(tmp_path)).config.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["first"]


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "first").touch()
    for root, said in ((tmp_path, "first is a file"), (tmp_path / "first" / "runs", r"choose another --run\.root")):
        with pytest.raises(UserError, match=said):
            RunDirectory.of(config(root).run).create(config(root))


@pytest.mark.parametrize("restart", [False, True])
def test_a_folder_of_other_files_is_refused_and_stays(tmp_path: Path, restart: bool) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "rows.csv").touch()
    with pytest.raises(UserError, match=r"first holds other files and no run: choose another --run\.name"):
        RunDirectory(tmp_path / "first").check_free(restart=restart)
    with pytest.raises(UserError, match="holds other files"):
        RunDirectory(tmp_path / "first").keep_aside()
    assert [path.name for path in tmp_path.rglob("*")] == ["first", "rows.csv"]


def test_two_runs_racing_for_a_folder_leave_one_winner_and_no_draft(tmp_path, monkeypatch):
    # The loser looked before the winner was there: only the rename can tell.
    winner = RunDirectory(tmp_path / "first").create(config(tmp_path))
    looks: list[RunDirectory] = []
    look = RunDirectory.check_free
    monkeypatch.setattr(RunDirectory, "check_free", lambda run: looks.append(run) if not looks else look(run))
    with pytest.raises(UserError, match="already holds a run"):
        RunDirectory(tmp_path / "first").create(config(tmp_path))
    assert list(tmp_path.iterdir()) == [winner.path]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/tmp/x", "a/"])
def test_a_name_is_one_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="must be the name of one folder"):
        RunDirectory.of(config(tmp_path, name).run)
    assert not list(tmp_path.iterdir())


def test_the_log_holds_what_is_logged_while_it_is_attached(tmp_path: Path) -> None:
    with logging_to(logging.FileHandler(tmp_path / "log.txt")):
        logging.getLogger("azr.somewhere").info("during")
    logging.getLogger("azr.somewhere").info("after")
    (line,) = (tmp_path / "log.txt").read_text().splitlines()
    assert line == "during"


def test_the_prompts_that_a_run_began_with_are_kept_and_must_stay(tmp_path: Path) -> None:
    file, form = tmp_path / "prompts.json", PromptForm("{{ messages }}", Stops(("</answer>",), (1, 2)))
    assert PromptForm.read(file) is None
    for _ in range(2):
        form.keep(file)
    assert PromptForm.read(file) == form
    for other, what in (
        (replace(form, template="{{ x }}"), "chat template"),
        (replace(form, stops=Stops()), "list of"),
    ):
        with pytest.raises(UserError, match=f"The {what}.* of this run has changed"):
            other.keep(file)
    assert PromptForm.read(file) == form
    for content in ("", "[]", '{"template": null}', '{"template": 5, "stops": {"strings": ["a"], "token_ids": [1]}}'):
        file.write_text(content)
        with pytest.raises(UserError, match=r"prompts.json cannot be read .* remove it"):
            form.keep(file)


HOLDER = """
import sys, time
from pathlib import Path
from azr.runs.run_dir import RunOwner
owner = RunOwner(Path(sys.argv[1]))
print("owns", flush=True)
time.sleep(1000)
"""


def test_a_second_owner_is_refused_by_name_until_the_first_is_gone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(run)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "owns\n"
    with pytest.raises(UserError, match=rf"in use by process {holder.pid} on \S+ since 20\d\d-.* or stop it first"):
        RunOwner(run)
    RunOwner(shutil.copytree(run, tmp_path / "copy")).release()
    (run / OWNER_FILE).unlink()
    with pytest.raises(UserError, match="is in use by another process"):
        RunOwner(run)
    holder.kill()
    holder.wait()
    mine = RunOwner(run)
    with pytest.raises(UserError, match=f"process {os.getpid()} "):
        RunOwner(run)
    mine.release()
    mine.release()
    RunOwner(run).release()
    assert [path.name for path in run.iterdir()] == [OWNER_FILE]


def test_a_link_in_place_of_the_owners_file_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    run = tmp_path / "run"
    run.mkdir()
    (run / OWNER_FILE).symlink_to(tmp_path / "notes")
    with pytest.raises(UserError, match="cannot be written"):
        RunOwner(run)
    assert (tmp_path / "notes").read_text() == "mine"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EBADF])
def test_a_disk_without_locks_has_owners_all_the_same(tmp_path, monkeypatch, number):
    def no_locks(*args: object) -> None:
        raise OSError(number, "No locks available")

    monkeypatch.setattr(run_dir.fcntl, "flock", no_locks)
    RunOwner(tmp_path).release()
