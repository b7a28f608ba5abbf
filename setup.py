"""What pyproject.toml cannot say: a built package holds the project's own data, and which commit it was built from."""

import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
COMMIT = Path("azr", "COMMIT")


def commit() -> str:
    """Return the clone's commit, or the one that a source distribution was made from."""
    if (ROOT / COMMIT).is_file():
        return (ROOT / COMMIT).read_text()
    return runpy.run_path(str(ROOT / "azr" / "own_data.py"))["commit_of_clone"]()


class SourceWithCommit(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        (Path(base_dir) / COMMIT).write_text(commit())


class BuildWithData(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # runs from the clone, where both are
            return
        package = Path(self.build_lib) / "azr"
        for name in ("exam", "exam_worked", "azr_14m_base", "azr_14m_worked", "coder_seeds"):
            shutil.copytree(ROOT / "data" / name, package / "data" / name, dirs_exist_ok=True)
        (package / "COMMIT").write_text(commit())


setup(cmdclass={"build_py": BuildWithData, "sdist": SourceWithCommit})
