"""Play and learn one step in each prompt form, one after the other in the same system:
``python -m tests.e2e.each_form MODEL``. Prints one line of JSON about each step."""

import asyncio
import json
import random
import sys
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from azr.concurrency import Phase
from azr.config import Config
from azr.config_tree import override
from azr.prompts.codec import PromptCodec
from azr.records import Stops
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.journal import Journal
from azr.selfplay.play import SelfPlayStep
from azr.system import System
from azr.tasks.registry import KINDS
from azr.train.learner import Learner
from tests.e2e.chat_model import random_task

FORMS: dict[str, tuple[str, dict[str, object]]] = {
    "completion": ("```output\n", {"model.prompt_format": "completion"}),
    "worked": ("```trace\n", {"model.prompt_format": "worked"}),
    "tokenizer": ("<|im_start|>assistant\n", {"model.template": "tokenizer"}),
    "thought": ("Assistant: <think>", {"model.template": "conversation", "reward.format": "thought"}),
    "answer": ("Assistant:", {"model.template": "conversation", "reward.format": "answer", "model.thinking": "none"}),
}
"""Ends of solver prompts, and options. The recipes for GPUs take the strict format with the conversation."""
ENDS = 40
"""Characters at a prompt's end that are printed."""
KIND = "deduction"
SIZES: dict[str, object] = {
    "selfplay.kinds": (KIND,), "selfplay.references": 2, "selfplay.proposer_prompts": 1, "selfplay.solver_prompts": 2,
    "selfplay.group_size": 2, "rollout.temperature": 0.7, "rollout.max_prompt_tokens": 1500,
    "rollout.max_response_tokens": 24, "rollout.max_concurrent": 16, "executor.workers": 1,
    "algorithm.entropy_coef": 0.01, "train.dtype": "auto",
}  # fmt: skip


async def play_and_learn(step: int, config: Config, codec: PromptCodec, system: System, phase: Phase) -> dict[str, Any]:
    kind, rng = KINDS[KIND], random.Random(step)
    made = [random_task(rng, kind, 1) for _ in range(4)]
    buffer = TaskBuffer((KIND,))
    buffer.restore(
        replace(task, id=f"seed-{number}", fingerprint=kind.fingerprint(task.program, task.inputs))
        for number, task in enumerate(made)
    )
    playing = SelfPlayStep(config=config, step=step, name=f"{step:06d}", buffer=buffer, codec=codec,
        execute=system.executor.execute, journal=Journal(system.engines.generate, 1.0), phase=phase)  # fmt: skip
    samples = (await playing.play()).samples
    await system.turns.offload_engines_onload_trainers(phase)
    learned = await Learner(config, system.policy, None, None, phase).learn(samples, step)
    pushed = await system.turns.sync_and_onload_engines(step, phase)
    return {
        "version": pushed.version, "grad_norm": learned["policy"]["grad_norm"],
        "mismatch": learned["policy"]["mismatch_mean"],
        "ends": [codec.decode(each.completion.prompt_ids)[-ENDS:] for each in samples],
        "verdicts": [each.judgement and each.judgement.verdict for each in samples],
    }  # fmt: skip


async def main(model: str) -> None:
    configs = {form: override(Config(), SIZES | values | {"model.path": model}) for form, (_, values) in FORMS.items()}
    codecs = {form: PromptCodec.load(config) for form, config in configs.items()}
    stops = [codec.stops for codec in codecs.values()]
    every = Stops(
        tuple({text for each in stops for text in each.strings}), tuple({id for each in stops for id in each.token_ids})
    )

    def phase(name: str) -> nullcontext[None]:
        return nullcontext()

    config = next(iter(configs.values()))
    system = await System.start(config, every, phase)
    try:
        for step, form in enumerate(FORMS, 1):
            played = await play_and_learn(step, configs[form], codecs[form], system, phase)
            print(json.dumps({"form": form, **played}), flush=True)
    finally:
        await system.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
