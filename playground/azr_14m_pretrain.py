"""Pretrain the project's own 14M base model from nothing, on a CPU: ``python -m playground.azr_14m_pretrain``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from azr.config import ExecutorConfig
from azr.executor.pool import SandboxPool
from azr.pretrain.corpus import CorpusConfig
from azr.pretrain.evaluate import evaluate
from azr.pretrain.recipe import PretrainConfig, run


def config() -> PretrainConfig:
    return PretrainConfig(
        out="data/azr_14m_base",
        corpus=CorpusConfig(
            solve={"deduction": 0.40, "abduction": 0.21, "induction": 0.21, "error": 0.02},
            propose={"deduction": 0.05, "abduction": 0.05, "induction": 0.05, "error": 0.01},
        ),
    )


async def main(config: PretrainConfig) -> None:
    if config.train:
        run(config)
    async with SandboxPool(ExecutorConfig(workers=2)) as pool:
        print(json.dumps(await evaluate(Path(config.out), config.evaluation, pool.execute_many), indent=2))


if __name__ == "__main__":
    import tyro

    asyncio.run(main(tyro.cli(PretrainConfig, default=config())))
