"""A recipe with everything in small: three kinds, estimates, solvers, a critic, a reference and evaluations."""

from azr.cli.run import launch
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
from azr.own_data import own_data

config = Config(
    run=RunConfig(name="three_kinds", steps=24),
    model=ModelConfig(path=own_data("azr_14m_base"), prompt_format="compact"),
    selfplay=SelfPlayConfig(
        proposer_prompts=16,
        solver_prompts=16,
        references=2,
        induction_inputs=6,
        group_size=6,
        train_on_estimates=True,
        seed_tasks=32,
    ),
    rollout=RolloutConfig(max_prompt_tokens=384, max_response_tokens=192, max_concurrent=192),
    executor=ExecutorConfig(workers=2),
    eval=EvalConfig(every=12),
    algorithm=AlgorithmConfig(estimator=GAE(), kl=KLConfig(coef=0.001)),
    train=TrainConfig(
        policy_lr=5e-5, critic_lr=1e-4, warmup_steps=5, tokens_per_micro_batch=8192, gradient_checkpointing="none"
    ),
)

if __name__ == "__main__":
    launch(config)
