"""The plan of a run: bytes, seconds, whether it fits, and why not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from azr.config import Config
from azr.plan.goals import as_configured, pushes_directly, with_goals
from azr.plan.inputs import GIB, Assumptions, ClusterSpec, Workload
from azr.plan.memory import EngineMemory, ModelRole, host_memory, model_roles, phases
from azr.plan.seconds import Seconds, StepTimes, seconds_of
from azr.plan.shapes import ModelShape


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run of `config` will be like on `nodes`."""

    config: Config
    nodes: ClusterSpec
    load: Workload
    roles: list[ModelRole]
    engine: EngineMemory
    memory: dict[str, dict[str, float]]
    """By phase: what takes how many bytes on the fullest GPU."""
    bounds: dict[str, Seconds]
    """By phase, at the assumed rates: what it waits for."""
    goal_bounds: dict[str, Seconds]
    """The same at the rates that are aimed at, see `azr.plan.goals`."""
    usable: float
    """Bytes of a GPU that the run may take."""
    host: dict[str, float]
    """Bytes of host memory per node."""

    @property
    def seconds(self) -> dict[str, float]:
        """By phase, at the assumed rates."""
        return {phase: seconds_of(bound) for phase, bound in self.bounds.items()}

    @property
    def goal_seconds(self) -> dict[str, float]:
        """By phase, at the rates that are aimed at."""
        return {phase: seconds_of(bound) for phase, bound in self.goal_bounds.items()}

    @property
    def peak(self) -> float:
        """Bytes taken of the fullest GPU."""
        return max(map(self.total, self.memory))

    def total(self, phase: str) -> float:
        """Bytes taken of the fullest GPU in a phase."""
        return sum(self.memory[phase].values())

    @property
    def problems(self) -> list[str]:
        """Why the run does not fit, a sentence each; empty when it fits."""
        return list(_problems(self))


def make_plan(config: Config, shape: ModelShape, nodes: ClusterSpec, assumed: Assumptions) -> Plan:
    """The plan for networks of this shape."""
    load, roles = Workload.of(config, assumed), model_roles(config, shape)
    engine = EngineMemory.of(config, shape, nodes, assumed)
    measured = as_configured(assumed, config)
    times, goal_times = (
        StepTimes(config=config, load=load, nodes=nodes, assumed=rates, direct_push=pushes_directly(config))
        for rates in (measured, with_goals(measured, config, shape))
    )
    return Plan(
        config=config,
        nodes=nodes,
        load=load,
        roles=roles,
        engine=engine,
        memory=phases(config, roles, engine, load, nodes, assumed),
        bounds=times.by_phase(roles, engine),
        goal_bounds=goal_times.by_phase(roles, engine),
        usable=(nodes.gpu_memory_gib - assumed.reserved_gib) * GIB,
        host=host_memory(config, roles, nodes, assumed),
    )


def _problems(plan: Plan) -> Iterator[str]:
    config, nodes = plan.config, plan.nodes
    if config.num_gpus > nodes.total_gpus:
        yield f"it asks for {config.num_gpus} GPUs and there are {nodes.total_gpus}"
    if config.rollout.tensor_parallel > nodes.gpus:
        yield f"an engine needs {config.rollout.tensor_parallel} GPUs of one node, which has {nodes.gpus}"
    for phase in plan.memory:
        if plan.total(phase) > plan.usable:
            yield f"{phase} takes {plan.total(phase) / GIB:.1f} GiB of {plan.usable / GIB:.1f}"
    kv_tokens, longest = plan.engine.kv_tokens, config.max_trajectory_tokens
    if kv_tokens < longest:
        yield f"an engine's KV cache holds {kv_tokens} tokens, less than one trajectory of {longest}"
    host = sum(plan.host.values())
    if nodes.host_memory_gib is not None and host > nodes.host_memory_gib * GIB:
        parts = " and ".join(f"{what} {size / GIB:.0f}" for what, size in plan.host.items() if size)
        yield f"a node's {nodes.host_memory_gib:g} GiB of host memory are less than {host / GIB:.0f} GiB: {parts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """The plan in numbers, such as a benchmark prints beside what it measured."""

    seconds: dict[str, float]
    """By phase, and their sum as `step`, at the rates that were measured."""
    goal_seconds: dict[str, float]
    """The same at those that are aimed at: no measurement."""
    gpu_gib: dict[str, dict[str, float]]
    """By phase: what takes how many GiB of the fullest GPU, and their sum as `total`."""
    host_gib: float
    """Per node."""


def predicted(config: Config, shape: ModelShape, nodes: ClusterSpec, assumed: Assumptions) -> Prediction:
    """What the plan says of a step of `config`."""
    plan = make_plan(config, shape, nodes, assumed)
    memory = {phase: {what: size / GIB for what, size in parts.items()} for phase, parts in plan.memory.items()}
    return Prediction(
        seconds=plan.seconds | {"step": sum(plan.seconds.values())},
        goal_seconds=plan.goal_seconds | {"step": sum(plan.goal_seconds.values())},
        gpu_gib={phase: parts | {"total": sum(parts.values())} for phase, parts in memory.items()},
        host_gib=sum(plan.host.values()) / GIB,
    )
