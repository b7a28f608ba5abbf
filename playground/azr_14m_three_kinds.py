"""Self-play of three kinds with the 14M base on a CPU core: ``python -m playground.azr_14m_three_kinds``."""

from dataclasses import replace

from azr.cli.run import launch
from azr.config import RLOO, AlgorithmConfig, CheckpointConfig, EvalConfig
from playground.azr_14m_mini import config as mini

config = replace(
    mini,
    run=replace(mini.run, name="azr_14m_three_kinds", steps=100),
    # The solver learns from groups of answers to this step's own tasks and to those that their runs make.
    selfplay=replace(mini.selfplay, group_size=8, derived_tasks=3, solver_prompts=0, seed_tasks=64),
    eval=EvalConfig(every=25, limit=288, samples=4),
    checkpoint=CheckpointConfig(every=50),
    algorithm=AlgorithmConfig(estimator=RLOO(), loss_weighting="kind_role", drop_zero_advantage=True),
    train=replace(mini.train, warmup_steps=10, decay_steps=90, adam_beta2=0.99),
)

if __name__ == "__main__":
    launch(config)
