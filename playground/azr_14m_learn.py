"""Lifts the 14M model by self-play alone, in half an hour on two CPU cores: ``python -m playground.azr_14m_learn``."""

from azr.commands.run import launch
from azr.config import (
    AlgorithmConfig,
    CheckpointConfig,
    Config,
    ExamConfig,
    ExecutorConfig,
    ModelConfig,
    RolloutConfig,
    RunConfig,
    SelfPlayConfig,
    TrainConfig,
)

config = Config(
    run=RunConfig(name="azr_14m_learn", steps=1000, max_minutes=29),
    model=ModelConfig(path="data/azr_14m_base", prompt_style="compact"),
    # Groups of answers to this step's own tasks are all that the solver learns from.
    selfplay=SelfPlayConfig(
        proposals_per_kind=16,
        solves_per_kind=0,
        references=2,
        induction_inputs=6,
        estimate_samples=6,
        train_on_estimates=True,
        seed_tasks=64,
    ),
    rollout=RolloutConfig(max_prompt_tokens=384, max_response_tokens=192, max_concurrent=192),
    executor=ExecutorConfig(workers=2),
    exam=ExamConfig(every=20),
    checkpoint=CheckpointConfig(every=50),
    algorithm=AlgorithmConfig(estimator="rloo"),
    train=TrainConfig(policy_lr=1e-4, tokens_per_micro_batch=8192, gradient_checkpointing=False, cpu_threads=2),
)

if __name__ == "__main__":
    launch(config)
