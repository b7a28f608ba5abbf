"""A reward function as verl takes it. docs/coming_from.md says how a run takes it."""

import re


def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    """1 for the right number after ####, 0.1 for another one there, else 0."""
    found = re.findall(r"#### (-?[\d.,]+)", solution_str)
    right = bool(found) and found[-1].replace(",", "") == ground_truth
    return {"score": 1.0 if right else 0.1 * bool(found), "acc": right, "pred": found[-1] if found else ""}
