"""Absolute Zero self-play with Qwen2.5-7B and a little of LUFFY's data: ``python -m playground.azr_7b_traces``.

Every step plays with itself, and answers 64 questions eight times, once by another model's trace. docs/data.md
says how the published file becomes data/luffy.jsonl. Eight 48 GB GPUs.
"""

from dataclasses import replace

from azr.cli.run import launch
from azr.config import DataConfig
from playground.azr_7b_ppo import config as azr_7b

config = replace(
    azr_7b,
    run=replace(azr_7b.run, name="azr_7b_traces"),
    # The traces close their thinking, but know no answer tags.
    reward=replace(azr_7b.reward, format="thought"),
    data=DataConfig(path="data/luffy.jsonl", play="mixed", prompts=64, samples=7, traces=1),
)

if __name__ == "__main__":
    launch(config)
