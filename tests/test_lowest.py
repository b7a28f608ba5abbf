"""The lowest versions that pyproject.toml allows pass the tests of what they are used for."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = ("tests/test_config.py", "tests/explorer/test_charts.py", "tests/runs/test_progress.py")
"""pydantic and PyYAML; Jinja2 and MarkupSafe; rich."""


@pytest.mark.long
def test_the_lowest_versions_pass(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["train"]]
    lowest = [line.partition(",")[0].replace(">=", "==") for line in lines if ">=" in line]
    assert {line.partition("==")[0] for line in lowest} == {"Jinja2", "MarkupSafe", "pydantic", "PyYAML", "rich"}
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", str(tmp_path), *lowest], check=True)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]
