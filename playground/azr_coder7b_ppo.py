"""Absolute Zero self-play with Qwen2.5-Coder-7B on eight 80 GB GPUs, with the paper's batch and sampling.

python -m playground.azr_coder7b_ppo
"""

from azr.commands.run import launch
from azr.config import AlgorithmConfig, Config, ExecutorConfig, ModelConfig, RolloutConfig, RunConfig, TrainConfig

config = Config(
    run=RunConfig(name="azr_coder7b_ppo", steps=500),
    model=ModelConfig(path="Qwen/Qwen2.5-Coder-7B", prompt_style="chat"),
    rollout=RolloutConfig(engines=8, max_prompt_tokens=6144, max_response_tokens=8096),
    executor=ExecutorConfig(workers=16),
    algorithm=AlgorithmConfig(estimator="gae", kl_coef=0.001),
    train=TrainConfig(data_parallel=8, policy_lr=1e-6, critic_lr=5e-6, offload_optimizer=True),
)

if __name__ == "__main__":
    launch(config)
