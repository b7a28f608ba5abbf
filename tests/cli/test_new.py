"""``azr new kind`` writes a package that works, all of it or nothing."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from azr.cli.main import dispatch

ROOT = Path(__file__).parents[2]


def test_it_writes_a_package_of_the_name_into_an_empty_folder_too(tmp_path, capsys) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    assert dispatch(["new", "kind", "least_first", str(folder)]) == 0
    assert f"pip install -e {folder}" in capsys.readouterr().out
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    assert files == ["README.md", "least_first/__init__.py", "pyproject.toml", "tests/test_least_first.py"]
    for name in files:
        text = (folder / name).read_text()
        assert "least_first" in text and "kind_name" not in text and "KindName" not in text
    assert list(tmp_path.iterdir()) == [folder]
    assert (folder.stat().st_mode & 0o777) == 0o755


def test_the_working_directory_is_not_replaced_and_a_full_disk_leaves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert dispatch(["new", "kind", "least_first", "."]) == 2
    assert "The working directory cannot be replaced" in capsys.readouterr().err

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", full)
    assert dispatch(["new", "kind", "least_first", str(tmp_path / "mine")]) == 2
    assert "mine cannot be written: No space left on device." in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_package_installs_keeps_its_contract_and_is_found_by_its_name(tmp_path: Path) -> None:
    assert dispatch(["new", "kind", "least_first", str(tmp_path / "mine")]) == 0
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    (packages,) = (tmp_path / "env").glob("lib/python3*/site-packages")
    (packages / "lent.pth").write_text(f"{os.path.dirname(pytest.__path__[0])}\n{ROOT}\n")
    python = str(tmp_path / "env" / "bin" / "python")
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--no-index", str(tmp_path / "mine")], check=True)
    (tmp_path / "empty").mkdir()
    options = {"cwd": tmp_path / "empty", "capture_output": True, "text": True, "timeout": 300}
    tests = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "mine" / "tests")]
    done = subprocess.run(tests, **options)
    assert done.returncode == 0 and "11 passed" in done.stdout, done.stdout[-2000:] + done.stderr[-2000:]
    asked = [python, "-m", "azr", "prompts", "azr_14m_mini", "--selfplay.kinds", "least_first"]
    done = subprocess.run(asked, **options)
    assert "<|solve|><|least_first|><|numbers|>2 1<|answer|>" in done.stdout, done.stderr[-2000:]
