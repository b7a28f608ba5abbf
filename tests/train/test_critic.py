"""The critic learns to predict returns; its step does not depend on ranks or micro-batches."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import torch

from azr.config import Config
from azr.records import Completion
from azr.train.learner import score, update_critic
from azr.train.policy import CriticWorker
from azr.train.worker_group import WorkerGroup
from tests.train.conftest import STEP_S, StartGroup, make_config, one_step, with_micro_batches


@pytest.fixture(scope="module")
def config(tiny_model_path: Path) -> Config:
    return make_config(tiny_model_path, grad_clip=1.0, weight_decay=0.0)


@pytest.fixture(scope="module")
def critic(start_group: StartGroup, config: Config) -> WorkerGroup:
    return asyncio.run(start_group("critic", CriticWorker, config, 2))


@pytest.fixture(scope="module")
def returns(completions: list[Completion]) -> torch.Tensor:
    """+1 for every token of even samples, -1 for odd ones."""
    lengths = [len(c.response_ids) for c in completions]
    return torch.cat([torch.full((length,), (-1.0) ** i) for i, length in enumerate(lengths)])


async def test_a_step_does_not_depend_on_micro_batches(critic, completions, returns, config, tmp_path) -> None:
    await critic.call("save_checkpoint", str(tmp_path), timeout_s=STEP_S)
    batch = one_step(completions, critic, config)
    columns = {"old_values": await score(critic, "values", batch, STEP_S), "returns": returns}
    norms, values = [], []
    for tokens in (40, 1000):
        await critic.call("load_checkpoint", str(tmp_path), timeout_s=STEP_S)
        cut = one_step(completions, critic, with_micro_batches(config, tokens))
        norms.append((await update_critic(critic, cut, columns, STEP_S))["grad_norm"])
        values.append(await score(critic, "values", batch, STEP_S))
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    torch.testing.assert_close(values[0], values[1], atol=1e-4, rtol=0)


async def test_loss_falls(critic, completions, returns, config) -> None:
    losses, batch = [], one_step(completions, critic, config)
    for _ in range(8):
        columns = {"old_values": await score(critic, "values", batch, STEP_S), "returns": returns}
        losses.append((await update_critic(critic, batch, columns, STEP_S))["loss"])
    assert losses[-1] < 0.5 * losses[0]
