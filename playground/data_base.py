"""What the recipes that answer a file of questions share, after Open-Reasoner-Zero (arXiv 2503.24290).

PPO with a critic, no discount (gamma and lambda are 1), no KL, and no reward but for the right answer, boxed between
answer tags; docs/recipes.md says what differs from the authors' runs. ``DEBUG=1`` in the environment keeps model and
data, with a tiny batch, short lengths and a few steps.
"""

import os
from dataclasses import replace

from azr.config import (
    GAE,
    AlgorithmConfig,
    Config,
    DataConfig,
    EvalConfig,
    ModelConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    TrainConfig,
)

full = Config(
    run=RunConfig(steps=1000),
    model=ModelConfig(template="conversation"),
    data=DataConfig(path="data/orz.jsonl", prompts=128, samples=64),
    reward=RewardConfig(wrong=0.0, malformed=0.0, format="answer"),
    rollout=RolloutConfig(max_prompt_tokens=2048, max_response_tokens=8192, gpu_memory_utilization=0.85),
    algorithm=AlgorithmConfig(estimator=GAE(critic_mini_batches=16)),
    train=TrainConfig(policy_lr=1e-6, critic_lr=5e-6, warmup_steps=50),
    # Greedy, where eval.data names the folder of their files.
    eval=EvalConfig(path=None, every=20, suites=("math500", "gpqa", "aime24"), limit=100, samples=0),
)


def tiny(config: Config) -> Config:
    """The same run with so little of everything that a mistake shows within minutes."""
    return replace(
        config,
        run=replace(config.run, steps=4),
        data=replace(config.data, prompts=16, samples=4),
        rollout=replace(config.rollout, max_response_tokens=512, max_concurrent=64),
        eval=replace(config.eval, every=2, limit=8),
    )


base = tiny(full) if os.environ.get("DEBUG") == "1" else full
