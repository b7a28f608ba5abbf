"""Which way weights take, and that what is said to vLLM, CUDA and NCCL has the form that they want."""

import inspect
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

import pytest
import torch

from azr.cluster import weight_transfers
from azr.cluster.push_choice import TRANSFERS, decide_push
from azr.cluster.weight_buckets import Inbox, Outbox
from azr.cluster.weight_transfers import INBOXES, OUTBOXES
from azr.config import ClusterConfig, Config, RolloutConfig, TrainConfig
from azr.errors import UserError
from tests.cluster.receiving_engine import ipc_outbox


@pytest.mark.parametrize(
    "device, colocate, engines, chosen",
    [
        ("cpu", True, 1, "host"), ("cpu", False, 1, "host"), ("cuda", True, 1, "ipc"), ("cuda", False, 1, "nccl"),
        ("cuda", True, 5, "host"),
    ],
)  # fmt: skip
def test_auto_takes_the_fastest_way_that_is_open(device: Any, colocate: bool, engines: int, chosen: Any) -> None:
    for push in ("auto", chosen):
        cluster = ClusterConfig(push=push, colocate=colocate)
        config = Config(cluster=cluster, rollout=RolloutConfig(engines=engines))
        assert decide_push(config, device).cluster.push == chosen


def test_a_closed_way_is_refused_when_the_device_is_known() -> None:
    config = Config(cluster=ClusterConfig(push="ipc"), rollout=RolloutConfig(engines=4, tensor_parallel=2))
    config = replace(config, train=TrainConfig(data_parallel=8))
    assert decide_push(config, config.train.device).cluster.push == "ipc"
    assert decide_push(config, "cuda").cluster.push == "ipc"
    with pytest.raises(UserError, match=r"^cluster.push=ipc is for GPUs, and this run is on CPUs: [^.]*auto"):
        decide_push(config, "cpu")


def test_every_way_that_a_config_may_name_has_both_ends() -> None:
    assert set(get_args(get_type_hints(ClusterConfig)["push"])) == {"auto", *TRANSFERS}
    cpu = torch.device("cpu")
    for transfer in TRANSFERS:
        outbox = OUTBOXES[transfer](cpu, None, 1)
        assert isinstance(INBOXES[transfer](cpu), Inbox) and isinstance(outbox, Outbox)
        assert outbox.transfer == transfer


@pytest.mark.parametrize("gpus", [8, 512])
def test_all_gpus_handles_are_sent_once_in_a_push(gpus: int) -> None:
    outbox = ipc_outbox("GPU 0", torch.device("cpu")).open(64)
    assert outbox.block is not None
    outbox.block.source |= {f"GPU {number}": "handle" for number in range(1, gpus)}
    first, *others = outbox.pack(1, [[("a", torch.ones(4))], [("b", torch.ones(4))], [("c", torch.ones(4))]])
    assert len(first.source) == gpus + 1 and [bucket.source for bucket in others] == [{}, {}]


def test_vllm_is_asked_for_a_group_with_the_right_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine of two GPUs that begins at rank 3: its second worker is number 4 of 5."""
    from vllm.distributed.device_communicators import pynccl_wrapper
    from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
    from vllm.distributed.weight_transfer import nccl_common

    joined: list[tuple[Any, ...]] = []

    class Library:
        def ncclGetUniqueId(self) -> pynccl_wrapper.ncclUniqueId:
            return pynccl_wrapper.ncclUniqueId.from_buffer_copy(raw)

    def join(group_id: bytes, rank: int, world_size: int, device: int) -> None:
        joined.append((group_id, rank, world_size, device))

    raw = bytes(range(128, 256))
    inspect.signature(nccl_common.uid_init_process_group).bind(raw, 0, 2, 0)
    monkeypatch.setattr(nccl_common, "uid_init_process_group", join)
    monkeypatch.setattr(pynccl_wrapper, "NCCLLibrary", Library)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 7)
    group_id = weight_transfers.Group.new_id()
    weight_transfers.Group.join(group_id, 5)
    second = SimpleNamespace(data_parallel_index=0, world_size=2, rank=1)
    weight_transfers.Group.join(group_id, 5, 3, second)
    assert joined == [(raw, 0, 5, 7), (raw, 4, 5, 7)]
    inspect.signature(PyNcclCommunicator.broadcast).bind(None, torch.ones(1), src=0, stream=None)
    inspect.signature(PyNcclCommunicator.destroy).bind(None)


def test_the_runtimes_calls_take_as_many_arguments_as_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """By vLLM's declarations of the same functions; a handle survives as text."""
    raw = bytes(range(192, 256))
    handle = weight_transfers._Handle.from_buffer_copy(raw)
    assert bytes(weight_transfers._Handle.from_buffer_copy(bytes.fromhex(bytes(handle).hex()))) == raw
    from vllm.distributed.device_communicators.cuda_wrapper import CudaRTLibrary

    declared = {function.name: len(function.argtypes) for function in CudaRTLibrary.exported_functions}
    called: dict[str, int] = {}
    monkeypatch.setattr(weight_transfers, "_call", lambda function, *args: called.update({function: len(args)}))
    monkeypatch.setattr(
        torch, "as_tensor", lambda memory, device: torch.empty(memory.__cuda_array_interface__["shape"])
    )
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    block = weight_transfers.CudaBlock(64, torch.device("cpu"))
    weight_transfers.CudaBlock(64, torch.device("cpu"), block.handle).close()
    block.close()
    others = {name: count for name, count in called.items() if declared.get(name) != count}
    assert others == {"cudaIpcCloseMemHandle": 1}, "vLLM never closes one"
    assert len(called) == 5
