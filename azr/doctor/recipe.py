"""Whether a recipe finds here what it needs: GPUs, memory, model files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from azr.config import Config
from azr.doctor import model
from azr.doctor.findings import Finding, Section, missing, ok, warning
from azr.doctor.gpus import Gpus
from azr.doctor.model import Hub
from azr.errors import UserError
from azr.hardware import compute_type
from azr.plan.inputs import Assumptions, ClusterSpec
from azr.plan.memory import ModelRole, element_bytes, model_roles
from azr.plan.planner import plan_run
from azr.plan.shapes import ModelShape, shape_of

GIB = 2**30
_STATE = 12
"""Bytes per trained parameter in a checkpoint: a float32 copy and two moments."""
_CPU_STATE = 20
"""Bytes per trained parameter of a CPU run: those, float32 gradients and the weights, at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Here:
    """What this machine has."""

    gpus: Gpus
    memory: int
    """Bytes."""


def check(config: Config, name: str, hub: Hub, here: Here | None) -> Section:
    """`here`: where the run's actors will live; None when that is on a cluster, which has a check of its own."""
    findings = []
    if here is not None:
        takes = _on_gpus(config, name, here) if _takes_gpus(config, here.gpus) else _on_cpu(config, here.memory)
        findings.append(takes)
    return Section(title=f"Recipe {name}", findings=[*findings, *_models(config, hub)])


def checkpoint_bytes(config: Config) -> float:
    """Of one checkpoint of the run; 0 when the shape of a model is not known."""
    found = _roles(config)
    trained = sum(_STATE * role.parameters for role in found if role.trains)
    return trained + (element_bytes(config.train) * found[0].parameters if found else 0)


def _models(config: Config, hub: Hub) -> Iterator[Finding]:
    paths = {"model.path": config.model.path}
    for knob, path in paths.items():
        shape = _shape(path)
        expected = element_bytes(config.train) * shape.parameters if shape is not None else None
        yield model.check(path, knob, expected, hub)


def _takes_gpus(config: Config, gpus: Gpus) -> bool:
    return config.train.device == "cuda" or (config.train.device == "auto" and bool(gpus.found))


def _on_gpus(config: Config, name: str, here: Here) -> Finding:
    wanted, present = config.num_gpus, len(here.gpus.found)
    if not present:
        return missing(
            "GPUs", f"it asks for {wanted} and there is none: see the GPUs above, or set train.device to cpu"
        )
    # Counts are certain; bytes rest on the plan's assumptions.
    short = missing if wanted > present else warning
    nodes = ClusterSpec(gpus=present, gpu_memory_gib=here.gpus.memory_gib, host_memory_gib=here.memory / GIB)
    try:
        plan, suggestions = plan_run(config, nodes, Assumptions())
    except UserError as error:
        return short("GPUs", f"it asks for {wanted} and there are {present}; whether it fits is not known: {error}")
    if not plan.problems:
        return ok("GPUs", f"it takes {wanted} of {present}, {plan.peak / GIB:.0f} GiB of the fullest, by the plan")
    options = " ".join(suggestion.option for suggestion in suggestions)
    more = f"azr plan {name} --gpus {present} --gpu-memory {here.gpus.memory_gib:.0f} says more"
    return short("GPUs", f"{'; '.join(plan.problems)}: {f'try {options}; {more}' if options else more}")


def _on_cpu(config: Config, memory: int) -> Finding:
    needed = sum(_CPU_STATE * role.parameters for role in _roles(config) if role.trains)
    if needed > memory:
        return missing(
            "GPUs",
            f"there is none, and on the CPU its trainers alone take {needed / GIB:.0f} GiB of {memory / GIB:.0f}: run "
            f"it on a machine with {config.num_gpus} GPUs",
        )
    return ok("GPUs", f"none; it runs on the CPU, in {compute_type(config.train.dtype, 'cpu')}")


def _roles(config: Config) -> list[ModelRole]:
    """Those of known shape: all or none."""
    policy = _shape(config.model.path)
    return model_roles(config, policy) if policy is not None else []


def _shape(path: str) -> ModelShape | None:
    try:
        return shape_of(path)
    except UserError:
        return None
