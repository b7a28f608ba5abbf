"""Pretrain the project's own 14M base model from nothing, on a CPU: ``python -m tools.pretrain.base_model``."""

from __future__ import annotations

from tools.pretrain.corpus import CorpusConfig
from tools.pretrain.loop import OptimConfig
from tools.pretrain.recipe import PretrainConfig, run


def config() -> PretrainConfig:
    return PretrainConfig(
        out="data/azr_14m_base",
        # Half of the way: a model that has settled has little left to learn from playing.
        optim=OptimConfig(minutes=32, stop_at=0.47),
        corpus=CorpusConfig(
            solve={"deduction": 0.40, "abduction": 0.21, "induction": 0.21, "error": 0.02},
            propose={"deduction": 0.05, "abduction": 0.05, "induction": 0.05, "error": 0.01},
        ),
    )


if __name__ == "__main__":
    import tyro

    asked = tyro.cli(PretrainConfig, default=config())
    run(asked)
    print(f"How good it is: azr exam --model {asked.out}")
