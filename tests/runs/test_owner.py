"""A run directory has one owner, and a crash leaves none."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from azr.errors import UserError
from azr.runs import run_dir
from azr.runs.run_dir import OWNER_FILE, Owner, RunOwner
from tests.runs.factory import until

HOLDER = """
import sys, time
from pathlib import Path
from azr.runs.run_dir import RunOwner
owner = RunOwner(Path(sys.argv[1]))
print("owns", flush=True)
time.sleep(1000)
"""


def test_a_second_owner_is_refused_by_name_until_the_first_is_gone(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None and holder.stdout.readline() == "owns\n"
    before = (tmp_path / OWNER_FILE).read_text()
    with pytest.raises(UserError, match=rf"is in use by process {holder.pid} on \S+ since 20\d\d-.* or stop it first"):
        RunOwner(tmp_path)
    assert (tmp_path / OWNER_FILE).read_text() == before
    holder.kill()
    holder.wait()
    mine = RunOwner(tmp_path)
    assert json.loads((tmp_path / OWNER_FILE).read_text())["pid"] == os.getpid()
    with pytest.raises(UserError, match=f"process {os.getpid()} "):
        RunOwner(tmp_path)
    mine.release()
    mine.release()
    RunOwner(tmp_path).release()
    assert [path.name for path in tmp_path.iterdir()] == [OWNER_FILE]


def write(run: Path, who: Owner, age_s: float = 0.0) -> None:
    (run / OWNER_FILE).write_text(json.dumps(asdict(who)))
    then = (run / OWNER_FILE).stat().st_mtime - age_s
    os.utime(run / OWNER_FILE, (then, then))


def test_an_owner_on_another_machine_lives_as_long_as_it_shows_life(tmp_path: Path) -> None:
    other = replace(Owner.here(), host="node7", boot="another")
    write(tmp_path, other)
    with pytest.raises(UserError, match="on node7"):
        RunOwner(tmp_path)
    write(tmp_path, other, age_s=run_dir.STALE_S + 1)
    RunOwner(tmp_path).release()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": 1}'])
def test_a_file_that_names_nobody_is_harmless(tmp_path: Path, text: str) -> None:
    (tmp_path / OWNER_FILE).write_text(text)
    RunOwner(tmp_path).release()


def test_where_a_disk_has_no_locks_the_process_itself_is_looked_for(tmp_path, monkeypatch):
    def no_locks(*args: object) -> None:
        raise OSError(run_dir.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(run_dir.fcntl, "flock", no_locks)
    sleeper = subprocess.Popen(["sleep", "1000"])
    started = run_dir._started(sleeper.pid)
    assert started is not None
    alive = replace(Owner.here(), pid=sleeper.pid, started=started)
    write(tmp_path, alive)
    with pytest.raises(UserError, match=f"process {sleeper.pid} "):
        RunOwner(tmp_path)
    write(tmp_path, replace(alive, started=started - 1))
    RunOwner(tmp_path).release()
    sleeper.kill()
    sleeper.wait()


def test_a_sign_of_life_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_dir, "HEARTBEAT_S", 0.01)
    mine = RunOwner(tmp_path)
    os.utime(tmp_path / OWNER_FILE, (1, 1))
    until(lambda: (tmp_path / OWNER_FILE).stat().st_mtime > 1)
    mine.release()
