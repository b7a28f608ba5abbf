"""Self-play with adapters of Qwen3-4B-Base on one 24 GB GPU: ``python -m playground.azr_qwen3_4b_lora``."""

from dataclasses import replace

from azr.cli.run import launch
from playground.azr_coder1b5_lora import config as small

config = replace(
    small,
    run=replace(small.run, name="azr_qwen3_4b_lora"),
    model=replace(small.model, path="Qwen/Qwen3-4B-Base"),
)

if __name__ == "__main__":
    launch(config)
