"""Seeded programs of the size and habits that language models write, for timing the executor."""

from __future__ import annotations

import random
from dataclasses import dataclass

_BLOCKS = (
    """    counts = {{}}
    for value in items:
        key = value % {a}
        counts[key] = counts.get(key, 0) + 1
    items = sorted(items, key=lambda value: (counts[value % {a}], value))
""",
    """    total = {b}
    for index, value in enumerate(items):
        if (value + index) % {a} == 0:
            total += value * {c}
        else:
            total -= index
    items.append(total)
""",
    """    items = [value * {b} + {c} for value in items if value % {a} != 1]
    items = items or [{c}]
""",
    """    seen, unique = set(), []
    for value in items:
        if value % {m} not in seen:
            seen.add(value % {m})
            unique.append(value)
    items = unique
""",
    """    text = '-'.join(str(value) for value in items)
    digits = [int(char) for char in text if char.isdigit()]
    items = [sum(digits[start:start + {a}]) for start in range(0, len(digits), {a})]
""",
    """    low, high = 0, {m}
    while low < high:
        middle = (low + high) // 2
        if middle * middle < sum(items) % {m}:
            low = middle + 1
        else:
            high = middle
    items.insert(0, low)
""",
    """    table = [0] * {m}
    for value in items:
        table[value % {m}] = max(table[value % {m}], value)
    items = [value for value in table if value > {b}] or items
""",
    """    previous, current = {b}, {c}
    for _ in range({a} * 4):
        previous, current = current, (previous + current) % 1009
    items = [value ^ current for value in items]
""",
)
_HANGS = "    while items is not None:\n        total = len(items)\n"
_HOARDS = "    while True:\n        items = items + items\n"
_FAILS = "    return items[len(items) + {b}]\n"


@dataclass(frozen=True, slots=True)
class Program:
    """A program with argument texts, and what it is expected to end in: ``ok``, or its fault."""

    source: str
    inputs: tuple[str, ...]
    ending: str


def programs(count: int, *, inputs: int = 1, bad_share: float = 0.0, seed: int = 1) -> list[Program]:
    """Different programs with a median near 400 characters.

    Of the bad ones two fifths never end, two fifths raise and one fifth hoards memory, in shuffled places.
    """
    rng = random.Random(seed)
    bad = round(count * bad_share)
    endings = [("timeout", "raised", "timeout", "raised", "memory")[n % 5] for n in range(bad)] + ["ok"] * (count - bad)
    rng.shuffle(endings)
    return [_program(rng, ending, inputs) for ending in endings]


def _program(rng: random.Random, ending: str, inputs: int) -> Program:
    # A number of its own keeps every program different from the others.
    body = f"def f(numbers, shift):\n    items = [number + shift % {rng.randint(2, 10**6)} for number in numbers]\n"
    for block in rng.sample(_BLOCKS, 2 if ending != "ok" else rng.choice((1, 2, 2, 2, 3))):
        body += block.format(**_constants(rng))
    body += {"timeout": _HANGS, "memory": _HOARDS, "raised": _FAILS.format(**_constants(rng)), "ok": ""}[ending]
    texts = tuple(
        f"{[rng.randint(0, 99) for _ in range(rng.randint(4, 12))]}, {rng.randint(1, 50)}" for _ in range(inputs)
    )
    return Program(body + "    return items\n", texts, ending)


def _constants(rng: random.Random) -> dict[str, int]:
    return {"a": rng.randint(2, 7), "b": rng.randint(2, 9), "c": rng.randint(1, 30), "m": rng.randint(11, 60)}
