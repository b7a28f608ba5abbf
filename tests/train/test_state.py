"""Random states go to disk as JSON and come back; what else a state holds is tested on real ranks."""

from __future__ import annotations

import json
import random

import numpy as np
import torch

from azr.train.state import random_state, restore_random_state

CPU = torch.device("cpu")


def test_random_states_come_back() -> None:
    def draw() -> tuple[object, ...]:
        return random.random(), random.gauss(), np.random.normal(), tuple(torch.randn(3).tolist())

    random.gauss(), np.random.normal()  # both keep a second number for the next call
    state = json.loads(json.dumps(random_state(CPU)))
    first = draw()
    assert draw() != first
    restore_random_state(state, CPU)
    assert draw() == first
