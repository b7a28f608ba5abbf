"""Lifts the 14M model by self-play alone, in half an hour on two CPU cores: ``python -m playground.azr_14m_learn``."""

from dataclasses import replace

from azr.commands.run import launch
from azr.config import AlgorithmConfig, CheckpointConfig, ExamConfig
from playground.azr_14m_mini import config as mini

config = replace(
    mini,
    run=replace(mini.run, name="azr_14m_learn", steps=1000, max_minutes=29),
    # Groups of answers to this step's own tasks are all that the solver learns from.
    selfplay=replace(mini.selfplay, estimate_samples=8, solves_per_kind=0, seed_tasks=64),
    exam=ExamConfig(every=25),
    checkpoint=CheckpointConfig(every=50),
    algorithm=AlgorithmConfig(estimator="rloo", weighting="trajectory", skip_zero_advantages=True),
)

if __name__ == "__main__":
    launch(config)
