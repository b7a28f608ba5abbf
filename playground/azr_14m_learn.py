"""Lifts the 14M model by self-play alone, in half an hour on two CPU cores: ``python -m playground.azr_14m_learn``."""

from dataclasses import replace

from azr.commands.run import launch
from azr.config import AlgorithmConfig, CheckpointConfig, ExamConfig
from playground.azr_14m_mini import config as mini

config = replace(
    mini,
    run=replace(mini.run, name="azr_14m_learn", steps=120),
    # Groups of answers to this step's own tasks are all that the solver learns from.
    selfplay=replace(mini.selfplay, estimate_samples=8, solves_per_kind=0, seed_tasks=64),
    exam=ExamConfig(every=40, tasks_per_kind=96, samples=4),
    checkpoint=CheckpointConfig(every=40),
    algorithm=AlgorithmConfig(estimator="rloo", weighting="trajectory", skip_zero_advantages=True),
    # The base's own rate has fallen to zero: a higher one, or one that does not fall, takes more than self-play gives.
    train=replace(mini.train, policy_lr=5e-5, warmup_steps=10, decay_steps=110, adam_beta2=0.99),
)

if __name__ == "__main__":
    launch(config)
