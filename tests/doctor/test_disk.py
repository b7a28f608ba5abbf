"""Room for run directories."""

from pathlib import Path

from azr.doctor import disk
from azr.doctor.disk import GIB
from azr.doctor.findings import Finding, Mark


def finding(root: Path, free_gib: float, checkpoint_gib: float = 0, kept: int = 2, may_write: bool = True) -> Finding:
    def free(folder: Path) -> int:
        assert folder.is_dir()
        return int(free_gib * GIB)

    [found] = disk.check(root, checkpoint_gib * GIB, kept, free, may_write).findings
    return found


def test_a_folder_that_is_not_there_yet_counts_as_the_one_it_will_be_in(tmp_path):
    assert disk.nearest(tmp_path / "a" / "b") == tmp_path
    assert finding(tmp_path / "a" / "b", 2).mark is Mark.OK


def test_checkpoints_and_the_one_that_is_being_written_must_fit(tmp_path):
    assert finding(tmp_path, 300, 100, kept=2).mark is Mark.OK
    short = finding(tmp_path, 299, 100, kept=2)
    assert short.mark is Mark.MISSING and "299 GiB free" in short.says and "300 GiB" in short.says
    assert "--checkpoint.keep 1" in short.says and "--checkpoint.keep" not in finding(tmp_path, 199, 100, kept=1).says
    assert finding(tmp_path, 0.5).mark is Mark.MISSING


def test_a_folder_nobody_may_write_to(tmp_path):
    assert "nothing can be written" in finding(tmp_path, 100, may_write=False).says


def test_this_disk(tmp_path):
    assert disk.check(tmp_path, 0, 2).findings[0].mark in (Mark.OK, Mark.MISSING)
    assert disk.free_bytes(tmp_path) > 0
