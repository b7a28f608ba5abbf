"""What the GPU recipes share: the paper's batch, lengths and sampling (arXiv 2505.03335), with a critic and a KL loss.

``--algorithm.estimator trrpp --algorithm.kl.coef 0`` leaves both out, as the paper does; docs/fidelity.md says what
else differs and which option decides it. ``DEBUG=1`` in the environment keeps the model and where it lives, with a tiny
batch, short lengths and a few steps.
"""

import os
from dataclasses import replace

from azr.config import (
    GAE,
    AlgorithmConfig,
    Config,
    EvalConfig,
    ExecutorConfig,
    KLConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
    SelfPlayConfig,
    TrainConfig,
)

full = Config(
    run=RunConfig(steps=500),
    model=ModelConfig(prompt_format="chat"),
    selfplay=SelfPlayConfig(proposer_prompts=64, solver_prompts=64, references=6, group_size=8),
    rollout=RolloutConfig(
        temperature=1.0, max_prompt_tokens=6144, max_response_tokens=8096, gpu_memory_utilization=0.85
    ),
    executor=ExecutorConfig(workers=16),
    algorithm=AlgorithmConfig(estimator=GAE(), kl=KLConfig(coef=0.001), entropy_coef=0.001),
    train=TrainConfig(policy_lr=1e-6, critic_lr=5e-6, weight_decay=0.01),
    # Greedy, where eval.data names the folder of their files.
    eval=EvalConfig(every=20, suites=("cruxeval-i", "cruxeval-o", "mbpp+"), limit=100, samples=0),
)


def tiny(config: Config) -> Config:
    """The same run with so little of everything that a mistake shows within minutes."""
    play = replace(config.selfplay, proposer_prompts=8, solver_prompts=8, references=2, group_size=2)
    return replace(
        config,
        run=replace(config.run, steps=4),
        selfplay=replace(play, seed_tasks=8),
        reward=replace(config.reward, overlong=64) if config.reward.overlong == 1024 else config.reward,
        rollout=replace(config.rollout, max_prompt_tokens=3072, max_response_tokens=512, max_concurrent=64),
        eval=replace(config.eval, every=2, limit=8),
    )


base = tiny(full) if os.environ.get("DEBUG") == "1" else full
