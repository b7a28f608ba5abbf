"""The mini for longer, with controls that show what new tasks teach: ``python -m playground.azr_14m_learn``.

docs/learning.md has the results.
"""

from dataclasses import replace

from azr.cli.run import launch
from azr.config import CheckpointConfig, KLConfig
from playground.azr_14m_mini import config as mini

config = replace(
    mini,
    run=replace(mini.run, name="azr_14m_learn", steps=100),
    selfplay=replace(mini.selfplay, proposer_prompts=192, repeated_tasks=96),
    eval=replace(mini.eval, every=20),
    checkpoint=CheckpointConfig(every=20),
    # A low rate, a KL to the start and a clip at the gradient's usual norm keep wrong rewards harmless.
    algorithm=replace(mini.algorithm, kl=KLConfig(coef=0.1, estimator="k3")),  # as its results were measured
    train=replace(mini.train, policy_lr=3e-5, warmup_steps=5, decay_steps=95),
)

if __name__ == "__main__":
    launch(config)
