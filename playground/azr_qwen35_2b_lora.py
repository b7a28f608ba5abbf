"""Self-play with adapters of Qwen3.5-2B's text model on one 24 GB GPU: ``python -m playground.azr_qwen35_2b_lora``.

The model as published reads images, too: ``azr export Qwen/Qwen3.5-2B Qwen3.5-2B-text`` writes that folder.
"""

from dataclasses import replace

from azr.cli.run import launch
from azr.config import ModelConfig
from playground.azr_coder1b5_lora import config as small

config = replace(
    small,
    run=replace(small.run, name="azr_qwen35_2b_lora"),
    model=ModelConfig(path="Qwen3.5-2B-text", template="tokenizer"),
)

if __name__ == "__main__":
    launch(config)
