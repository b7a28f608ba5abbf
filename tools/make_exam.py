"""Makes the committed exam again: ``python -m tools.make_exam [--out FOLDER]``."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from azr.config import ExecutorConfig
from azr.evaluation.suite import write
from azr.executor.pool import SandboxPool
from tools.exam import make


async def main(out: Path) -> None:
    """Writes one file per kind, the same bytes every time."""
    async with SandboxPool(ExecutorConfig(workers=2, wall_s=10.0)) as executor:
        write(out, await make(executor.execute))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Makes the held-out exam.")
    parser.add_argument("--out", type=Path, default=Path("data/exam"), help="folder that is written")
    asyncio.run(main(parser.parse_args().out))
