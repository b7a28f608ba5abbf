"""The forced lengths of `benchmarks.staleness`, and that what a response says before its end token is what counts."""

import asyncio
from pathlib import Path
from statistics import median

import pytest
import torch

from azr.algorithms.losses import mismatch_metrics
from azr.records import Completion, FinishReason
from azr.tasks.prompts import CompactFormat
from benchmarks import staleness
from benchmarks.staleness import CutCodec, draw_lengths, forced_lengths, learned
from tests.conftest import byte_tokenizer
from tests.recipes import from_yaml
from tests.runs import factory

pytestmark = pytest.mark.long

CODEC = CutCodec(byte_tokenizer(), CompactFormat())


def completion(text: str, reason: FinishReason = "stop") -> Completion:
    return factory.completion(CODEC.encode(text), finish=reason)


def test_lengths_have_the_stated_median_and_a_long_tail_and_every_sample_is_asked_for_its_own() -> None:
    lengths = draw_lengths("1", 2000, 64, 1.0, 640)
    assert lengths == draw_lengths("1", 2000, 64, 1.0, 640)
    assert abs(median(lengths) - 64) < 5 and min(lengths) == 16 and max(lengths) == 640
    assert sum(length > 128 for length in lengths) / len(lengths) > 0.2
    asked: list[int] = []

    async def generate(engines: object, prompt_ids: list[int], **options: int) -> list[Completion]:
        asked.append(options["max_tokens"])
        return [completion("<|output|>3", "length")] * options["n"]

    forced = forced_lengths(generate, 64, 1.0)
    answers = asyncio.run(forced(None, [1], n=5, max_tokens=100, seed=7))
    assert asked == draw_lengths("7", 5, 64, 1.0, 100)
    assert [each.finish_reason for each in answers] == ["stop"] * 5


def test_a_response_counts_up_to_its_first_end_token() -> None:
    section = CODEC.parse_response(completion("<|output|>3<|end|>4<|end|>5"))
    assert section is not None and section == CODEC.parse_response(completion("<|output|>3<|end|>"))
    assert CODEC.parse_response(completion("<|output|>3")) is None


def test_a_row_of_a_choice_of_importance_is_of_the_steps_whose_samples_are_old() -> None:
    """The first step learns from samples of its own weights."""
    mismatch = mismatch_metrics(torch.tensor([0.0]), torch.tensor([0.5]))
    same = {f"policy/mismatch_{name}": value for name, value in mismatch.items()} | {"policy/grad_norm": 0.5}
    steps = [
        same | {"step": step, "staleness/mean": min(step - 1, 2), "policy/importance_cut": cut,
                "policy/importance_weight": 1 - cut, "deduction/solver/accuracy": step / 10}
        for step, cut in ((1, 0.9), (2, 0.1), (3, 0.3))
    ]  # fmt: skip
    exams = [{"step": 0, "eval/exam/mean@4": 0.25}, steps[0], steps[1], steps[2] | {"eval/exam/mean@4": 0.5}]
    row = learned(exams)
    assert (row["age"], row["tokens cut or masked"], row["mean weight"]) == ("1.5", "0.2", "0.8")
    assert (row["mismatch, nats"], row["its p99"], row["ratio outside [0.9, 1.1]"]) == ("0.5", "0.5", "1")
    assert (row["solved at the end"], row["exam"]) == ("0.3", "25.0% to 50.0%")


@pytest.mark.parametrize("importance", [each.name for each in staleness.IMPORTANCE])
def test_the_runs_of_the_choices_of_importance_are_sound(importance: str, tmp_path: Path, monkeypatch, capsys) -> None:
    commands: list[list[str]] = []
    with monkeypatch.context() as patch:
        patch.setattr(staleness.subprocess, "run", lambda command, **_: commands.append(command))
        assert staleness.learn(tmp_path, importance, 2, 8, 32) == tmp_path / f"{importance}_2"
    (command,) = commands
    monkeypatch.setattr(staleness.config_rules, "contradictions", staleness.config_rules.contradictions)
    assert staleness.main([*command[3:], "--dry-run"]) == 0
    config = from_yaml(capsys.readouterr().out)
    assert (config.algorithm.importance.name, config.steps_ahead) == (importance, 2)
