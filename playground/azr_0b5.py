"""Absolute Zero self-play with Qwen2.5-Coder-0.5B, whole, on one 24 GB GPU: ``python -m playground.azr_0b5``.

The smallest model that writes Python: the cheapest trial of a change on a real language model.
"""

from dataclasses import replace

from azr.cli.run import launch
from playground.azr_coder1b5 import config as larger

config = replace(
    larger,
    run=replace(larger.run, name="azr_0b5"),
    model=replace(larger.model, path="Qwen/Qwen2.5-Coder-0.5B"),
)

if __name__ == "__main__":
    launch(config)
