"""Absolute Zero self-play with Qwen2.5-Coder-3B on two 48 GB GPUs: ``python -m playground.azr_coder3b_ppo``."""

from dataclasses import replace

from azr.cli.run import launch
from playground.base import base

config = replace(
    base,
    run=replace(base.run, name="azr_coder3b_ppo"),
    model=replace(base.model, path="Qwen/Qwen2.5-Coder-3B"),
    rollout=replace(base.rollout, engines=2),
    train=replace(base.train, data_parallel=2),
)

if __name__ == "__main__":
    launch(config)
