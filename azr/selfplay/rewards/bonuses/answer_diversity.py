"""An answer that few other tasks have."""

from __future__ import annotations

from azr.selfplay.rewards.inputs import BonusInputs


def answer_diversity(inputs: BonusInputs) -> float:
    """One minus the frequency of the task's first output among those of the known tasks."""
    known, first = inputs.known(), inputs.task.outputs[0]
    if not known:
        return 1.0
    return 1 - sum(other.outputs[0] == first for other in known) / len(known)
