"""Driver and GPUs, as a command that stands for nvidia-smi tells of them."""

import sys

import pytest

from azr.doctor import machine
from azr.doctor.findings import Mark

ROW = "{}, NVIDIA H100 80GB HBM3, 81559, {}, {}"


def says(text: str, code: int = 0) -> list[str]:
    return [sys.executable, "-S", "-c", f"import sys; print({text!r}); sys.exit({code})"]


def findings(command: list[str]) -> dict:
    return {each.name: each for each in machine.gpus_section(machine.query_gpus(command)).findings}


def test_good_gpus():
    found = machine.query_gpus(says("\n".join(ROW.format(i, 4, "580.95.05") for i in range(8))))
    assert len(found.all) == 8 and found.memory_gib == pytest.approx(79.6, abs=0.1)
    section = machine.gpus_section(found)
    assert section.ok and {each.mark for each in section.findings} == {Mark.OK}
    assert section.findings[1].message == "NVIDIA H100 80GB HBM3, 80 GiB"


def test_an_old_driver_is_missing_and_a_taken_gpu_a_warning():
    found = findings(says(f"{ROW.format(0, 4, '535.104')}\n{ROW.format(1, 40960, '535.104')}"))
    assert found["driver"].mark is Mark.MISSING and "580 or newer" in found["driver"].message
    assert found["GPU 0"].mark is Mark.OK
    assert found["GPU 1"].mark is Mark.WARNING and "40.0 GiB of them taken" in found["GPU 1"].message


@pytest.mark.parametrize(
    "command, mark, part",
    [
        (["/nowhere/nvidia-smi"], Mark.INFO, "there is no nvidia-smi"),
        (says("NVIDIA-SMI has failed: no\ndriver", 9), Mark.WARNING, "fails (NVIDIA-SMI has failed: no driver)"),
        (says("0, H100, [N/A], 3, 580"), Mark.WARNING, "five values per GPU"),
        (says("0, H100"), Mark.WARNING, "five values per GPU"),
        (says(""), Mark.WARNING, "--gpus all"),
    ],
    ids=["no tool", "no driver", "no number", "too few", "no GPU"],
)
def test_without_gpus_runs_take_the_cpu(command, mark, part):
    found = machine.query_gpus(command)
    [finding] = machine.gpus_section(found).findings
    assert not found.all and finding.mark is mark and part in finding.message
