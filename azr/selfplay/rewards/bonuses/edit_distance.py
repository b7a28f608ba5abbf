"""Unlike what the proposer was shown."""

from __future__ import annotations

import ast
import difflib

from azr.selfplay.rewards.inputs import BonusInputs


def edit_distance(inputs: BonusInputs) -> float:
    """Mean over the references of one minus the similarity of the two syntax trees; 0 without references."""
    if not inputs.references:
        return 0.0
    trees = [ast.dump(ast.parse(reference.program)) for reference in inputs.references]
    tree = ast.dump(ast.parse(inputs.task.program))
    ratios = [difflib.SequenceMatcher(None, tree, other).ratio() for other in trees]
    return 1 - sum(ratios) / len(ratios)
