"""What the tests share: a tiny random model on disk, one Ray cluster per session, and a disk that is soon full."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from transformers import PreTrainedTokenizerFast

from azr.tasks.prompts import CompactFormat
from tests import chat_tokenizers
from tests.tiny_models import save_tiny

KINDS = ("deduction", "abduction", "induction", "error")

# A shell starts what runs in its background deaf to Ctrl-C, and the programs that tests interrupt would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """Every byte is a token, and every tag of the compact style is one: no text is out of vocabulary."""
    tokenizer = chat_tokenizers.of_bytes(CompactFormat.special_tokens(KINDS))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>")


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a random Qwen2 model (float32, tied embeddings, 4 heads of 32) and its tokenizer."""
    folder = tmp_path_factory.mktemp("tiny_model")
    return save_tiny(folder, "qwen2", byte_tokenizer(), intermediate_size=128)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A Ray cluster with eight CPU slots (logical: the tests never use that many at once)."""
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
