"""What needs no process of its own: the rate's schedule, random states, the store of the ranks."""

import json
import random
from dataclasses import replace

import numpy as np
import psutil
import pytest
import ray
import torch
import torch.distributed as dist

from azr.config import TrainConfig
from azr.train import zero3
from azr.train.model_worker import ModelWorker
from azr.train.state import random_state, restore_random_state
from azr.train.zero3 import lr_lambda
from playground.azr_14m_mini import config
from playground.orz_7b_ppo import config as orz_7b_ppo


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
    assert [lr_lambda(step, train, mini_batches=1) for step in range(7)] == expected


def test_decay_counts_training_steps_however_many_optimizer_steps_a_model_takes_in_each() -> None:
    train = replace(orz_7b_ppo.train, decay_steps=950)
    critic_steps = orz_7b_ppo.algorithm.critic_mini_batches
    assert orz_7b_ppo.algorithm.policy_mini_batches == 1 and critic_steps > 1 and train.warmup_steps == 50
    for step in (4, 62, 63, 500, 949):
        # Optimizer steps of a model before this training step, of which the warm-up takes 50 of either model.
        critic, policy = (lr_lambda(train.warmup_steps + step * each, train, each) for each in (critic_steps, 1))
        assert critic == policy == 1 - step / 950
    for each in (critic_steps, 1):
        assert lr_lambda(train.warmup_steps + 950 * each, train, each) == 0
        assert lr_lambda(24, train, each) == 0.5, "warm-up is of optimizer steps"


def test_random_states_come_back_and_hold_nothing_that_differs_between_runs() -> None:
    torch.manual_seed(5)
    state = json.loads(json.dumps(random_state(torch.device("cpu"))))
    first = torch.randn(3)
    assert not torch.equal(torch.randn(3), first)
    restore_random_state(state, torch.device("cpu"))
    assert torch.equal(torch.randn(3), first)
    random.random(), np.random.normal(), torch.manual_seed(5)  # neither of the first two is seeded
    assert random_state(torch.device("cpu")) == state


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"], ids=["one machine", "a cluster"])
def test_it_listens_on_one_interface(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.5")  # of this machine, and not its first
    train = replace(config.train, dtype="float32")
    ours = replace(config, train=train, cluster=replace(config.cluster, address=address))
    worker = ModelWorker("policy", 0, 1, "cpu", ours)
    host, port = worker.create_store()
    listening = psutil.Process().net_connections(kind="tcp")
    hosts = [each.laddr.ip for each in listening if each.status == psutil.CONN_LISTEN and each.laddr.port == port]
    assert hosts == [host] == ["127.0.0.1" if address is None else "127.0.0.5"]
    peer = dist.TCPStore(host, port, is_master=False)
    peer.set("asked", "answered")
    assert peer.get("asked") == b"answered"


@pytest.mark.parametrize("rank, names", [(0, ["weight"]), (1, [])])
def test_whole_weights_are_read_by_one_rank_and_sent_by_none(rank, names, monkeypatch) -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3))
    weight.ds_tensor, weight.ds_shape = weight.data.flatten(), weight.shape
    monkeypatch.setattr(zero3.dist, "get_rank", lambda: rank)
    monkeypatch.setattr(zero3.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(zero3.dist, "gather", None)
    found = dict(zero3.gather_on_host([("weight", weight)], 1 << 20, torch.float32, lambda x: x, None, is_whole=True))
    assert list(found) == names and all(torch.equal(each, weight) for each in found.values())
