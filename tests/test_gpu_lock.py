"""FlashAttention 4 of the GPU lock, installed as `make install` does it, compiles for Hopper on a machine without a
GPU. Downloads 400 MB."""

import csv
import os
import subprocess
import sys
import venv
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCK = ROOT / "requirements" / "gpu.lock"
OF_TORCH = ("cuda-bindings", "cuda-pathfinder", "triton")
"""What torch's CUDA build brings of it, before the lock is installed over that."""
CONCERNED = ("apache-tvm-ffi", "cuda-bindings", "cuda-core", "cuda-pathfinder", "cuda-python", "flash-attn-4",
             "nvidia-cutlass-dsl", "quack-kernels", "torch-c-dlpack-ext", "triton")  # fmt: skip
HOPPER = {"FLASH_ATTENTION_ARCH": "sm_90", "CUTE_DSL_ARCH": "sm_90a", "FLASH_ATTENTION_NUM_SMS": "132"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with what of the lock concerns FlashAttention 4, in the Makefile's order; torch is lent."""
    folder = tmp_path_factory.mktemp("gpu")
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "lent.pth").write_text(os.path.dirname(pytest.__path__[0]) + "\n")
    (folder / "lock").write_text("".join(each for each in LOCK.open() if each.startswith(CONCERNED)))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "-q", "--no-deps"]
    subprocess.run([*pip, "--ignore-installed", "-c", str(LOCK), *OF_TORCH], check=True)
    subprocess.run([*pip, "-r", str(folder / "lock")], check=True)
    return folder


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_no_package_overwrites_a_file_of_another(folder: Path) -> None:
    digests = defaultdict(set)
    for record in folder.glob("lib/python3*/site-packages/*.dist-info/RECORD"):
        for name, digest, _ in csv.reader(record.open()):
            digests[name].add(digest)
    assert len(digests) > 1000
    assert {name for name, its in digests.items() if len(its) > 1 and not name.endswith(".pyc")} == set()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_flash_attention_compiles_for_hopper_once(folder: Path, tmp_path: Path) -> None:
    environment = os.environ | HOPPER | {"PYTHONPATH": str(ROOT), "AZR_CACHE": str(tmp_path)}
    compiled = []
    for _ in range(2):
        command = [folder / "bin" / "python", "-m", "tests.compile_flash"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        compiled.append({each: each.stat().st_mtime_ns for each in tmp_path.glob("flash_attention/**/*.o")})
    assert len(compiled[0]) > 8 and compiled[1] == compiled[0], "the second process finds what the first compiled"
