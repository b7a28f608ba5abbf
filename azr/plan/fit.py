"""Refuses a run that cannot fit on the GPUs there are, before anything starts; warns where an estimate says so."""

from __future__ import annotations

from dataclasses import replace

from azr.config import Config
from azr.errors import UserError
from azr.plan.inputs import GIB, Assumptions, ClusterSpec
from azr.plan.memory import least, model_roles
from azr.plan.planner import make_plan
from azr.plan.shapes import ModelShape, shape_of

_SHARE = 0.85
"""`rollout.gpu_memory_utilization` of the GPU recipes."""


def check(config: Config, gpu_memory_gib: float) -> list[str]:
    """Compares the run with GPUs of this size, as many as it asks for.

    Raises UserError only for what is certain, see `impossible`. Returns a sentence where the run does not fit by the
    plan's estimate, which may be wrong; nothing where it fits, or the shape of its model is not known.
    """
    try:
        shape = shape_of(config.model.path)
    except UserError:
        return []
    nodes = replace(ClusterSpec.with_gpus(config.num_gpus), gpu_memory_gib=gpu_memory_gib)
    size = f"{nodes.nodes} node(s) of {nodes.gpus} GPU(s) with {gpu_memory_gib:.0f} GiB"
    if why := impossible(config, shape, nodes):
        raise UserError(f"The run does not fit on {size}: {'; '.join(why)}. {_what_helps(config)}")
    plan = make_plan(config, shape, nodes, Assumptions())
    if not plan.problems:
        return []
    problems = "; ".join(plan.problems)
    return [f"by the plan's estimate the run does not fit on {size} ({problems}): azr plan names knobs that help"]


def impossible(config: Config, shape: ModelShape, nodes: ClusterSpec) -> list[str]:
    """Why no assumption whatever makes the run fit on these GPUs, a clause each; empty when one might.

    Counts only what is certain: see `least`. What `Plan.problems` says beyond that is an estimate.
    """
    roles = model_roles(config, shape)
    sizes = least(config, roles, nodes)
    share, memory = config.rollout.gpu_memory_utilization, nodes.gpu_memory_gib
    found = []
    if sizes["learning"] > memory * GIB:
        found.append(
            f"parameters, gradients and optimizer state take {sizes['learning'] / GIB:.1f} of a GPU's {memory:.1f} GiB "
            "while trainers learn, activations not counted"
        )
    if sizes["playing"] > share * memory * GIB:
        found.append(
            f"an engine's weights and the KV cache of one trajectory take {sizes['playing'] / GIB:.1f} GiB of the "
            f"{share * memory:.1f} that rollout.gpu_memory_utilization={share:g} leaves it"
        )
    return found


def _what_helps(config: Config) -> str:
    """Knobs that take something off the GPUs and are not set, as a sentence."""
    knobs = []
    if config.rollout.gpu_memory_utilization < _SHARE and config.cluster.colocate:
        knobs.append(f"--rollout.gpu-memory-utilization {_SHARE}")
    if not config.train.offload_optimizer:
        knobs.append("--train.offload-optimizer")
    knobs.append("more GPUs by --train.data-parallel and --rollout.engines or --rollout.tensor-parallel")
    return f"Set {', '.join(knobs)}; or take a smaller model."
