"""The notebook of the quickstart runs from its first cell to its last, in a folder of its own."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.runs import LIMIT_S, ROOT

pytestmark = pytest.mark.long

NOTEBOOK = ROOT / "examples" / "quickstart.ipynb"


def cells(kind: str) -> list[str]:
    found = json.loads(NOTEBOOK.read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == kind]


def test_it_holds_no_output_and_its_links_lead_somewhere() -> None:
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], len({cell["id"] for cell in notebook["cells"]})) == (4, len(notebook["cells"]))
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook["cells"])
    links = [link for text in cells("markdown") for link in re.findall(r"\]\(([^)#]+)", text)]
    assert links and all((NOTEBOOK.parent / link).is_file() for link in links)


@pytest.mark.timeout(LIMIT_S)
def test_its_cells_run_in_order(tmp_path: Path) -> None:
    """The cells are plain Python, so that one process runs them as a kernel does."""
    script = tmp_path / "cells.py"
    script.write_text("\n\n".join(cells("code")))
    command = [sys.executable, "-u", str(script)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "step 2/2" in done.stdout and "eval/exam/mean@2" in done.stdout and "model.safetensors" in done.stdout
    assert (tmp_path / "my_model" / "README.md").is_file()
