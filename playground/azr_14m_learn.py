"""Self-play whose new tasks teach more than its seeds, on two CPU cores: ``python -m playground.azr_14m_learn``.

The model knows deductions of one to four lines and works them out line by line; docs/learning.md has the results.
"""

from dataclasses import replace

from azr.cli.run import launch
from azr.config import RLOO, AlgorithmConfig, CheckpointConfig, EvalConfig, KLConfig, ModelConfig, RewardConfig
from azr.own_data import own_data
from playground.azr_14m_mini import config as mini

config = replace(
    mini,
    run=replace(mini.run, name="azr_14m_learn", steps=100),
    model=ModelConfig(path=own_data("azr_14m_worked"), prompt_format="compact"),
    # The solver learns from groups of answers: to this step's own tasks, and to the newest that it solved sometimes.
    selfplay=replace(
        mini.selfplay,
        kinds=("deduction",),
        proposer_prompts=192,
        group_size=8,
        repeated_tasks=96,
        solver_prompts=0,
        seed_tasks=32,
    ),
    # Working may stand before the answer.
    reward=RewardConfig(format="answer"),
    eval=EvalConfig(path=own_data("exam_worked"), every=20, limit=480, samples=4),
    checkpoint=CheckpointConfig(every=20),
    # A low rate, a KL to the start and a clip at the gradient's usual norm keep wrong rewards harmless.
    algorithm=AlgorithmConfig(
        estimator=RLOO(), loss_weighting="trajectory", drop_zero_advantage=True, kl=KLConfig(coef=0.1)
    ),
    train=replace(mini.train, policy_lr=3e-5, warmup_steps=5, decay_steps=95, adam_beta2=0.99, grad_clip=0.1),
)

if __name__ == "__main__":
    launch(config)
