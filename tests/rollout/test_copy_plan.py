"""vLLM's own model, whose layers use their parameters as on a GPU, takes weights by a plan of copies."""

import os
import socket
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

from azr.cluster.weight_transfers import HostOutbox
from tests.cluster.test_weight_buckets import Operations

pytestmark = pytest.mark.long


class Worker:
    """One of a model's workers, and the weights that it was sent last."""

    def __init__(self, folder: str, rank: int, ranks: int, port: int) -> None:
        from vllm.config import set_current_vllm_config
        from vllm.distributed import init_distributed_environment, initialize_model_parallel
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.layers import linear, vocab_parallel_embedding
        from vllm.model_executor.model_loader import get_model

        from azr.rollout.weight_receiver import BucketWeightTransferEngine

        os.environ["VLLM_DIST_IDENT"] = str(port)
        platform = type("NoCpu", (type(linear.current_platform),), {"is_cpu": lambda self: False})
        for module in (linear, vocab_parallel_embedding):
            module.current_platform = platform()  # for layers that are not to pack their weights
        torch.accelerator.empty_cache = lambda: None  # which vLLM replaces in its own worker
        self.config = EngineArgs(
            model=folder, dtype="float32", max_model_len=64, tensor_parallel_size=ranks, enforce_eager=True,
            distributed_executor_backend="mp", weight_transfer_config={"backend": "azr"},
        ).create_engine_config()  # fmt: skip
        with set_current_vllm_config(self.config):
            init_distributed_environment(ranks, rank, f"tcp://127.0.0.1:{port}", rank, "gloo")
            initialize_model_parallel(ranks)
            self.model = get_model(vllm_config=self.config)
        self.receiver = BucketWeightTransferEngine(
            self.config.weight_transfer_config, self.config, torch.device("cpu"), self.model
        )

    def push(self, weights: Sequence[tuple[str, Tensor]], *, mib: int = 64, buckets: int | None = None) -> bool:
        """Send the weights, or the first `buckets` of them; returns whether they went by a plan."""
        self.receiver.start_weight_update()
        by_plan = self.receiver._plan is not None
        with closing(HostOutbox().open(mib << 20)) as writer:
            for bucket in writer.pack(1, [weights[:9], weights[9:]]):
                if bucket.index == buckets:
                    return by_plan
                self.receiver.update_weights({"bucket": msgspec.msgpack.encode(bucket)})
        self.receiver.finish_weight_update()
        self.problem = self.receiver.problem(bucket.digest)
        return by_plan

    def parameters(self) -> dict[str, Tensor]:
        return {name: parameter.clone() for name, parameter in self.model.named_parameters()}


def weights_of(folder: str, seed: int, dtype: torch.dtype = torch.float32) -> list[tuple[str, Tensor]]:
    from transformers import AutoModelForCausalLM

    generator = torch.Generator().manual_seed(seed)
    named = AutoModelForCausalLM.from_pretrained(folder).named_parameters()
    return [(name, torch.randn(each.shape, generator=generator).to(dtype)) for name, each in named]


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def _take_weights(rank: int, folder: str, ranks: int, port: int) -> None:
    worker = Worker(folder, rank, ranks, port)
    receiver = worker.receiver
    first, second, third = (weights_of(folder, seed) for seed in (1, 2, 3))
    assert not worker.push(third), "the first update shows what there is to copy"
    expected = worker.parameters()
    for mib, given in ((64, third), (1, first), (1, third)):  # buckets of another size need no other plan
        assert worker.push(given, mib=mib)
        assert worker.problem is None
        assert same(worker.parameters(), expected) == (given is third)
    assert worker.push(second, buckets=1) and worker.push(third) and same(worker.parameters(), expected)
    counted = Operations()
    with counted:
        worker.push(third)
    assert counted.count <= 2 * 14, f"{counted.count} operations for two buckets of {len(third)} tensors"
    assert worker.push(second[1:]) and worker.problem == f"these parameters were not sent: {second[0][0]}"
    with pytest.raises(ValueError, match="no weight"):
        worker.push([(first[0][0], first[0][1].double()), *first[1:]])
    with closing(HostOutbox().open(1 << 26)) as writer:
        (bucket,) = writer.pack(1, [first])
        writer.block.bytes[bucket.start + 1000] ^= 1
        worker.push(third)
        receiver.start_weight_update()
        with pytest.raises(ValueError, match="damaged"):
            receiver.update_weights({"bucket": msgspec.msgpack.encode(bucket)})
    assert same(worker.parameters(), expected), "what is damaged is not loaded"
    layer: Any = worker.model.model.layers[0].self_attn.qkv_proj
    layer.weight.data = layer.weight.data.clone()
    assert [worker.push(each) for each in (third, first)] == [False, True], "a plan is made anew for moved parameters"
    _goes_through_the_loader(worker, first, third)


def _goes_through_the_loader(worker: Worker, first: Any, third: Any) -> None:
    """Where the loader does more than copy, but not where copying converts a type."""
    short = [[(name, tensor.bfloat16()) for name, tensor in each] for each in (first, third)]
    worker.receiver._plan = None
    assert not worker.push(short[1])
    expected = worker.parameters()
    assert [worker.push(each) for each in short] == [True, True] and same(worker.parameters(), expected)
    layer: Any = worker.model.model.layers[1].mlp.down_proj

    class Packing(type(layer.quant_method)):  # type: ignore[misc]
        pass

    def scaled(parameter: Tensor, weight: Tensor) -> None:
        parameter.data.copy_(2 * weight)

    changes = [(layer, "cpu_linear", None), (layer, "quant_method", Packing())]
    norm: Any = worker.model.model.norm
    for changed, attribute, value in [*changes, (norm.weight, "weight_loader", scaled)]:
        before = changed.__dict__.get(attribute)
        setattr(changed, attribute, value)
        worker.receiver._plan = None
        assert [worker.push(each) for each in (first, third)] == [False, False], attribute
        delattr(changed, attribute) if before is None else setattr(changed, attribute, before)


@pytest.mark.parametrize("ranks", [1, 2])
def test_updates_after_the_first_are_copied_as_the_loader_would_load_them(ranks: int, tiny_model_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    torch.multiprocessing.spawn(_take_weights, (str(tiny_model_path), ranks, port), nprocs=ranks)
