"""Open-Reasoner-Zero's PPO with Qwen2.5-0.5B on one 24 GB GPU: ``python -m playground.orz_0b5_ppo``.

docs/data.md says how the published file becomes data/orz.jsonl.
"""

from dataclasses import replace

from azr.cli.run import launch
from playground.data_base import base

config = replace(
    base,
    run=replace(base.run, name="orz_0b5_ppo"),
    model=replace(base.model, path="Qwen/Qwen2.5-0.5B"),
    rollout=replace(base.rollout, engines=1),
    train=replace(base.train, data_parallel=1),
)

if __name__ == "__main__":
    launch(config)
