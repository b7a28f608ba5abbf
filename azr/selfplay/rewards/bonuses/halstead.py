"""Much to keep in mind while reading the program."""

from __future__ import annotations

from radon.complexity import cc_visit
from radon.metrics import h_visit

from azr.selfplay.rewards.inputs import BonusInputs


def halstead(inputs: BonusInputs) -> float:
    """Half effort (of 10,000), three tenths complexity (of 10), two tenths volume (of 500), each at most 1."""
    program = inputs.task.program
    total = h_visit(program).total
    cyclomatic = max((block.complexity for block in cc_visit(program)), default=1)
    return 0.5 * min(total.effort / 10_000, 1) + 0.3 * min(cyclomatic / 10, 1) + 0.2 * min(total.volume / 500, 1)
