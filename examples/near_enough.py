"""A grader of one's own: a number is right when it is within one part in a hundred. docs/extending.md says more."""

import re


def grade(row, response):
    """True, False, or None where the response states no number."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", response)
    return abs(float(numbers[-1]) - row["answer"]) <= 0.01 * abs(row["answer"]) if numbers else None
