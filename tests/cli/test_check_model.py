"""``azr check-model``: mistakes; tests/evaluation/test_model_check.py has what it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from azr.cli.main import dispatch
from tests.conftest import byte_tokenizer
from tests.tiny_models import save_tiny


def said_of(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What the command says when it refuses."""
    capsys.readouterr()
    assert dispatch(["check-model", *argv]) == 2
    written = capsys.readouterr()
    (line,) = (line for line in written.err.splitlines() if line.startswith("error: "))
    assert not written.out
    return line


def test_what_is_no_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert "holds no model (no config.json there)" in said_of([str(tmp_path)], capsys)
    byte_tokenizer().save_pretrained(tmp_path)
    for text in ("{", "[]", "{}", '{"model_type": "nonesuch"}', '{"model_type": "qwen2"}'):
        (tmp_path / "config.json").write_text(text)
        assert "holds no language model that transformers loads" in said_of([str(tmp_path)], capsys)
    assert "must be a number above 0" in said_of([str(tmp_path), "--bound", "0"], capsys)


def test_a_model_that_the_trainer_cannot_compute_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    save_tiny(tmp_path / "caps", "gemma2", byte_tokenizer())
    assert "changes its logits by final_logit_softcapping=30.0" in said_of([str(tmp_path / "caps")], capsys)
    save_tiny(tmp_path / "scores", "gemma2", byte_tokenizer(), final_logit_softcapping=None)
    assert "asks its attention for softcap=50.0" in said_of([str(tmp_path / "scores")], capsys)


@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_a_model_without_a_tokenizer_is_refused(family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    save_tiny(tmp_path, family, byte_tokenizer())
    (tmp_path / "tokenizer.json").write_text("{")
    assert "holds no tokenizer that can be loaded" in said_of([str(tmp_path)], capsys)
    (tmp_path / "tokenizer.json").unlink()
    assert "holds no tokenizer (none of tokenizer.json, " in said_of([str(tmp_path)], capsys)
