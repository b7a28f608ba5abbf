"""``python -m tests.executor.hostile [BACKEND ...]``: runs all attacks, on all backends that work here, and prints
the matrix in Markdown. ``docker+runsc`` is Docker with that container runtime.
"""

import asyncio
import sys
import time
from collections import Counter

from tests.executor.conftest import usable_backends
from tests.executor.hostile.catalogue import ATTACKS as ALL
from tests.executor.hostile.runner import Outcome, run
from tests.executor.hostile.world import World

ATTACKS = [attack for attack in ALL if attack.fits]


def matrix(outcomes: dict[str, list[Outcome]]) -> str:
    """Families by backends: how many attacks were held, and how they ended."""
    lines = [f"| family | programs | {' | '.join(outcomes)} |", "|---" * (2 + len(outcomes)) + "|"]
    for family in dict.fromkeys(attack.family for attack in ATTACKS):
        cells = [_cell([one for one in some if one.attack.family == family]) for some in outcomes.values()]
        lines.append(f"| {family} | {sum(a.family == family for a in ATTACKS)} | {' | '.join(cells)} |")
    totals = [f"**{sum(not one.breaches for one in some)} held of {len(some)}**" for some in outcomes.values()]
    return "\n".join([*lines, f"| **all** | **{len(ATTACKS)}** | {' | '.join(totals)} |"])


def _cell(outcomes: list[Outcome]) -> str:
    ends = Counter(output.status.value for one in outcomes for output in one.result.outputs[:1])
    how = ", ".join(f"{count} {status}" for status, count in ends.most_common())
    lost = sum(bool(one.breaches) for one in outcomes)
    return f"{f'**{lost} not held**' if lost else 'all held'} ({how})"


def main(backends: list[str]) -> None:
    outcomes = {}
    for backend in backends:
        started = time.monotonic()
        with World() as world:
            outcomes[backend] = asyncio.run(run(ATTACKS, backend, world))
        print(f"{backend}: {time.monotonic() - started:.0f} s", file=sys.stderr)
        for one in sorted(outcomes[backend], key=lambda one: one.attack.id):
            for breach in one.breaches:
                print(f"{backend}: {one.attack.id}: {breach}"[:600], file=sys.stderr)
    print(matrix(outcomes))


if __name__ == "__main__":
    main(sys.argv[1:] or usable_backends())
