"""What needs no process of its own around DeepSpeed."""

from __future__ import annotations

import pytest

from azr.config import TrainConfig
from azr.train.zero3 import lr_lambda


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1, 1]),
        ({"warmup_steps": 2}, [0.5, 1, 1, 1, 1, 1, 1]),
        ({"decay_steps": 4}, [1, 0.75, 0.5, 0.25, 0, 0, 0]),
        ({"warmup_steps": 2, "decay_steps": 4}, [0.5, 1, 1, 0.75, 0.5, 0.25, 0]),
    ],
)
def test_the_rate_warms_up_and_falls(schedule: dict[str, int], expected: list[float]) -> None:
    train = TrainConfig(**schedule)
    assert [lr_lambda(step, train) for step in range(7)] == expected
