"""What pyproject.toml cannot say: a built package holds the project's own data, and which commit it was built from."""

import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithData(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # runs from the clone, where both are
            return
        package = Path(self.build_lib) / "azr"
        for name in ("exam", "azr_14m_base"):
            shutil.copytree(ROOT / "data" / name, package / "data" / name, dirs_exist_ok=True)
        (package / "COMMIT").write_text(commit())


def commit() -> str:
    """Empty where this is no clone, or git is not there."""
    if not (ROOT / ".git").exists():
        return ""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


setup(cmdclass={"build_py": BuildWithData})
