"""Self-play with adapters of Qwen2.5-Coder-1.5B on one 24 GB GPU: ``python -m playground.azr_coder1b5_lora``.

Adapters take ten times the rate of whole weights. Without critic and reference, as in the paper; half of its batch.
"""

from dataclasses import replace

from azr.cli.run import launch
from azr.config import AlgorithmConfig, LoraConfig
from playground.base import base

config = replace(
    base,
    run=replace(base.run, name="azr_coder1b5_lora"),
    model=replace(base.model, path="Qwen/Qwen2.5-Coder-1.5B"),
    selfplay=replace(base.selfplay, proposer_prompts=32, solver_prompts=32),
    rollout=replace(base.rollout, max_prompt_tokens=4096, max_response_tokens=4096, gpu_memory_utilization=0.8),
    executor=replace(base.executor, workers=8),
    algorithm=AlgorithmConfig(entropy_coef=0.001),
    train=replace(base.train, policy_lr=1e-5, tokens_per_micro_batch=8192, lora=LoraConfig(rank=32)),
)

if __name__ == "__main__":
    launch(config)
