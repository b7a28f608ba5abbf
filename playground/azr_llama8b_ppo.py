"""Absolute Zero self-play with Llama-3.1-8B on eight 48 GB GPUs: ``python -m playground.azr_llama8b_ppo``.

On four: ``--train.data-parallel 4 --rollout.engines 4``.
"""

from dataclasses import replace

from azr.cli.run import launch
from playground.base import base

config = replace(
    base,
    run=replace(base.run, name="azr_llama8b_ppo"),
    model=replace(base.model, path="meta-llama/Llama-3.1-8B"),
    # The authors' script has a quarter of the others' seeds for this model.
    selfplay=replace(base.selfplay, seed_tasks=base.selfplay.seed_tasks // 4),
    rollout=replace(base.rollout, engines=8),
    train=replace(base.train, data_parallel=8),
)

if __name__ == "__main__":
    launch(config)
