"""Grades a model on disk: an engine and an executor pool of its own, without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from transformers import AutoTokenizer

from azr.config import Config, ModelConfig, RolloutConfig
from azr.evaluation.evaluate import Marks, longest_prompt, sit
from azr.evaluation.suite import ExamTask
from azr.executor.pool import SandboxPool
from azr.hardware import ComputeType
from azr.rollout.engine import RolloutEngine
from azr.selfplay.prompt_codec import PromptCodec
from azr.tasks.prompts import CompactFormat

RESPONSE_TOKENS = {"compact": 192, "chat": 4096}
"""Longest answer by prompt style."""


def settings(model: str, style: str | None, max_response_tokens: int | None) -> Config:
    """A config that asks a model in its own style: ``compact`` when its tokenizer has the compact style's tags.

    Raises:
        ValueError: there is no model with a tokenizer at that place.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except OSError as error:
        raise ValueError(f"{model} is no model with a tokenizer: {error}".replace("\n", " ")) from error
    chosen = style or ("compact" if CompactFormat.answer in tokenizer.get_vocab() else "chat")
    assert chosen in ("compact", "chat")
    limit = max_response_tokens or RESPONSE_TOKENS[chosen]
    return Config(
        model=ModelConfig(path=model, prompt_format="compact" if chosen == "compact" else "chat"),
        rollout=RolloutConfig(max_response_tokens=limit),
    )


async def grade(config: Config, paper: Sequence[ExamTask], samples: int, dtype: ComputeType) -> list[Marks]:
    """Starts what is needed, lets the model sit the exam, and ends what was started."""
    codec = PromptCodec.load(config.model)
    rollout = replace(config.rollout, max_prompt_tokens=longest_prompt(codec, paper))
    engine = RolloutEngine(
        config.model.path,
        rollout,
        generate_timeout_s=config.timeout.generate_s,
        dtype=dtype,
        seed=config.run.seed,
    )
    try:
        await engine.start()
        async with SandboxPool(config.executor) as executor:
            return await sit(config, codec, engine.generate, executor, paper, samples)
    finally:
        await engine.shutdown()
