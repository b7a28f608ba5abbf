"""Absolute Zero self-play with Qwen2.5-Coder-7B on eight 48 GB GPUs: ``python -m playground.azr_coder7b_ppo``.

On four: ``--train.data-parallel 4 --rollout.engines 4``.
"""

from dataclasses import replace

from azr.cli.run import launch
from playground.base import base

config = replace(
    base,
    run=replace(base.run, name="azr_coder7b_ppo"),
    model=replace(base.model, path="Qwen/Qwen2.5-Coder-7B"),
    rollout=replace(base.rollout, engines=8),
    train=replace(base.train, data_parallel=8),
)

if __name__ == "__main__":
    launch(config)
