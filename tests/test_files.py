"""Files and folders appear when they are complete, and nothing is left of those that are not."""

import runpy
from pathlib import Path

import pytest

from azr.files import atomic_folder, atomic_write
from azr.own_data import code_version


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_of_a_file_that_fails_nothing_is_left(error: type[BaseException], tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("old")
    with pytest.raises(error), atomic_write(path) as staging:
        staging.write_text("half")
        raise error
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_file_is_replaced_when_complete_and_a_killed_process_leaves_nothing_to_append_to(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_text("old")
    with atomic_write(path) as staging:
        staging.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]
    with atomic_write(path) as staging:
        staging.write_text("whole")
    staging.write_text("half")
    with atomic_write(path) as staging, staging.open("a") as file:
        file.write("new")
    assert path.read_text() == "new"


def test_a_folder_appears_when_it_is_complete_and_takes_no_name_of_another(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    with atomic_folder(path) as staging:
        (staging / "file").touch()
        assert not path.exists()
    assert (path / "file").exists() and list(tmp_path.iterdir()) == [path]
    with pytest.raises(OSError), atomic_folder(path) as staging:
        (staging / "other").touch()
    assert [each.name for each in path.iterdir()] == ["file"] and list(tmp_path.iterdir()) == [path]


def test_of_a_folder_that_fails_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(ValueError), atomic_folder(tmp_path / "folder") as staging:
        (staging / "file").touch()
        raise ValueError
    assert list(tmp_path.iterdir()) == []


def test_a_build_is_told_the_clone_s_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setuptools.setup", lambda **_: None)
    build = runpy.run_path(str(Path(__file__).parents[1] / "setup.py"))
    assert build["commit"]() in code_version()
