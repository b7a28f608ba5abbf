"""Self-play with adapters of SmolLM3-3B on one 24 GB GPU: ``python -m playground.azr_smollm3_3b_lora``.

It is asked by its own chat template, and thinks before it answers.
"""

from dataclasses import replace

from azr.cli.run import launch
from azr.config import ModelConfig
from playground.azr_coder1b5_lora import config as small

config = replace(
    small,
    run=replace(small.run, name="azr_smollm3_3b_lora"),
    model=ModelConfig(path="HuggingFaceTB/SmolLM3-3B", template="tokenizer"),
)

if __name__ == "__main__":
    launch(config)
