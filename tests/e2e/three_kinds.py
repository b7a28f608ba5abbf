"""A recipe with everything in small: three kinds, estimates, solvers, a critic, a reference and evaluations."""

from dataclasses import replace

from azr.cli.run import launch
from azr.config import GAE, AlgorithmConfig, EvalConfig, KLConfig, RewardConfig, SelfPlayConfig, TrainConfig
from azr.own_data import own_data
from playground.azr_14m_mini import config as mini

play = {"proposer_prompts": 16, "solver_prompts": 16, "references": 2, "induction_inputs": 6, "group_size": 6}
sizes = {"warmup_steps": 5, "tokens_per_micro_batch": 8192, "gradient_checkpointing": "none"}
config = replace(
    mini,
    run=replace(mini.run, name="three_kinds"),
    model=replace(mini.model, path=own_data("azr_14m_base")),
    selfplay=SelfPlayConfig(**play, train_on_estimates=True, seed_tasks=32),
    reward=RewardConfig(),
    eval=EvalConfig(every=12),
    algorithm=AlgorithmConfig(estimator=GAE(), kl=KLConfig(coef=0.001)),
    train=TrainConfig(policy_lr=5e-5, critic_lr=1e-4, **sizes),
)

if __name__ == "__main__":
    launch(config)
