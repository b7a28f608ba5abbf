"""Pretrain the project's own 14M base model from nothing, on a CPU: ``python -m playground.azr_14m_pretrain``."""

from __future__ import annotations

from azr.pretrain.corpus import CorpusConfig
from azr.pretrain.loop import OptimConfig
from azr.pretrain.recipe import PretrainConfig, run


def config() -> PretrainConfig:
    return PretrainConfig(
        out="data/azr_14m_base",
        corpus=CorpusConfig(
            solve={"deduction": 0.36, "abduction": 0.22, "induction": 0.22, "error": 0.03},
            propose={"deduction": 0.05, "abduction": 0.05, "induction": 0.05, "error": 0.02},
        ),
        optim=OptimConfig(minutes=65),
    )


if __name__ == "__main__":
    import tyro

    run(tyro.cli(PretrainConfig, default=config()))
