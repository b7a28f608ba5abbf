"""Open-Reasoner-Zero's PPO with Qwen2.5-1.5B on eight 48 GB GPUs: ``python -m playground.orz_1b5_ppo``.

docs/data.md says how the published file becomes data/orz.jsonl.
"""

from dataclasses import replace

from azr.cli.run import launch
from playground.data_base import base

config = replace(
    base,
    run=replace(base.run, name="orz_1b5_ppo"),
    model=replace(base.model, path="Qwen/Qwen2.5-1.5B"),
    rollout=replace(base.rollout, engines=8),
    train=replace(base.train, data_parallel=8),
)

if __name__ == "__main__":
    launch(config)
