"""LUFFY (arXiv 2504.14945) with its base model on eight 48 GB GPUs: ``python -m playground.luffy_7b``.

One of eight responses to each question is another model's trace. docs/data.md says how the published file
becomes data/luffy.jsonl. RL with an SFT loss: ``--algorithm.off-policy.loss sft``; without traces:
``--data.samples 8 --data.traces 0 --algorithm.objective.clip-low 0.2 --algorithm.objective.clip-high 0.2``.
"""

from dataclasses import replace

from azr.cli.run import launch
from azr.config import PPO, AlgorithmConfig, DrGRPO
from playground.data_base import base

config = replace(
    base,
    run=replace(base.run, name="luffy_7b", steps=500),
    model=replace(base.model, path="Elliott/Qwen2.5-Math-7B-16k-think", template="tokenizer"),
    data=replace(base.data, path="data/luffy.jsonl", samples=7, traces=1),
    reward=replace(base.reward, format="thought"),
    rollout=replace(base.rollout, max_prompt_tokens=1024, engines=8),
    # Sampled tokens are not clipped either.
    algorithm=AlgorithmConfig(
        estimator=DrGRPO(), objective=PPO(clip_low=1.0, clip_high=1e6), entropy_coef=0.001, policy_mini_batches=2
    ),
    train=replace(base.train, data_parallel=8, warmup_steps=0, weight_decay=0.01),
)

if __name__ == "__main__":
    launch(config)
