"""Absolute Zero self-play with Qwen3-4B-Base on two 80 GB GPUs: ``python -m playground.azr_qwen3_4b_ppo``."""

from dataclasses import replace

from azr.cli.run import launch
from playground.base import base

config = replace(
    base,
    run=replace(base.run, name="azr_qwen3_4b_ppo"),
    model=replace(base.model, path="Qwen/Qwen3-4B-Base"),
    rollout=replace(base.rollout, engines=2),
    train=replace(base.train, data_parallel=2),
)

if __name__ == "__main__":
    launch(config)
