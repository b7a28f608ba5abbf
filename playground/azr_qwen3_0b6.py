"""Self-play with Qwen3-0.6B, whole, on one 24 GB GPU: ``python -m playground.azr_qwen3_0b6``.

It is asked by its own chat template, and thinks before it answers.
"""

from dataclasses import replace

from azr.cli.run import launch
from azr.config import ModelConfig
from playground.azr_0b5 import config as older

config = replace(
    older,
    run=replace(older.run, name="azr_qwen3_0b6"),
    model=ModelConfig(path="Qwen/Qwen3-0.6B", template="tokenizer"),
)

if __name__ == "__main__":
    launch(config)
