"""What the tests share: a folder to be in, a tiny random model on disk, one Ray cluster, a disk that is soon full."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

KINDS = ("deduction", "abduction", "induction", "error")
ROOT = Path(__file__).resolve().parents[1]
CACHES = {
    ".cache",
    ".hypothesis",
    ".import_linter_cache",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".venv",
    ".git",
}
RUNS = "orz_ckpt"
BACKENDS = ("docker", "bubblewrap", "namespace")
OUTSIDE = ".azr-outside-"
"""Beginning of the folders with secrets that hostile programs look for."""
WITH_RAY = ("tests/cluster/", "tests/e2e/", "tests/rollout/", "tests/train/")

# Two processes with two threads each on two cores wait for each other: tests of small models take 20 times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# A shell starts what runs in its background deaf to Ctrl-C, and the programs that tests interrupt would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup has them ignore


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the tests that take Ray: they are the longest group of `OneProcessForRay`."""
    items.sort(key=lambda item: not item.nodeid.startswith(WITH_RAY))


class OneProcessForRay(LoadScopeScheduling):
    """Give all tests of some folders to one process, which has the Ray cluster, and each other file whole to either."""

    def _split_scope(self, nodeid: str) -> str:
        path = str(nodeid.partition("::")[0])
        return "ray" if path.startswith(WITH_RAY) else path


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> OneProcessForRay:
    return OneProcessForRay(config, log)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which backends of the executor no attack has met."""
    names = [report.nodeid for report in terminalreporter.stats.get("passed", ())]
    attacks = [name for name in names if name.startswith("tests/executor/test_hostile.py")]
    if attacks:
        missing = [name for name in BACKENDS if not any(f"[{name}" in attack for attack in attacks)]
        terminalreporter.write_line(f"backends not attacked: {', '.join(missing) or 'none'} (make test-long has all)")


@pytest.fixture(scope="session", autouse=True)
def own_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder of all tests: links to the clone's files beside an empty folder of runs.

    To touch the clone's runs, or to write anything into the clone, is an error, here and in processes that tests start.
    """
    folder = tmp_path_factory.mktemp("clone")
    for path in ROOT.iterdir():
        if path.name not in {*CACHES, RUNS, "build", "__pycache__"}:
            (folder / path.name).symlink_to(path)
    (folder / RUNS).mkdir()
    before, there = _listing(), Path.cwd()
    sys.addaudithook(_refuse_the_clone)  # which nothing can take away again
    os.chdir(folder)
    _refused.extend([f"{ROOT}{os.sep}"] if os.environ.get("AZR_WRITE_GOLDEN") != "1" else [])
    yield folder
    _refused.clear()
    os.chdir(there)
    assert _listing() == before, "a test, or a process that it started, wrote into the clone"


_refused: list[str] = []
"""Beginnings of paths that `_refuse_the_clone` looks at, while tests run."""


def _refuse_the_clone(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse what would read the clone's runs or write into the clone: a hook of `sys.addaudithook`."""
    if event not in ("open", "os.listdir", "os.scandir", "os.mkdir", "os.remove", "os.rename") or not isinstance(
        arguments[0], str
    ):
        return
    path = os.path.abspath(arguments[0])
    if not any(map(path.startswith, _refused)):
        return
    top = Path(path).relative_to(ROOT).parts[0]
    flags = arguments[2] if event == "open" else 0
    writes = event in ("os.mkdir", "os.remove", "os.rename") or bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    if top.startswith(OUTSIDE) or path.endswith(".gitkeep"):
        return
    if top == RUNS or (writes and top not in CACHES and "__pycache__" not in path):
        raise PermissionError(f"a test may not touch {path}: give it a folder of its own")


def _listing() -> list[list[str]]:
    """Return the names of what lies in the clone and among its runs, caches left out."""
    there = (os.listdir(folder) for folder in (ROOT, ROOT / RUNS))
    return [sorted(name for name in names if name not in CACHES and not name.startswith(OUTSIDE)) for names in there]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Every byte is a token, and every tag of the compact style is one: no text is out of vocabulary."""
    from transformers import PreTrainedTokenizerFast

    from azr.tasks.prompts import CompactFormat
    from tests import chat_tokenizers

    tokenizer = chat_tokenizers.of_bytes(CompactFormat.special_tokens(KINDS))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a random Qwen2 model (float32, tied embeddings, 4 heads of 32) and its tokenizer."""
    from tests.tiny_models import save_tiny

    folder = tmp_path_factory.mktemp("tiny_model")
    return save_tiny(folder, "qwen2", byte_tokenizer(), intermediate_size=128)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A Ray cluster with eight CPU slots (logical: the tests never use that many at once)."""
    import ray

    ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield
    ray.shutdown()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 2 MiB. Skips the test where none can be mounted, but never in continuous integration."""
    folder = tmp_path / "small"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode != 0:
        give_up = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        give_up(f"this test mounts a small tmpfs, which takes root's rights: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)
