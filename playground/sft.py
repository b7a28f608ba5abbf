"""Supervised fine-tuning on traces, with LUFFY's base model on eight 48 GB GPUs: ``python -m playground.sft``.

Three epochs of 46 thousand traces at 64 a step. docs/data.md says how the published file becomes data/luffy.jsonl.
RL continues from what it exports: ``azr export`` and ``--model.path``.
"""

from dataclasses import replace

from azr.cli.run import launch
from azr.config import AlgorithmConfig, OffPolicyConfig
from playground.luffy_7b import config as luffy

config = replace(
    luffy,
    run=replace(luffy.run, name="sft", steps=2150),
    data=replace(luffy.data, prompts=64, samples=0, traces=1),
    algorithm=AlgorithmConfig(off_policy=OffPolicyConfig(loss="sft")),
    train=replace(luffy.train, policy_lr=5e-5, warmup_steps=215, decay_steps=1935, weight_decay=0.0),
)

if __name__ == "__main__":
    launch(config)
