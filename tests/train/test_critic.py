"""The critic learns to predict returns."""

import pytest
import torch

from azr.train.learner import score, update_critic
from azr.train.policy import CriticWorker
from tests.train.conftest import STEP_S, make_config, one_step

pytestmark = pytest.mark.long


async def test_loss_falls(lend_group, tiny_model_path, completions) -> None:
    """The return of every token is 1 in even samples and -1 in odd ones."""
    config = make_config(tiny_model_path, grad_clip=1.0, weight_decay=0.0)
    critic = await lend_group("critic", CriticWorker, config, 2)
    returns = torch.cat([torch.full((c.num_sampled,), (-1.0) ** i) for i, c in enumerate(completions)])
    losses, batch = [], one_step(completions, critic, config)
    for _ in range(8):
        columns = {"old_values": await score(critic, "values", batch, STEP_S), "returns": returns}
        losses.append((await update_critic(critic, batch, columns, STEP_S))["loss"])
    assert losses[-1] < 0.5 * losses[0]
