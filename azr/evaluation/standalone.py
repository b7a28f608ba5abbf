"""Evaluates a model on disk with an engine and an executor pool of its own, without Ray."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from transformers import AutoTokenizer

from azr.config import Config, ModelConfig, RolloutConfig
from azr.errors import UserError
from azr.evaluation.evaluate import TaskScore, evaluate, longest_prompt
from azr.evaluation.suite import BenchmarkTask
from azr.executor.pool import SandboxPool
from azr.hardware import ComputeType
from azr.rollout.engine import RolloutEngine
from azr.selfplay.prompt_codec import PromptCodec
from azr.tasks.prompts import CompactFormat

FormatName = Literal["compact", "chat"]
RESPONSE_TOKENS: dict[FormatName, int] = {"compact": 192, "chat": 4096}
"""Longest answer by prompt format."""


def eval_config(model: str, prompt_format: FormatName | None, max_response_tokens: int | None) -> Config:
    """A config that asks a model in its own format: ``compact`` when its tokenizer has the compact format's tags.

    Raises:
        UserError: there is no model with a tokenizer at that place.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(model)
    except OSError as error:
        raise UserError(f"{model} is no model with a tokenizer: {error}".replace("\n", " ")) from error
    if prompt_format is None:
        prompt_format = "compact" if CompactFormat.answer in tokenizer.get_vocab() else "chat"
    return Config(
        model=ModelConfig(path=model, prompt_format=prompt_format),
        rollout=RolloutConfig(max_response_tokens=max_response_tokens or RESPONSE_TOKENS[prompt_format]),
    )


async def evaluate_model(
    config: Config, benchmark: Sequence[BenchmarkTask], samples: int, dtype: ComputeType
) -> list[TaskScore]:
    """Starts what is needed, evaluates the model, and ends what was started."""
    codec = PromptCodec.load(config)
    rollout = replace(config.rollout, max_prompt_tokens=longest_prompt(codec, benchmark))
    engine = RolloutEngine(
        config.model.path,
        rollout,
        stops=codec.stops,
        generate_timeout_s=config.timeout.generate_s,
        dtype=dtype,
        seed=config.run.seed,
    )
    try:
        await engine.start()
        async with SandboxPool(config.executor) as executor:
            return await evaluate(config, codec, engine.generate, executor, benchmark, samples)
    finally:
        await engine.shutdown()
