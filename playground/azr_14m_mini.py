"""Self-play that teaches a 14M model within minutes, on two cores or a GPU: ``python -m playground.azr_14m_mini``.

The model knows deductions of one to four lines. What it learns from programs of its own shows on a held-out exam.
"""

from azr.cli.run import launch
from azr.config import (
    RLOO,
    AlgorithmConfig,
    Config,
    EvalConfig,
    ExecutorConfig,
    KLConfig,
    ModelConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    SelfPlayConfig,
    TrainConfig,
)
from azr.own_data import own_data

config = Config(
    run=RunConfig(name="azr_14m_mini", steps=24),
    model=ModelConfig(path=own_data("azr_14m_worked"), prompt_format="compact"),
    # The solver learns from groups of answers: to this step's own tasks, and to the newest that it solved sometimes.
    selfplay=SelfPlayConfig(
        kinds=("deduction",), proposer_prompts=96, solver_prompts=0, references=2, group_size=8,
        train_on_estimates=True, repeated_tasks=48, seed_tasks=32,
    ),
    reward=RewardConfig(format="answer"),  # working may stand before the answer
    rollout=RolloutConfig(max_prompt_tokens=384, max_response_tokens=192, max_concurrent=192),
    executor=ExecutorConfig(workers=2),
    eval=EvalConfig(path=own_data("exam_worked"), every=24, limit=480, samples=4),
    algorithm=AlgorithmConfig(
        estimator=RLOO(), loss_weighting="trajectory", drop_zero_advantage=True, kl=KLConfig(coef=0.02),
    ),
    train=TrainConfig(
        policy_lr=1e-4, warmup_steps=2, decay_steps=22, adam_beta2=0.99, grad_clip=0.1, tokens_per_micro_batch=8192,
    ),
)  # fmt: skip

if __name__ == "__main__":
    launch(config)
