"""Reward functions as TRL's GRPOTrainer takes them. docs/coming_from.md says how a run takes them."""

import asyncio
import re


def accuracy(completions, solution, **kwargs):
    """1 where the last number of a completion is the solution, else 0."""
    texts = [turns[0]["content"] for turns in completions]
    found = [re.findall(r"-?\d+", text)[-1:] for text in texts]
    return [float(numbers == [right]) for numbers, right in zip(found, solution, strict=True)]


async def brevity(prompts, completions, **kwargs):
    """Minus one hundredth of the completion's characters."""
    await asyncio.sleep(0)
    return [-len(turns[0]["content"]) / 100 for turns in completions]


def hard_ones(completions, solution, level, **kwargs):
    """2 or -1 for rows of a high level, and no reward for the others."""
    rights = accuracy(completions, solution)
    return [None if each < 2 else 3 * right - 1 for each, right in zip(level, rights, strict=True)]
