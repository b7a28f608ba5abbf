"""How a resumed run's config differs from the saved one, and which differences cannot be honoured."""

from __future__ import annotations

from azr.config import Config
from azr.config_tree import leaves

FIXED = ("model.", "selfplay.kinds")
"""Knobs, or beginnings of their names, that the saved weights and tasks are made for."""
_PLACE = ("run.name", "run.root")


def differences(saved: Config, wanted: Config) -> list[str]:
    """``run.steps: 24 -> 48``, one for each knob that is not as saved; where the run lives does not count.

    Raises:
        ValueError: a change that the checkpoint cannot follow.
    """
    before, after = leaves(saved), leaves(wanted)
    changed = [name for name in after if after[name] != before[name] and name not in _PLACE]
    for name in changed:
        if name.startswith(FIXED):
            raise ValueError(
                f"{name} was {before[name]} when the run was saved and cannot become {after[name]}: leave it as it "
                "was, or start another run."
            )
    if wanted.algorithm.needs_critic and not saved.algorithm.needs_critic:
        raise ValueError(
            f"algorithm.estimator was {saved.algorithm.estimator_name} when the run was saved, so there is no critic "
            f"for {wanted.algorithm.estimator_name}: leave it as it was, or start another run."
        )
    return [f"{name}: {before[name]} -> {after[name]}" for name in changed]
