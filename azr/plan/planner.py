"""The plan of a run: bytes, seconds, whether it fits, and what to change when it does not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from azr.config import Config
from azr.plan import seconds
from azr.plan.assumptions import GIB, Assumptions, Machine
from azr.plan.batch import Batch
from azr.plan.memory import EngineMemory, Role, host_states, phases, roles
from azr.plan.shapes import ModelShape, shape_of

_SHARES = tuple(share / 100 for share in range(90, 5, -5))
"""Values of rollout.gpu_memory_utilization that are tried."""
_MOST_GPUS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run of `config` will be like on `machine`."""

    config: Config
    machine: Machine
    batch: Batch
    roles: list[Role]
    engine: EngineMemory
    memory: dict[str, dict[str, float]]
    """By phase: what takes how many bytes on the fullest GPU."""
    seconds: dict[str, float]
    """By phase, as expected."""
    usable: float
    """Bytes of a GPU that the run may take."""
    host: float
    """Bytes of host memory per node that optimisers take."""

    @property
    def gpus(self) -> int:
        return self.config.num_gpus

    @property
    def peak(self) -> float:
        return max(sum(parts.values()) for parts in self.memory.values())

    @property
    def problems(self) -> list[str]:
        """Why the run does not fit, a sentence each; empty when it fits."""
        return list(_problems(self))


def plan_run(
    config: Config, machine: Machine, assumed: Assumptions, model_config: str | None = None
) -> tuple[Plan, list[Advice]]:
    """The plan, and what to change where it does not fit; `model_config` is the policy's config.json.

    Raises ValueError when the shape of a model is not known.
    """
    shape = shape_of(config.model.path, model_config)
    plan = make(config, shape, machine, assumed)
    return plan, advise(plan, shape, assumed)


def make(
    config: Config, shape: ModelShape, machine: Machine, assumed: Assumptions, critic: ModelShape | None = None
) -> Plan:
    """The plan for a policy of `shape`; the critic's backbone has the same one when not given."""
    batch, found = Batch.of(config, assumed), roles(config, shape, critic or shape)
    engine = EngineMemory.of(config, shape, machine, assumed)
    algorithm = config.algorithm
    took = {
        "rollout": seconds.rollout(config, shape, engine, batch, assumed),
        "score": seconds.score(found, config, batch, machine, assumed),
    }
    for role in found:
        if role.trains:
            updates = algorithm.policy_mini_batches if role.name == "policy" else algorithm.critic_mini_batches
            took[f"train {role.name}"] = seconds.train(role, updates, config, batch, machine, assumed)
    took["push"] = seconds.push(found[0], config, assumed)
    ranks_per_node = min(config.train.data_parallel, machine.gpus)
    return Plan(
        config=config,
        machine=machine,
        batch=batch,
        roles=found,
        engine=engine,
        memory=phases(config, found, engine, batch, assumed),
        seconds=took,
        usable=(machine.gpu_memory_gib - assumed.reserved_gib) * GIB,
        host=ranks_per_node * sum(host_states(role, config.train) for role in found),
    )


def _problems(plan: Plan) -> Iterator[str]:
    machine, present = plan.machine, plan.machine.gpus * plan.machine.nodes
    if plan.gpus > present:
        yield f"it asks for {plan.gpus} GPUs and there are {present}"
    if plan.config.rollout.tensor_parallel > machine.gpus:
        yield f"an engine needs {plan.config.rollout.tensor_parallel} GPUs of one node, which has {machine.gpus}"
    for phase, parts in plan.memory.items():
        if (total := sum(parts.values())) > plan.usable:
            yield f"{phase} takes {total / GIB:.1f} GiB of {plan.usable / GIB:.1f}"
    if plan.engine.kv_tokens < plan.batch.longest:
        yield (
            f"an engine's KV cache holds {plan.engine.kv_tokens} tokens, less than one trajectory of "
            f"{plan.batch.longest}"
        )
    if machine.host_memory_gib is not None and plan.host > machine.host_memory_gib * GIB:
        yield f"optimisers take {plan.host / GIB:.0f} GiB of a node's {machine.host_memory_gib:g} GiB of host memory"


@dataclass(frozen=True, slots=True)
class Advice:
    """One change, on top of those before it."""

    option: str
    """As on the command line."""
    plan: Plan
    """After the change."""


def advise(plan: Plan, shape: ModelShape, assumed: Assumptions, critic: ModelShape | None = None) -> list[Advice]:
    """Changes in the order they are worth trying, until the run fits; those that do not help are left out.

    The last one's plan may still not fit: then these knobs do not suffice.
    """
    taken: list[Advice] = []
    for turn in (_gpus_there_are, _offload, _checkpoint, _micro_batch, _engine_share, _more_gpus):
        if not plan.problems:
            break
        tried = [Advice(option, make(config, shape, on, assumed, critic)) for option, config, on in turn(plan)]
        ends_it = [advice for advice in tried if not advice.plan.problems]
        best = ends_it[0] if ends_it else min(tried, key=lambda advice: _badness(advice.plan), default=None)
        if best is not None and _badness(best.plan) < _badness(plan):
            plan = best.plan
            taken.append(best)
    return taken


def _badness(plan: Plan) -> tuple[bool, int, float]:
    """Comparable: GPUs that do not exist are worst; then fewer problems, then fewer bytes too many."""
    missing = plan.gpus > plan.machine.gpus * plan.machine.nodes
    return (missing, len(plan.problems), max(0.0, plan.peak - plan.usable))


Turn = Iterator[tuple[str, Config, Machine]]


def _gpus_there_are(plan: Plan) -> Turn:
    """As many as divide the batch."""
    present = plan.machine.gpus * plan.machine.nodes
    if plan.gpus > present:
        ranks = max(number for number in range(1, _trainers(plan, present) + 1) if plan.batch.sure % number == 0)
        yield _spread(plan, ranks, math.gcd(plan.config.rollout.tensor_parallel, plan.machine.gpus), plan.machine)


def _offload(plan: Plan) -> Turn:
    if not plan.config.train.offload_optimizer:
        yield "--train.offload-optimizer", _with_train(plan.config, offload_optimizer=True), plan.machine


def _checkpoint(plan: Plan) -> Turn:
    if not plan.config.train.gradient_checkpointing:
        yield "--train.gradient-checkpointing", _with_train(plan.config, gradient_checkpointing=True), plan.machine


def _micro_batch(plan: Plan) -> Turn:
    least = plan.batch.longest
    if plan.config.train.tokens_per_micro_batch > least:
        option = f"--train.tokens-per-micro-batch {least}"
        yield option, _with_train(plan.config, tokens_per_micro_batch=least), plan.machine


def _engine_share(plan: Plan) -> Turn:
    """The nearest share first."""
    now = plan.config.rollout.gpu_memory_utilization
    for share in sorted(_SHARES, key=lambda share: abs(share - now)):
        rollout = replace(plan.config.rollout, gpu_memory_utilization=share)
        yield f"--rollout.gpu-memory-utilization {share:g}", replace(plan.config, rollout=rollout), plan.machine


def _more_gpus(plan: Plan) -> Turn:
    """Twice as many, again and again; nodes stay as large as they are."""
    gpus = max(plan.gpus, plan.machine.gpus * plan.machine.nodes)
    while (gpus := 2 * gpus) <= _MOST_GPUS and plan.batch.sure % _trainers(plan, gpus) == 0:
        machine = replace(plan.machine, nodes=-(-gpus // plan.machine.gpus))
        yield _spread(plan, _trainers(plan, gpus), plan.config.rollout.tensor_parallel, machine)


def _trainers(plan: Plan, gpus: int) -> int:
    """How many of these GPUs train: engines that are apart from the trainers get as many."""
    return gpus if plan.config.cluster.colocate else max(1, gpus // 2)


def _spread(plan: Plan, ranks: int, width: int, machine: Machine) -> tuple[str, Config, Machine]:
    """The same run with so many ranks, and engines on as many GPUs."""
    engines = max(1, ranks // width)
    config = _with_train(plan.config, data_parallel=ranks)
    config = replace(config, rollout=replace(config.rollout, engines=engines, tensor_parallel=width))
    where = f" on {machine.nodes} nodes" if machine.nodes > plan.machine.nodes else ""
    option = f"--train.data-parallel {ranks} --rollout.engines {engines} --rollout.tensor-parallel {width}{where}"
    return option, config, machine


def _with_train(config: Config, **changes: object) -> Config:
    return replace(config, train=replace(config.train, **changes))  # type: ignore[arg-type]
