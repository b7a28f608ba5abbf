"""Self-play with Olmo-3-7B-Think on eight 48 GB GPUs: ``python -m playground.azr_olmo3_7b_ppo``.

It is asked by its own chat template, which opens the thinking.
"""

from dataclasses import replace

from azr.cli.run import launch
from azr.config import ModelConfig
from playground.azr_7b_ppo import config as older

config = replace(
    older,
    run=replace(older.run, name="azr_olmo3_7b_ppo"),
    model=ModelConfig(path="allenai/Olmo-3-7B-Think", template="tokenizer"),
)

if __name__ == "__main__":
    launch(config)
