"""The store through which ranks find each other asks for no token, so it is where its ranks are and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import psutil
import pytest
import ray
import torch.distributed as dist

from azr.train.model_worker import ModelWorker
from playground.azr_14m_mini import config


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
