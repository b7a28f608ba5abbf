"""Shared memory, open files and locked memory."""

import resource

import pytest

from azr.doctor import limits
from azr.doctor.findings import Mark
from azr.doctor.limits import GIB, Limits

ROOMY = {"shm_bytes": 16 * GIB, "files": 1 << 20, "locked_bytes": None}


def marks(gpus: int, **changes) -> dict[str, Mark]:
    section = limits.check(Limits(**{**ROOMY, **changes}), gpus)
    assert all(each.mark is Mark.OK or ":" in each.says or ";" in each.says for each in section.findings)
    return {each.name: each.mark for each in section.findings}


def test_plenty():
    assert marks(8) == dict.fromkeys(("/dev/shm", "open files", "locked memory"), Mark.OK)
    assert marks(0, files=resource.RLIM_INFINITY) == {"/dev/shm": Mark.OK, "open files": Mark.OK}


@pytest.mark.parametrize(
    "gpus, gib, mark",
    [
        (0, 1, Mark.OK), (0, 1 / 16, Mark.WARNING), (1, 1 / 16, Mark.WARNING), (2, 1 / 16, Mark.MISSING),
        (8, 15, Mark.WARNING), (8, 16, Mark.OK), (1, 9, Mark.OK),
    ],
)  # fmt: skip
def test_shared_memory_against_the_number_of_gpus(gpus, gib, mark):
    assert marks(gpus, shm_bytes=int(gib * GIB))["/dev/shm"] is mark


def test_the_remedy_says_how_much():
    [shm, *_] = limits.check(Limits(**{**ROOMY, "shm_bytes": 64 << 20}), 8).findings
    assert "size=16G" in shm.says and "--shm-size=16g" in shm.says


@pytest.mark.parametrize("files, mark", [(1024, Mark.MISSING), (20000, Mark.WARNING), (65536, Mark.OK)])
def test_open_files(files, mark):
    assert marks(0, files=files)["open files"] is mark


def test_locked_memory_matters_with_gpus_only():
    assert marks(1, locked_bytes=8 << 20)["locked memory"] is Mark.WARNING
    assert "locked memory" not in marks(0, locked_bytes=8 << 20)


def test_the_limits_of_this_machine():
    here = Limits.here()
    assert here.shm_bytes > 0 and here.files == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
