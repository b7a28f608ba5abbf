"""Optional bonuses for proposals: complexity, novelty and surprise, each capped and off by default."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Sequence

from radon.complexity import cc_visit
from radon.metrics import h_visit

from azr.config import IntrinsicRewardConfig
from azr.records import Task

MAX_BONUS = 0.5


def complexity(task: Task) -> float:
    """Cyclomatic complexity of the program over 15."""
    return float(sum(block.complexity for block in cc_visit(task.program))) / 15


def edit_distance(task: Task, references: Sequence[Task]) -> float:
    """Mean over the references of one minus the similarity of the two syntax trees; 0 without references."""
    if not references:
        return 0.0
    tree = ast.dump(ast.parse(task.program))
    ratios = [difflib.SequenceMatcher(None, tree, ast.dump(ast.parse(r.program))).ratio() for r in references]
    return 1 - sum(ratios) / len(ratios)


def halstead(task: Task) -> float:
    """Half effort (of 10,000), three tenths complexity (of 10), two tenths volume (of 500), each at most 1."""
    total = h_visit(task.program).total
    cyclomatic = max((block.complexity for block in cc_visit(task.program)), default=1)
    return 0.5 * min(total.effort / 10_000, 1) + 0.3 * min(cyclomatic / 10, 1) + 0.2 * min(total.volume / 500, 1)


def answer_diversity(task: Task, known: Sequence[Task]) -> float:
    """One minus the frequency of the task's first output among those of the known tasks."""
    if not known:
        return 1.0
    return 1 - sum(other.outputs[0] == task.outputs[0] for other in known) / len(known)


def bonuses(
    task: Task, references: Sequence[Task], known: Callable[[], Sequence[Task]], config: IntrinsicRewardConfig
) -> dict[str, float]:
    """Enabled bonuses by name, each coefficient times raw value and at most ``MAX_BONUS``."""
    raw: dict[str, tuple[float, Callable[[], float]]] = {
        "complexity": (config.complexity, lambda: complexity(task)),
        "edit_distance": (config.edit_distance, lambda: edit_distance(task, references)),
        "halstead": (config.halstead, lambda: halstead(task)),
        "answer_diversity": (config.answer_diversity, lambda: answer_diversity(task, known())),
    }
    return {name: min(coefficient * value(), MAX_BONUS) for name, (coefficient, value) in raw.items() if coefficient}
