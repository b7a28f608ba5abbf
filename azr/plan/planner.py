"""The plan of a run, also as text: bytes, seconds, whether it fits, why not, and what to change then."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from azr.config import Config
from azr.config_tree import ESTIMATOR, config_options, override
from azr.errors import UserError
from azr.hardware import CPU_KV_CACHE_BYTES, compute_type
from azr.plan import memory
from azr.plan.inputs import GIB, Assumptions, ClusterSpec, ModelShape, Workload, as_configured, shape_of, with_push
from azr.plan.memory import ALLOCATOR_CACHE, RECOMPUTED, EngineMemory, ModelRole
from azr.plan.seconds import Seconds, StepTimes, seconds_of
from azr.runs.metrics import duration

_SHARES = tuple(share / 100 for share in range(90, 5, -5))
"""Values of rollout.gpu_memory_utilization that are tried."""
_LORA_RANK = 32
_MIN_SHOWN = 0.05
"""GiB below which a number is left out."""
CHECKPOINTING_SHARE = 0.9
"""Share of the memory up to which `train.gradient_checkpointing` auto recomputes less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Bytes and seconds of a run of `config` on `nodes`."""

    config: Config
    decided: Config
    """See `decide_checkpointing`."""
    because: str
    nodes: ClusterSpec
    load: Workload
    roles: list[ModelRole]
    engine: EngineMemory
    memory: dict[str, dict[str, float]]
    """By phase: what takes how many bytes on the fullest GPU."""
    bounds: dict[str, Seconds]
    """By phase, at the assumed rates: what it waits for."""
    usable: float
    """Bytes of a GPU that the run may take."""
    host: dict[str, float]
    """Bytes of host memory per node."""
    option: str = ""
    """Of a suggestion, on top of those before it: its options on the command line."""

    @property
    def seconds(self) -> dict[str, float]:
        """By phase, at the assumed rates."""
        return {phase: seconds_of(bound) for phase, bound in self.bounds.items()}

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
        config, nodes, found = self.config, self.nodes, list[str]()
        if config.num_gpus > nodes.total_gpus:
            found.append(f"it asks for {config.num_gpus} GPUs and there are {nodes.total_gpus}")
        if (width := config.rollout.tensor_parallel) > nodes.gpus:
            found.append(f"an engine needs {width} GPUs of one node, which has {nodes.gpus}")
        for phase in self.memory:
            if self.total(phase) > self.usable:
                found.append(f"{phase} takes {self.total(phase) / GIB:.1f} GiB of {self.usable / GIB:.1f}")
        kv_tokens, longest = self.engine.kv_tokens, config.max_trajectory_tokens
        if kv_tokens < longest:
            found.append(f"an engine's KV cache holds {kv_tokens} tokens, less than one trajectory of {longest}")
        host, has = sum(self.host.values()), nodes.host_memory_gib
        if has is not None and host > has * GIB:
            parts = ", ".join(f"{what} {size / GIB:.0f}" for what, size in self.host.items() if size)
            found.append(f"a node's {has:g} GiB of host memory are less than {host / GIB:.0f} GiB: {parts}")
        return found


def decide_checkpointing(config: Config, taken: Callable[[Config], float], has: float) -> tuple[Config, str]:
    """Decide `train.gradient_checkpointing` auto: the least with which the bytes `taken` are at most
    `CHECKPOINTING_SHARE` of those that it `has`, or else full. Return the config, and why if it was auto."""
    why = ""
    for mode in RECOMPUTED if config.train.gradient_checkpointing == "auto" else ():
        config = replace(config, train=replace(config.train, gradient_checkpointing=mode))
        needed = taken(config)
        counted = f"training takes {needed / GIB:.1f} of {has / GIB:.1f} GiB"
        if needed <= CHECKPOINTING_SHARE * has or mode == "full":
            why = why or f"{counted}, within {CHECKPOINTING_SHARE:.0%}"
            return config, f"train.gradient_checkpointing auto is {mode}: {why}"
        why = f"with {mode}, {counted}, above {CHECKPOINTING_SHARE:.0%}"
    return config, why


def make_plan(config: Config, shape: ModelShape, nodes: ClusterSpec, assumed: Assumptions) -> Plan:
    """The plan for networks of this shape."""
    load, roles = Workload.of(config, assumed), memory.model_roles(config, shape)
    engine, usable = EngineMemory.of(config, shape, nodes, assumed), (nodes.gpu_memory_gib - assumed.reserved_gib) * GIB

    def most(tried: Config) -> float:
        by_phase = memory.phases(tried, roles, engine, load, nodes, assumed)
        return max(sum(by_phase[f"train {role.name}"].values()) for role in roles if role.trains)

    decided, because = decide_checkpointing(config, most, usable)
    pushing = with_push(decided)
    times = StepTimes(config=pushing, load=load, nodes=nodes, assumed=as_configured(assumed, pushing))
    return Plan(
        config=config,
        decided=decided,
        because=because,
        nodes=nodes,
        load=load,
        roles=roles,
        engine=engine,
        memory=memory.phases(decided, roles, engine, load, nodes, assumed),
        bounds=times.by_phase(roles, engine),
        usable=usable,
        host=memory.host_memory(config, roles, nodes, assumed),
    )


def plan_run(
    config: Config, nodes: ClusterSpec, assumed: Assumptions, model_config: str | None = None
) -> tuple[Plan, list[Plan]]:
    """The plan, and what to change where it does not fit; `model_config` is the policy's config.json.

    Raises UserError when the shape of the model is not known.
    """
    plan = make_plan(config, shape_of(config.model.path, model_config), nodes, assumed)
    return plan, suggest(plan, assumed)


def suggest(plan: Plan, assumed: Assumptions) -> list[Plan]:
    """Plans after changes in the order they are worth trying, until the run fits; those that do not help are left out.

    First those that change nothing about the training, then those that do. If neither suffice the plan of the last one
    does not fit.
    """
    alike = ("fewer GPUs", "shards", "recomputation", "micro-batches", "engine's share")
    other = ("fewer GPUs", "no critic", "adapters", "recomputation", "micro-batches", "engine's share", "shorter")
    turns = [_turn(plan, assumed, sorts) for sorts in (alike, other)]
    return next((turn for turn in turns if turn and not turn[-1].problems), turns[0])


def _tried(plan: Plan, assumed: Assumptions, values: Mapping[str, Any]) -> Plan:
    words = [config_options()[path].flag + (f" {value}" if value is not True else "") for path, value in values.items()]
    tried = make_plan(override(plan.config, values), plan.roles[0].shape, plan.nodes, assumed)
    return replace(tried, option=" ".join(words))


def _turn(plan: Plan, assumed: Assumptions, sorts: Sequence[str]) -> list[Plan]:
    """Take of each sort of `_candidates` the first with which the run fits, or else the best if it helps, until the run
    fits."""
    taken: list[Plan] = []
    for sort in sorts:
        if not plan.problems:
            break
        tried = [_tried(plan, assumed, values) for values in _candidates(plan)[sort]]
        fitting = [each for each in tried if not each.problems]
        best = fitting[0] if fitting else min(tried, key=_sort_key, default=plan)
        if _sort_key(best) < _sort_key(plan):
            plan = best
            taken.append(best)
    return taken


def _sort_key(plan: Plan) -> tuple[bool, int, float]:
    """Worst last: first of all GPUs that do not exist, then more problems, then more bytes too many."""
    return plan.config.num_gpus > plan.nodes.total_gpus, len(plan.problems), max(0.0, plan.peak - plan.usable)


def _candidates(plan: Plan) -> dict[str, list[dict[str, Any]]]:
    """Return the changes that are worth trying, by their sort: values of options by path."""
    config, present = plan.config, plan.nodes.total_gpus
    train, rollout, lora = config.train, config.rollout, config.train.lora
    # The largest number of present GPUs that divides the batch. Engines that are apart from the trainers get as many.
    batch, most = math.gcd(*config.trajectories_by_step), present // (1 if config.cluster.colocate else 2)
    ranks = max(count for count in range(1, max(1, most) + 1) if batch % count == 0)
    width = math.gcd(rollout.tensor_parallel, plan.nodes.gpus)
    fewer = {"train.data_parallel": ranks, "rollout.engines": max(1, ranks // width), "rollout.tensor_parallel": width}
    rank, least, tokens = lora.rank or _LORA_RANK, config.max_trajectory_tokens, train.tokens_per_micro_batch
    shards = {"zero3": train.data_parallel > 1 and not train.is_sharded, "offload": not train.offload_optimizer}
    nearest = sorted(_SHARES, key=lambda share: abs(share - rollout.gpu_memory_utilization))
    more_models = config.algorithm.needs_critic or config.has_reference
    halves = filter(None, (rollout.max_response_tokens // share for share in (2, 4, 8)))
    return {
        "fewer GPUs": [fewer] * (config.num_gpus > present),
        "shards": [{"train.shard": shard} for shard, helps in shards.items() if helps],
        "recomputation": [{"train.gradient_checkpointing": "auto"}] * (train.gradient_checkpointing != "auto"),
        "no critic": [{ESTIMATOR: "trrpp", "algorithm.kl.coef": 0}] * more_models,
        "adapters": [
            *[{"train.lora.rank": rank}] * (not lora.rank),
            *[{"train.lora.rank": rank, "train.lora.four_bit": True}] * (not lora.four_bit),
        ],
        "micro-batches": [{"train.tokens_per_micro_batch": least}] * (tokens > least),
        "engine's share": [{"rollout.gpu_memory_utilization": share} for share in nearest],
        "shorter": [
            {
                "rollout.max_response_tokens": half,
                "train.tokens_per_micro_batch": min(tokens, rollout.max_prompt_tokens + half),
            }
            for half in halves
        ],
    }


def known_plan(config: Config, gpu_memory_gib: float, host_memory_gib: float | None = None) -> Plan | None:
    """Return the plan for GPUs of this size, as many as the run takes; None if the shape of its model is not known."""
    try:
        shape = shape_of(config.model.path)
    except UserError:
        return None
    nodes = ClusterSpec.with_gpus(config.num_gpus)
    nodes = replace(nodes, gpu_memory_gib=gpu_memory_gib, host_memory_gib=host_memory_gib)
    return make_plan(config, shape, nodes, Assumptions())


def check_memory(plan: Plan) -> list[str]:
    """Return a sentence if the run does not fit by the plan's estimate, which may be wrong.

    Raises UserError only for what no assumption changes: states of the largest role, or of all where they do not take
    turns; an engine's weights with the KV cache of one sequence. No activations, buffers or contexts.
    """
    config, nodes, gpu_memory_gib = plan.config, plan.nodes, plan.nodes.gpu_memory_gib
    size = f"{nodes.nodes} node(s) of {nodes.gpus} GPU(s) with {gpu_memory_gib:.0f} GiB"
    held = [memory.states(role, config.train) for role in plan.roles]
    each = [size["parameters"] + size["gradients"] + size["optimiser"] for size in held]
    learning = max(each) if config.cluster.colocate else sum(each)
    playing = plan.engine.weights + config.max_trajectory_tokens * plan.engine.kv_token
    share = config.rollout.gpu_memory_utilization
    certain = []
    if learning > gpu_memory_gib * GIB:
        certain.append(
            f"parameters, gradients and optimizer state take {learning / GIB:.1f} of a GPU's "
            f"{gpu_memory_gib:.1f} GiB while trainers learn, activations not counted"
        )
    if playing > share * gpu_memory_gib * GIB:
        certain.append(
            f"an engine's weights and the KV cache of one trajectory take {playing / GIB:.1f} GiB of the "
            f"{share * gpu_memory_gib:.1f} that rollout.gpu_memory_utilization={share:g} leaves it"
        )
    if certain:
        raise UserError(f"The run does not fit on {size}: {'; '.join(certain)}: take options that azr plan names.")
    problems = "; ".join(plan.problems)
    said = f"by the plan's estimate the run does not fit on {size} ({problems}): azr plan names options that help"
    return [said] if problems else []


def _cpu_bytes(config: Config) -> dict[str, float]:
    """Bytes of a run on the CPUs of one machine, by what they hold, at most."""
    train = replace(config.train, dtype=compute_type(config.train.dtype, "cpu"))
    load, shape = Workload.of(config, Assumptions()), shape_of(config.model.path)
    roles, ranks, engines = (
        memory.model_roles(replace(config, train=train), shape),
        train.data_parallel,
        config.rollout.engines,
    )
    tokens = min(train.tokens_per_micro_batch, load.max_tokens)
    on_cpu = replace(train, shard="zero3" if train.offload_optimizer else train.shard)  # nothing is offloaded there
    return {role.name: ranks * sum(memory.states(role, on_cpu).values()) for role in roles} | {
        "activations": ranks * max(sum(memory.training(role, train, tokens).values()) for role in roles),
        "engines' weights": engines * memory.element_bytes(train) * shape.parameters,
        "their KV cache": engines * CPU_KV_CACHE_BYTES,
    }


def decide_here(config: Config, gib: float, *, on_cpu: bool) -> tuple[Config, str]:
    """`decide_checkpointing` by the memory of a GPU, or of the machine; full if it is 0 or the model is not known."""
    with suppress(UserError):
        if on_cpu:
            return decide_checkpointing(config, lambda tried: sum(_cpu_bytes(tried).values()), gib * GIB)
        if gib and (plan := known_plan(config, gib)) is not None:
            return plan.decided, plan.because
    why = "train.gradient_checkpointing auto is full: memory or model are not known here"
    return replace(config, train=replace(config.train, gradient_checkpointing="full")), why


def cpu_time(config: Config, steps: int, flops: float) -> str:
    """Return how long steps take on CPUs whose products reach ``flops`` operations a second: 8 ms a response, and each
    distinct prompt computed once. `azr_14m_learn` on three kinds of CPU took 0.8 to 1.1 times the middle of the range,
    and `azr_coder0b5_cpu`, beside other jobs, 1.1 to 1.9 times. Raises UserError if the model's shape is not known."""
    load, shape = Workload.of(config, Assumptions()), shape_of(config.model.path)
    tokens = load.prompts * load.mean_prompt + load.trajectories * load.mean_response
    passes = 1 + sum(1 + role.trains + role.trains_all for role in memory.model_roles(config, shape))
    seconds = steps * (0.008 * load.trajectories + 2 * shape.parameters * tokens * passes / flops)
    low, high = duration(seconds / 1.5), duration(seconds * 1.5)
    return f"expected: {low} to {high} for {steps} steps if nothing else runs here, start and evaluations not counted"


def cpu_text(config: Config, memory_bytes: int) -> str:
    """Return what a step amounts to, and what a run on the CPUs of a machine with this memory takes of it."""
    sizes = _cpu_bytes(config)
    needed, has = sum(sizes.values()) / GIB, memory_bytes / GIB
    return "\n".join((
        *step_lines(config, Workload.of(config, Assumptions())),
        "on CPUs, GiB: " + ", ".join(f"{what} {x / GIB:.1f}" for what, x in sizes.items()),
        f"{'fits in' if needed < has else 'does not fit in'} this machine's memory: {needed:.1f} of {has:.1f} GiB at "
        "most, without what Python and sandboxes take",
    ))  # fmt: skip


def text(plan: Plan, suggestions: Sequence[Plan]) -> str:
    """Several lines: what a step amounts to, tables of bytes and seconds, whether it fits and what to change."""
    parts = (step_lines(plan.config, plan.load), _memory(plan), _seconds(plan), _verdict(plan, suggestions))
    return "\n\n".join("\n".join(lines) for lines in parts)


def step_lines(config: Config, load: Workload) -> Iterator[str]:
    """The batch sizes that follow from the config, in prompts, trajectories and tokens."""
    ranks, rollout, algorithm = config.train.data_parallel, config.rollout, config.algorithm
    responses = _count(load.trajectories * load.mean_response)
    names = ["policy", *["critic"] * algorithm.needs_critic, *["reference"] * config.has_reference]
    yield from (
        "a step, upper bounds where validation decides:",
        f"  {load.prompts:,} prompts: {load.proposals} to propose, {load.estimate_prompts} to estimate, "
        f"{load.solves} to solve, {load.rows} from a file",
        f"  {load.trajectories:,} responses ({load.estimates:,} of them estimates), about {responses} tokens",
        f"  {load.trained:,} trajectories of up to {config.max_trajectory_tokens:,} tokens trained on: about "
        f"{_count(load.trained_tokens)} tokens, {_count(load.max_tokens)} at most",
        f"  per rank {load.trained / ranks:g} trajectories, about {_count(load.trained_tokens / ranks)} tokens in "
        f"micro-batches of up to {config.train.tokens_per_micro_batch:,}",
        f"  {', '.join(names)}: {ranks} rank(s) each; {rollout.engines} engine(s) of {rollout.tensor_parallel} "
        f"GPU(s); {algorithm.policy_mini_batches} optimizer step(s) of the policy",
    )


def _count(tokens: float) -> str:
    return f"{tokens / 1e6:.2f} million" if tokens >= 1e6 else f"{tokens / 1e3:.0f} thousand"


def _memory(plan: Plan) -> Iterator[str]:
    yield _row(f"GiB, fullest of {plan.config.num_gpus} GPU(s)", list(plan.memory))
    rows = dict.fromkeys(what for parts in plan.memory.values() for what in parts if what != ALLOCATOR_CACHE)
    roles = [role.name for role in plan.roles]
    by_role = sorted(rows, key=lambda what: roles.index(word) + 1 if (word := what.split()[0]) in roles else 0)
    for what in (*by_role, ALLOCATOR_CACHE):
        sizes = [parts.get(what, 0.0) / GIB for parts in plan.memory.values()]
        if max(sizes) >= _MIN_SHOWN:
            yield _row(what, [f"{size:.1f}" if size >= _MIN_SHOWN else "" for size in sizes])
    yield _row("total", [f"{sum(parts.values()) / GIB:.1f}" for parts in plan.memory.values()])
    yield f"  usable: {plan.usable / GIB:.1f} of {plan.nodes.gpu_memory_gib:g} GiB"
    yield f"  KV cache of an engine: room for {plan.engine.kv_tokens:,} tokens"
    if host := {what: size / GIB for what, size in plan.host.items() if size / GIB >= _MIN_SHOWN}:
        parts = ", ".join(f"{what} {size:.0f}" for what, size in host.items())
        yield f"  host memory: {sum(host.values()):.0f} GiB per node ({parts})"
    if plan.because:
        yield f"  {plan.because}"


def _seconds(plan: Plan) -> Iterator[str]:
    steps, total = plan.config.run.steps, sum(plan.seconds.values())
    yield _row("expected seconds", [*plan.seconds, "step"])
    yield _row("at measured rates", [f"{seconds:.3g}" for seconds in (*plan.seconds.values(), total)])
    kernels = "plain" if plan.config.train.kernels == "plain" else "fused"
    push = "through hosts" if with_push(plan.config).cluster.push == "host" else "between GPUs"
    yield f"  measured: one H100 or H200 and 1.5B with {kernels} kernels and a push {push}"
    # A published step of 8B on 16 H100s takes 1.3 times its plan.
    yield "  planned: expect 1.3 to 1.6 times until a machine has run them"
    hours = total * steps / 3600
    length = f"{hours:.1f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
    yield f"  {steps} steps: about {length} at measured rates, seeding and evaluation not counted"


def _verdict(plan: Plan, suggestions: Sequence[Plan]) -> Iterator[str]:
    """``fits`` or ``does not fit``, why, and what to change."""
    where = f"{plan.nodes.nodes} node(s) of {plan.nodes.gpus} GPU(s) with {plan.nodes.gpu_memory_gib:g} GiB"
    if not plan.problems:
        yield f"fits on {where}: at most {plan.peak / GIB:.1f} GiB of a GPU are taken"
        return
    yield f"does not fit on {where}:"
    yield from (f"  {problem}" for problem in plan.problems)
    if suggestions:
        yield "what to change, in this order:"
    for change in suggestions:
        yield f"  {change.option}  ({change.peak / GIB:.1f} GiB at most{'' if change.problems else ', fits'})"
    if not suggestions or suggestions[-1].problems:
        yield "no option makes it fit: take more GPUs or GPUs with more memory, a smaller model, or shorter responses"


def _row(label: str, cells: Sequence[str]) -> str:
    return f"{label:<28}" + "".join(f"{cell:>17}" for cell in cells)
