"""What pyproject.toml cannot say: a built package holds the project's own data, and which commit it was built from."""

import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildWithData(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # runs from the clone, where both are
            return
        package = Path(self.build_lib) / "azr"
        for name in ("exam", "exam_worked", "azr_14m_base", "azr_14m_worked", "coder_seeds"):
            shutil.copytree(ROOT / "data" / name, package / "data" / name, dirs_exist_ok=True)
        commit_of_clone = runpy.run_path(str(ROOT / "azr" / "own_data.py"))["commit_of_clone"]
        (package / "COMMIT").write_text(commit_of_clone())


setup(cmdclass={"build_py": BuildWithData})
