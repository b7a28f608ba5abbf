"""Absolute Zero self-play with Qwen2.5-14B on eight 80 GB GPUs: ``python -m playground.azr_14b_ppo``."""

from dataclasses import replace

from azr.cli.run import launch
from playground.base import base

config = replace(
    base,
    run=replace(base.run, name="azr_14b_ppo"),
    model=replace(base.model, path="Qwen/Qwen2.5-14B"),
    rollout=replace(base.rollout, engines=2, tensor_parallel=4),
    train=replace(base.train, data_parallel=8),
)

if __name__ == "__main__":
    launch(config)
