import gc
import multiprocessing
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from azr.cluster.weight_buckets import TensorSlot, WeightBucket, WeightDigest
from azr.cluster.weight_transfers import HostInbox, HostOutbox

MIB_OF_FLOATS = (1 << 20) // 4


def open_writer(mib: int = 1) -> closing[HostOutbox]:
    return closing(HostOutbox().open(mib << 20))


def map_bucket(bucket: WeightBucket) -> torch.Tensor:
    return HostInbox(torch.device("cpu")).take(bucket, keep=False)


def read_bucket(bucket: WeightBucket) -> list[tuple[str, torch.Tensor]]:
    return bucket.tensors(map_bucket(bucket))


def odd_tensors() -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(7, 13, generator=generator)
    return [
        ("bfloat16", wide.bfloat16()), ("scalar", torch.tensor(3.5, dtype=torch.float64)), ("empty", torch.empty(0, 4)),
        ("strided", wide.t()), ("bool", wide > 0), ("int8", torch.arange(-3, 4, dtype=torch.int8)),
        ("half", wide[:, ::3].half()), ("one", torch.ones(1, 1, 1, dtype=torch.int64)),
        ("fp8", wide.to(torch.float8_e4m3fn)),
    ]  # fmt: skip


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    def raw(t: torch.Tensor) -> torch.Tensor:
        return t.contiguous().reshape(-1).view(torch.uint8)

    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(raw(a), raw(b))


def test_round_trip_of_odd_shapes_and_types():
    with open_writer() as writer:
        (bucket,) = writer.pack(7, [odd_tensors()])
        received = read_bucket(bucket)
    assert bucket.last and bucket.index == 0 and bucket.version == 7
    assert bucket.nbytes == sum(t.nbytes for _, t in odd_tensors())
    assert [name for name, _ in received] == [name for name, _ in odd_tensors()]
    assert all(same_bytes(a, b) for (_, a), (_, b) in zip(received, odd_tensors(), strict=True))


def test_many_buckets_carry_a_running_digest_and_none_holds_tensors_of_two_groups():
    sent = [(f"w{i}", torch.randn(MIB_OF_FLOATS // 4)) for i in range(9)]
    received, running, buckets = [], WeightDigest(), []
    with open_writer() as writer:
        for bucket in writer.pack(1, [sent]):
            region = map_bucket(bucket)
            running.add(bucket.slots, region)
            received += [(name, view.clone()) for name, view in bucket.tensors(region)]
            assert running.hexdigest() == bucket.digest
            buckets.append(bucket)
    assert [b.index for b in buckets] == [0, 1, 2]
    assert [b.last for b in buckets] == [False, False, True]
    assert all(same_bytes(a, b) for (_, a), (_, b) in zip(received, sent, strict=True))
    groups = [[("a", torch.ones(5)), ("b", torch.ones(3))], [], [("c", torch.zeros(7))]]
    with open_writer() as writer:
        buckets = list(writer.pack(1, groups))
    assert [[slot.name for slot in bucket.slots] for bucket in buckets] == [["a", "b"], [], ["c"]]
    assert [bucket.last for bucket in buckets] == [False, False, True]


def test_a_tensor_that_fills_a_bucket_is_sent_alone_and_a_larger_one_is_refused():
    sent = [("small", torch.ones(5)), ("big", torch.randn(MIB_OF_FLOATS)), ("after", torch.zeros(2))]
    with open_writer() as writer:
        received = [(n, t.clone()) for bucket in writer.pack(1, [sent]) for n, t in read_bucket(bucket)]
        assert all(same_bytes(a, b) for (_, a), (_, b) in zip(received, sent, strict=True))
        with pytest.raises(AssertionError, match="big is larger than a bucket"):
            list(writer.pack(2, [[("small", torch.ones(5)), ("big", torch.randn(MIB_OF_FLOATS + 1))]]))


def digest_of(tensors: list[tuple[str, torch.Tensor]]) -> str:
    with open_writer() as writer:
        *_, last = writer.pack(1, [tensors])
    return last.digest


def test_digest_sees_order_names_shapes_types_and_bytes_and_nothing_that_the_block_held_before():
    a, b = torch.arange(16384.0), torch.ones(16384)  # 64 KiB each, and so a sum
    digests = {
        digest_of([("a", a), ("b", b)]), digest_of([("b", b), ("a", a)]), digest_of([("b", a), ("a", b)]),
        digest_of([("a", a.view(2, -1)), ("b", b)]), digest_of([("a", a.view(torch.int32)), ("b", b)]),
        digest_of([("a", a + 1), ("b", b)]), digest_of([("a", a)]),
    }  # fmt: skip
    assert len(digests) == 7
    assert digest_of([("a", a), ("b", b)]) in digests
    with open_writer() as writer:
        digests = {list(writer.pack(1, [odd_tensors()]))[-1].digest}
        writer.block.bytes.fill_(255)
        digests |= {list(writer.pack(1, [odd_tensors()]))[-1].digest}
    assert digests == {digest_of(odd_tensors())}
    # Sums see what moved between them and not within one.
    words = torch.arange(2 * 8192)
    one_of_each = words.clone()
    one_of_each[[0, 8192]] = words[[8192, 0]]
    two_of_one = words.clone()
    two_of_one[[0, 1]] = words[[1, 0]]
    assert digest_of([("w", one_of_each)]) != digest_of([("w", words)]) == digest_of([("w", two_of_one)])


class Operations(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts operations that run on a device, a kernel or a few each: all but those that make views."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += not function.is_view
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("tensors", [4, 400])
def test_a_bucket_takes_few_operations_however_many_tensors_it_holds(tensors: int):
    sent = [(f"w{i}", torch.randn(33, 8).bfloat16()) for i in range(tensors)]
    with open_writer() as writer:
        with Operations() as packing:
            buckets = list(writer.pack(1, [sent, sent]))
        with Operations() as receiving:
            digest = WeightDigest()
            for bucket in buckets:
                digest.add(bucket.slots, bucket.region(writer.block.bytes))
    assert digest.hexdigest() == buckets[-1].digest and len(buckets) == 2
    assert packing.count <= 2 * 7 and receiving.count <= 2 * 5


def _sum_in_another_process(bucket: WeightBucket, answers) -> None:
    ((_, view),) = read_bucket(bucket)
    answers.put(float(view.sum()))
    view.zero_()


def test_another_process_reads_but_cannot_write():
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with open_writer() as writer:
        (bucket,) = writer.pack(1, [[("w", torch.arange(10.0))]])
        child = context.Process(target=_sum_in_another_process, args=(bucket, answers))
        child.start()
        assert answers.get(timeout=60) == 45.0
        child.join()
        ((_, view),) = read_bucket(bucket)
        assert float(view.sum()) == 45.0


def blocks_mapped() -> int:
    return Path("/proc/self/maps").read_text().count("memfd:azr-weights")


def test_memory_is_freed_after_a_failure_and_a_closed_block_is_refused_in_one_sentence():
    def failing():
        yield [("w", torch.ones(3))]
        raise RuntimeError("a rank died")

    gc.collect()
    before = blocks_mapped()
    with pytest.raises(RuntimeError, match="a rank died"), open_writer() as writer:
        list(writer.pack(1, failing()))
    gc.collect()
    assert blocks_mapped() == before
    with open_writer() as writer:
        (bucket,) = writer.pack(1, [[("w", torch.ones(3))]])
    with pytest.raises(ValueError, match="same node"):
        read_bucket(replace(bucket, source={"path": bucket.source["path"] + "9999"}))


def damaged(tensor: torch.Tensor, byte: int) -> torch.Tensor:
    copy = tensor.clone()
    copy.view(torch.uint8)[byte] ^= 1
    return copy


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("nbytes", [1, 7, 8, 65_535, 65_536, 200_003])
def test_a_bit_flipped_anywhere_is_seen(full: bool, nbytes: int):
    def of(tensor: torch.Tensor) -> str:
        digest = WeightDigest(full=full)
        digest.add([TensorSlot("w", "uint8", (nbytes,), 0, nbytes)], tensor)
        return digest.hexdigest()

    sound = torch.randint(0, 256, (nbytes,), generator=torch.Generator().manual_seed(nbytes)).to(torch.uint8)
    assert of(sound) == of(sound.clone())
    assert of(sound) not in {of(damaged(sound, byte)) for byte in {0, nbytes // 2, nbytes - 1}}


def test_one_half_is_filled_while_the_other_is_read():
    sent = [(f"w{i}", torch.full((MIB_OF_FLOATS,), float(i))) for i in range(5)]
    with open_writer() as writer:
        buckets = writer.pack(1, [sent])
        before = next(buckets)
        for bucket in buckets:
            ((_, older),), ((_, newer),) = read_bucket(before), read_bucket(bucket)
            assert (float(older[0]), float(newer[0])) == (float(bucket.index - 1), float(bucket.index))
            before = bucket
    assert bucket.index == 4
