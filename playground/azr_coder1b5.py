"""Absolute Zero self-play with Qwen2.5-Coder-1.5B, whole, on one 48 GB GPU: ``python -m playground.azr_coder1b5``.

Without critic and reference, as in the paper.
"""

from dataclasses import replace

from azr.cli.run import launch
from azr.config import AlgorithmConfig
from playground.base import base

config = replace(
    base,
    run=replace(base.run, name="azr_coder1b5"),
    model=replace(base.model, path="Qwen/Qwen2.5-Coder-1.5B"),
    algorithm=AlgorithmConfig(entropy_coef=0.001),
)

if __name__ == "__main__":
    launch(config)
