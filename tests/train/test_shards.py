"""Pieces of flat tensors in files: cut anywhere, read anywhere, and checked before they are trusted."""

import json
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save

from azr.errors import UserError
from azr.files import hash_file
from azr.train.shards import ShardReader, TensorSpec, shard_path, write_model, write_shard

WHOLE = {"long": torch.arange(10.0), "short": torch.tensor([7.0])}


def parts(size: int, ranks: int, rank: int) -> slice:
    share = -(-size // ranks)
    return slice(min(rank * share, size), min((rank + 1) * share, size))


def write(folder: Path, ranks: int, steps: float = 3.0) -> None:
    for rank in range(ranks):
        meta = {"ranks": ranks, "steps": steps, "who": rank}
        write_shard(folder, rank, meta, [(name, t[parts(len(t), ranks, rank)]) for name, t in WHOLE.items()])


@pytest.mark.parametrize("wrote", [1, 2, 3, 4])
def test_any_number_of_ranks_reads_what_any_number_wrote(tmp_path: Path, wrote: int) -> None:
    write(tmp_path, wrote)
    reader = ShardReader(tmp_path)
    assert [meta["who"] for meta in reader.metas] == list(range(wrote))
    reader.check({name: len(tensor) for name, tensor in WHOLE.items()})
    for (name, tensor), (reads, rank) in product(WHOLE.items(), [(n, k) for n in (1, 2, 3, 4) for k in range(n)]):
        own = parts(len(tensor), reads, rank)
        out = torch.zeros(own.stop - own.start)
        reader.read(name, own.start, out)
        assert torch.equal(out, tensor[own])


MODEL = {"a.é": torch.randn(3, 5).bfloat16(), "b": torch.tensor(2.0).bfloat16(), "c": torch.randn(4).bfloat16()}
SPECS = [TensorSpec(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in MODEL.items()]


def test_a_model_is_what_safetensors_writes_itself_or_several_files_with_an_index(tmp_path, monkeypatch) -> None:
    (written,) = write_model(tmp_path, SPECS, iter(MODEL.values()))
    assert written == hash_file(tmp_path / "model.safetensors")
    assert (tmp_path / "model.safetensors").read_bytes() == save(MODEL, {"format": "pt"})
    monkeypatch.setattr("azr.train.shards.MAX_MODEL_FILE_BYTES", 10)
    written = write_model(tmp_path, SPECS, iter(MODEL.values()))
    assert [Path(file.path).name for file in written] == [
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
    ]  # fmt: skip
    assert written == [hash_file(Path(file.path)) for file in written]
    index = json.loads(Path(written[-1].path).read_text())
    assert index["metadata"] == {"total_size": 40}
    for name, tensor in MODEL.items():
        assert torch.equal(load_file(tmp_path / index["weight_map"][name])[name], tensor)


def test_a_missing_or_cut_off_file_or_one_that_is_no_json_is_named(tmp_path: Path) -> None:
    def damage(path: Path) -> None:
        path.write_bytes(path.read_bytes().replace(b'{\\"ranks', b'{x\\"rank'))

    cuts = [lambda path, left=left: path.write_bytes(path.read_bytes()[:left]) for left in (0, 20, -1)]
    for rank in (0, 1):
        path = shard_path(tmp_path, rank)
        for spoil, said in ((Path.unlink, "missing"), *((cut, "damaged") for cut in cuts), (damage, "damaged")):
            write(tmp_path, 2)
            spoil(path)
            with pytest.raises(UserError, match=f"^{path} is {said}") as error:
                ShardReader(tmp_path)
            assert "\n" not in str(error.value)


def test_leftovers_of_more_ranks_are_ignored_and_files_of_two_saves_do_not_mix(tmp_path: Path) -> None:
    write(tmp_path, 3, steps=1.0)
    write(tmp_path, 2)
    reader = ShardReader(tmp_path)
    assert reader.ranks == 2
    with pytest.raises(UserError, match="another model: long has 10 elements there and 11 here"):
        reader.check({"long": 11, "short": 1})
    write(tmp_path / "later", 2, steps=4.0)
    shard_path(tmp_path / "later", 1).rename(shard_path(tmp_path, 1))
    with pytest.raises(UserError, match=r"rank_001\.safetensors is not of the same save"):
        ShardReader(tmp_path)


def test_a_folder_without_a_parent_is_not_made(tmp_path: Path) -> None:
    """A rank that is late must not bring back what its caller has given up and removed."""
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "gone" / "policy", 1)
