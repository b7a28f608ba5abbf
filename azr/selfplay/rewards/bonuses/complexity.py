"""Many ways through the program."""

from __future__ import annotations

from radon.complexity import cc_visit

from azr.selfplay.rewards.inputs import BonusInputs


def complexity(inputs: BonusInputs) -> float:
    """Cyclomatic complexity of the program over 15."""
    return float(sum(block.complexity for block in cc_visit(inputs.task.program))) / 15
