"""The table of `benchmarks.gpu_smoke`: measured now and on two H100s, predicted by the plan, and aimed at."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azr.cli.run import parse
from azr.plan import planner
from azr.plan.inputs import GIB, KNOWN, Assumptions, ClusterSpec
from playground.azr_coder7b_ppo import config as recipe

LEARNING = ("critic values", "reference logprobs", "policy logprobs", "train critic", "train policy")
HANDOVER = ("sleep", "push", "wake", "offload", "reload")
Results = Mapping[str, Any]
"""By name of the case: what it wrote, `steps` of a run among it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table."""

    label: str
    key: str
    """In what was measured and predicted."""
    first: str = ""
    """Measured in November 2026 on one H100 80GB, before kernels, transfers and turns were made for GPUs."""
    second: str = ""
    """Measured later that month on another, with them."""
    goal: str = ""
    digits: int = 1


ROWS = (
    Row(label="large model: start to the end of step 1, s", key="first step s", second="249", first="197", digits=0),
    Row(label="large model: a step, s", key="step s", second="26.2", first="30.3"),
    Row(label="  play, s", key="play s", second="14.8", first="6.6"),
    Row(label="  update, s", key="update s", second="9.6", first="12.2"),
    Row(label="  sleep, wake and push, s", key="handover s", second="1.8", first="11.5", goal="10% of the step"),
    Row(label="push, GB/s", key="push GB/s", second="11.8", first="0.75", goal="60"),
    Row(label="generation by the small model, not compiled, tokens/s", key="generated tokens/s", digits=0),
    Row(label="update, tokens/s of a step", key="update tokens/s", second="23600", first="16500", digits=0),
    Row(
        label="update alone at 1.5B, share of peak (6N)",
        key="update 1.5B",
        second="0.33",
        first="0.15",
        goal="0.43",
        digits=2,
    ),
    Row(label="push by IPC, buckets of 256 MiB, GB/s", key="push by ipc, 256 MiB, GB/s", second="11.8", goal="26"),
    Row(label="  and of 1 GiB", key="push by ipc, 1024 MiB, GB/s", goal="60"),
    Row(label="engine alone, 96 sequences, ms a token", key="uni, 96 sequences, with logprobs, ms a token"),
    Row(label="  executor in its own process", key="mp, 96 sequences, with logprobs, ms a token", goal="5"),
    Row(label="  and without log-probabilities", key="mp, 96 sequences, without logprobs, ms a token"),
    Row(label="update alone at 7B layers, share of peak", key="update 7B layers", second="0.48", goal="0.45", digits=2),
    Row(label="valid proposals of a pretrained model", key="valid share", digits=2),
    Row(label="mismatch, mean", key="mismatch mean", second="0.032", first="0.076", goal="0.01", digits=4),
    Row(label="mismatch, p99", key="mismatch p99", second="0.11", first="0.34", digits=4),
    Row(label="driver, CPU ms a trajectory", key="driver ms", first="2.5", goal="0.4", digits=2),
    Row(label="trainers keep on the GPU while engines play, GB", key="trainers keep GB", second="0.13", first="37"),
    Row(label="GPU memory while playing, first turn, GiB", key="GiB while playing, first"),
    Row(label="  and last", key="GiB while playing, last", goal="the same"),
    Row(label="GPU memory while learning, first turn, GiB", key="GiB while learning, first"),
    Row(label="  and last", key="GiB while learning, last", goal="the same"),
)


def measure(out: Path) -> dict[str, float]:
    """What the cases left in their folder, as far as they came."""
    measured: dict[str, float] = {}
    steps = _lines(out / "runs" / "trrpp" / "metrics.jsonl")
    steps = steps or _lines(out / "runs" / "trrpp_by_host" / "metrics.jsonl")
    if steps:
        # The last one is profiled.
        measured |= of_step(steps[-2:][0]) | {"first step s": steps[0]["start/all"] + steps[0]["seconds/step"]}
    for file in sorted(out.glob("update_*.json")):
        name, results = file.stem.replace("_", " "), json.loads(file.read_text())
        for result in results:
            if result["error"] is None:
                measured[f"{name}, {result['checkpointing']}, tokens/s"] = result["tokens_per_s"]
            if result["share_6n"]:  # none on a CPU
                measured[f"{name}, {result['checkpointing']}"] = result["share_6n"]
                measured[name] = max(measured.get(name, 0.0), result["share_6n"])
    if real := _lines(out / "runs" / "real" / "metrics.jsonl"):
        counts = {what: _total(real, f"/proposer/funnel/{what}") for what in ("valid", "proposed")}
        measured["valid share"] = counts["valid"] / max(1.0, counts["proposed"])
    for name in ("turns.json", "push.json", "engine.json"):
        if (out / name).exists():
            found = json.loads((out / name).read_text())
            measured |= {key: value for key, value in found.items() if key not in measured}
    return measured


def of_step(step: Results) -> dict[str, float]:
    """Of one line of a run's metrics."""
    seconds = {name.removeprefix("seconds/"): value for name, value in step.items() if name.startswith("seconds/")}
    update = sum(seconds.get(phase, 0.0) for phase in LEARNING)
    handover = sum(seconds.get(phase, 0.0) for phase in HANDOVER)
    kept = {"trainers keep GB": step["memory/trainers_reserved_gb"]} if "memory/trainers_reserved_gb" in step else {}
    if "driver/cpu_ms_per_trajectory" in step:
        kept["driver ms"] = step["driver/cpu_ms_per_trajectory"]
    return kept | {
        "step s": seconds["step"],
        "play s": seconds["step"] - update - handover,
        "update s": update,
        "handover s": handover,
        "push GB/s": step["weights/push_gb_s"],
        "update tokens/s": step["computed_tokens/train policy"] / update,
        "mismatch mean": step["policy/mismatch_mean"],
        "mismatch p99": step["policy/mismatch_p99"],
    }


def predicted(options: Sequence[str], size: str) -> dict[str, float]:
    """What the plan says of the large model's step with these options of the recipe, on 80 GB GPUs.

    At rates that were measured on one H100, see `azr.plan.inputs`.
    """
    config = parse(recipe, list(options)).config
    # Random weights never stop by themselves, and none of their proposals is a task. So all prompts are about the three
    # identity programs, and those that are equal are computed once.
    random = Assumptions(prompt_fill=0.02, response_fill=1.0, valid_share=0)
    plan = planner.make_plan(config, KNOWN[f"Qwen/Qwen2.5-{size}"], ClusterSpec.with_gpus(config.num_gpus), random)
    seconds, step = plan.seconds, sum(plan.seconds.values())
    handover = seconds["push"] + seconds.get("turns", 0.0)
    return {
        "step s": step,
        "play s": seconds["play"],
        "update s": step - seconds["play"] - handover,
        "handover s": handover,
        "GiB while playing, first": plan.total("play") / GIB,
        "GiB while learning, first": plan.total("train policy") / GIB,
    }


def table(measured: Mapping[str, float], plan: Mapping[str, float]) -> str:
    """A line per row, nothing where a number is not known."""
    width = max(len(row.label) for row in ROWS)
    lines = [f"{'':<{width}}  {'measured':>12}{'first H100':>12}{'second':>12}{'plan':>12}  goal"]
    for row in ROWS:
        now, then = (f"{of[row.key]:.{row.digits}f}" if row.key in of else "" for of in (measured, plan))
        lines.append(f"{row.label:<{width}}  {now:>12}{row.first:>12}{row.second:>12}{then:>12}  {row.goal}".rstrip())
    return "\n".join(lines)


def _total(steps: Sequence[Results], ending: str) -> float:
    return sum(value for step in steps for name, value in step.items() if name.endswith(ending))


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
