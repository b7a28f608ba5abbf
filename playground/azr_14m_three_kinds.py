"""Self-play of three kinds with the 14M base on a CPU core: ``python -m playground.azr_14m_three_kinds``."""

from dataclasses import replace

from azr.cli.run import launch
from azr.config import AlgorithmConfig, CheckpointConfig, EvalConfig, ModelConfig, RewardConfig
from azr.own_data import own_data
from playground.azr_14m_mini import config as mini

config = replace(
    mini,
    run=replace(mini.run, name="azr_14m_three_kinds", steps=100),
    model=ModelConfig(path=own_data("azr_14m_base"), prompt_format="compact"),
    # The solver learns from groups of answers to this step's own tasks and to those that their runs make.
    selfplay=replace(
        mini.selfplay,
        kinds=("deduction", "abduction", "induction"),
        proposer_prompts=16,
        induction_inputs=6,
        repeated_tasks=0,
        derived_tasks=3,
        seed_tasks=64,
    ),
    reward=RewardConfig(),
    eval=EvalConfig(every=25, limit=288, samples=4),
    checkpoint=CheckpointConfig(every=50),
    algorithm=AlgorithmConfig(estimator=mini.algorithm.estimator, loss_weighting="kind_role", drop_zero_advantage=True),
    train=replace(mini.train, policy_lr=5e-5, warmup_steps=10, decay_steps=90, grad_clip=1.0),
)

if __name__ == "__main__":
    launch(config)
