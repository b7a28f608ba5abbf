from __future__ import annotations

from itertools import product

from azr.rollout.engine_group import engine_seed


def test_no_engine_starts_as_another_one_did() -> None:
    """Neither its neighbours, nor the one that it replaces, nor its own first life before a run was resumed."""
    lives = list(product((1, 2), (0, 1), (0, 3), (0, 1)))
    seeds = {engine_seed(*life) for life in lives}
    assert len(seeds) == len(lives) and all(0 <= seed < 2**32 for seed in seeds)
