from __future__ import annotations

import pytest

from azr.runs.metrics import PhaseClock
from tests.runs.factory import Clock


def test_overlapping_work_in_a_phase_counts_once() -> None:
    wall, cpu = Clock(), Clock()
    clock = PhaseClock(wall=wall, cpu=cpu)
    first, second, other = clock.phase("solve"), clock.phase("solve"), clock.phase("propose")
    first.__enter__()
    wall.now = 1.0
    second.__enter__()
    other.__enter__()
    wall.now = 3.0
    first.__exit__(None, None, None)
    wall.now = 4.0
    second.__exit__(None, None, None)
    wall.now = 6.0
    with clock.phase("solve"):
        wall.now = 7.0
    other.__exit__(None, None, None)
    cpu.now, wall.now = 2.0, 8.0
    timing = clock.step_timing()
    assert timing.seconds == {"solve": 5.0, "propose": 6.0}
    assert timing.wall_s == 8.0 and timing.cpu_share == 0.25


def test_time_that_overlapped_phases_cost_alone_is_told() -> None:
    wall = Clock()
    clock = PhaseClock(overlapped=("verify", "validate"), wall=wall, cpu=Clock())
    with clock.phase("solve"):
        with clock.phase("verify"):
            wall.now = 3.0
        wall.now = 4.0
    with clock.phase("verify"), clock.phase("validate"):
        wall.now = 6.0
    wall.now = 7.0
    assert clock.step_timing().exposed_s == 2.0
    with clock.phase("solve"):
        wall.now = 9.0
    assert clock.step_timing().exposed_s == 0.0


def test_a_phase_across_steps_is_split_between_them() -> None:
    wall = Clock()
    clock = PhaseClock(wall=wall, cpu=Clock())
    with clock.phase("solve"):
        wall.now = 2.0
        assert clock.step_timing().seconds == {"solve": 2.0}
        wall.now = 5.0
    assert clock.step_timing().seconds == {"solve": 3.0}
    assert clock.step_timing().seconds == {}


def test_a_phase_that_fails_is_over() -> None:
    wall = Clock()
    clock = PhaseClock(wall=wall, cpu=Clock())
    with pytest.raises(RuntimeError), clock.phase("solve"):
        wall.now = 1.0
        raise RuntimeError
    wall.now = 9.0
    assert clock.step_timing().seconds == {"solve": 1.0}


def test_learning_beside_play_is_told() -> None:
    wall = Clock()
    clock = PhaseClock(wall=wall, cpu=Clock())
    with clock.phase("train policy"):
        wall.now = 1.0
        with clock.phase("verify"):
            wall.now = 3.0
        with clock.phase("solve"):
            wall.now = 7.0
    assert clock.step_timing().learned_beside_s == 4.0
    assert clock.step_timing().learned_beside_s == 0.0
