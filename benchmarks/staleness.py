"""Does playing ahead of learning pay where response lengths have a long tail: whole runs, step by step and ahead.

    python -m benchmarks.staleness [--modes sync ahead partial] [--steps 8] [--rounds 1] [--json OUT.json]
    python -m benchmarks.staleness --importance none token_cap token_mask sequence_mask [--ages 1 2] [--steps 8]

Real engine, trainer, sandbox and driver on the CPU, engines apart. Lengths are forced: every response gets a number of
tokens from a lognormal distribution (``--median``, ``--sigma``, cut to 16 to 640 tokens) by its seed, the same one in
every mode, and the engine samples so many tokens whatever they are. What the model wrote before its first end token is
parsed and graded, so proposals, estimates and solutions wait for each other as in any run. Engine and trainer compute
with one thread each, as if each had hardware of its own.

Each run is a process of its own; modes alternate over the rounds. A line holds the tokens trained on per second, from
the end of the first step to the end of the last but one, so that it counts as many rounds of play as of learning.

With ``--importance`` the question is another: what the choices of `algorithm.importance` do to samples of weights that
are one or two steps old. Each choice and age is a run of `playground.azr_14m_learn` in small, at its own lengths.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from azr import config_rules, system
from azr.cli.run import launch
from azr.concurrency import gather
from azr.config import (
    AblationConfig,
    AlgorithmConfig,
    CheckpointConfig,
    ClusterConfig,
    Config,
    NoImportance,
    RolloutConfig,
    RunConfig,
    SelfPlayConfig,
    SequenceCap,
    SequenceMask,
    TokenCap,
    TokenMask,
    TrainConfig,
)
from azr.config_rules import check
from azr.launch import resolve
from azr.prepare import prepare
from azr.prompts.codec import PromptCodec
from azr.records import Completion, Stops
from azr.rollout import engine_group
from azr.rollout.engine import EngineStart, RolloutEngine
from azr.runs.run_dir import RunDirectory
from azr.runtime import Driver
from azr.tasks.prompts import LABELS, Section
from azr.train.policy import PolicyWorker
from playground import azr_14m_learn
from tests.e2e.three_kinds import config as MINI

MODES: dict[str, dict[str, Any]] = {
    "sync": {},
    "ahead": {"staleness": 1},
    "partial": {"staleness": 2, "partial": True},
}
"""Options of `rollout` that differ."""
SHORTEST, LONGEST = 16, 640
"""Tokens of a response."""

IMPORTANCE = (NoImportance, TokenCap, TokenMask, SequenceCap, SequenceMask)

Generate = Callable[..., Coroutine[Any, Any, list[Completion]]]


class OneThreadPolicy(PolicyWorker):
    """Leaves the engine its core."""

    def init_process_group(self, address: tuple[str, int]) -> None:
        super().init_process_group(address)
        torch.set_num_threads(1)


class ForcedEngine(RolloutEngine):
    """Samples as many tokens as it is asked for, whatever they are."""

    async def start(self) -> EngineStart:
        self._stops = Stops()
        report = await super().start()
        llm = self._llm
        add_request = llm.add_request

        async def add_forced(request_id: str, prompt: Any, params: Any, **options: Any) -> Any:
            params.ignore_eos = True
            return await add_request(request_id, prompt, params, **options)

        vars(llm)["add_request"] = add_forced
        return report


class CutCodec(PromptCodec):
    """Reads a response up to its first end token; what the engine was forced to add says nothing."""

    def parse_response(self, completion: Completion, labels: Sequence[str] = LABELS) -> tuple[Section, ...] | None:
        ends = np.flatnonzero(np.isin(completion.response_ids, self.stops.token_ids))
        return self._format.parse(self.decode(completion.response_ids[: ends[0]]), labels) if len(ends) else None


def forced_lengths(generate: Generate, median: float, sigma: float) -> Generate:
    """``EngineGroup.generate`` with a length of its own for every sample, drawn by the request's seed."""

    async def generate_forced(
        engines: Any, prompt_ids: list[int], *, n: int, max_tokens: int, seed: int | None = None, **options: Any
    ) -> list[Completion]:
        lengths = draw_lengths(f"{seed}", n, median, sigma, min(LONGEST, max_tokens))
        samples = (generate(engines, prompt_ids, n=1, max_tokens=tokens, seed=seed, **options) for tokens in lengths)
        # Its length was forced, so it was not cut off.
        return [replace(each, finish_reason="stop") for some in await gather(*samples) for each in some]

    return generate_forced


def draw_lengths(seed: str, n: int, median: float, sigma: float, longest: int) -> list[int]:
    """Lognormal, cut at both ends."""
    rng = random.Random(seed)
    return [round(min(max(rng.lognormvariate(math.log(median), sigma), SHORTEST), longest)) for _ in range(n)]


def workload(root: Path, mode: str, steps: int) -> Config:
    """The mini's model in small rounds: engines apart, one engine, one trainer, no critic."""
    return replace(
        MINI,
        run=RunConfig(name=mode, root=str(root), steps=steps, stop_when_malformed=False),
        selfplay=SelfPlayConfig(
            proposer_prompts=12,
            solver_prompts=12,
            references=2,
            induction_inputs=6,
            group_size=4,
            train_on_estimates=True,
            seed_tasks=4,
        ),
        ablation=AblationConfig(),
        rollout=RolloutConfig(max_prompt_tokens=384, max_response_tokens=LONGEST, max_concurrent=192, **MODES[mode]),
        algorithm=AlgorithmConfig(),
        train=TrainConfig(device="cpu", policy_lr=5e-5, tokens_per_micro_batch=8192, gradient_checkpointing="none"),
        cluster=ClusterConfig(colocate=False),
        eval=replace(MINI.eval, every=0),
        checkpoint=CheckpointConfig(every=0),
    )


def play(root: Path, mode: str, steps: int, median: float, sigma: float) -> None:
    """One run in this process."""
    config = workload(root, mode, steps)
    check(config)
    system.PolicyWorker = OneThreadPolicy
    engine_group.RolloutEngine = ForcedEngine
    group: Any = engine_group.EngineGroup
    group.generate = forced_lengths(group.generate, median, sigma)
    prepared = replace(prepare(resolve(config)), codec=CutCodec.load(config))
    asyncio.run(Driver(prepared).run())


def rate(run: Path) -> dict[str, float]:
    """Of a run's directory: what it trained on per second between its first step's end and its last but one's."""
    steps = [line for line in _metrics(run) if line["step"] > 1][:-1]
    seconds = sum(step["seconds/step"] for step in steps)
    learning = [step["seconds/train policy"] for step in steps]
    return {
        "tokens_per_s": sum(step["batch/tokens"] for step in steps) / seconds,
        "trajectories_per_s": sum(step["batch/trajectories"] for step in steps) / seconds,
        "step_s": statistics.median(step["seconds/step"] for step in steps),
        "learn_s": statistics.median(learning),
        "mismatch_mean": statistics.fmean(step["policy/mismatch_mean"] for step in steps),
        "valid": statistics.fmean(
            sum(step.get(f"{kind}/proposer/funnel/valid", 0) for kind in MINI.selfplay.kinds) for step in steps
        ),
    }


def _metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in RunDirectory(run).metrics.read_text().splitlines()]


def learn(root: Path, importance: str, age: int, steps: int, prompts: int) -> Path:
    """Train on samples of weights ``age`` steps old, in a process of its own; return the run's directory."""
    name, exam = f"{importance}_{age}", 8 * prompts
    command = [sys.executable, "-m", "benchmarks.staleness", "--learn", "--run.root", str(root), "--run.name", name]
    command += ["--cluster.no-colocate", "--rollout.staleness", str(age), "--algorithm.importance", importance]
    command += ["--train.policy-lr", "1e-4", "--train.warmup-steps", "1", "--train.decay-steps", str(max(1, steps - 1))]
    command += ["--selfplay.proposer-prompts", str(prompts), "--selfplay.repeated-tasks", str(prompts // 2)]
    command += ["--selfplay.seed-tasks", "16", "--run.steps", str(steps), "--checkpoint.every", "0"]
    command += ["--eval.every", str(steps), "--eval.limit", str(exam)]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return root / name


def learn_here(argv: Sequence[str]) -> None:
    """Train the recipe with these options, also without the correction that a run with old samples must have."""
    every = config_rules.contradictions
    config_rules.contradictions = lambda config: (each for each in every(config) if "importance is none" not in each)
    launch(azr_14m_learn.config, argv)


def learned(lines: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Return the cells of a run's row: ratios over the steps with old samples, rewards of the last third, the exam."""
    steps = [line for line in lines if line["step"] > 0]
    old = [step for step in steps if step.get("staleness/mean", 0) > 0]

    def mean(name: str, of: Sequence[Mapping[str, float]]) -> str:
        return f"{statistics.fmean(step[name] for step in of):.4g}" if of else "-"

    exams = [line["eval/exam/mean@4"] for line in lines if "eval/exam/mean@4" in line]
    return {
        "age": mean("staleness/mean", old),
        "tokens cut or masked": mean("policy/importance_cut", old),
        "mean weight": mean("policy/importance_weight", old),
        "mismatch, nats": mean("policy/mismatch_mean", old),
        "its p99": mean("policy/mismatch_p99", old),
        "ratio outside [0.9, 1.1]": mean("policy/mismatch_frac_outside", old),
        "gradient norm": mean("policy/grad_norm", old),
        "solved at the end": mean("deduction/solver/accuracy", steps[-math.ceil(len(steps) / 3) :]),
        "exam": " to ".join(f"{share:.1%}" for share in exams),
    }


def compare_importance(options: argparse.Namespace, root: Path) -> None:
    """Print a table of every choice of `algorithm.importance` at every age, row by row."""
    for age in options.ages:
        for number, importance in enumerate(options.importance):
            run = learn(root, importance, age, options.steps, options.prompts)
            row = {"importance": importance} | learned(_metrics(run))
            if age == options.ages[0] and number == 0:
                print(f"| {' | '.join(row)} |\n|{'---|' * len(row)}")
            print(f"| {' | '.join(row.values())} |", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Prints every run and, for every mode, the median of its rates over those of the first mode."""
    options = _parser().parse_args(argv)
    if options.learn is not None:
        learn_here(options.learn)
        return 0
    if options.importance:
        with tempfile.TemporaryDirectory() as folder:
            compare_importance(options, Path(options.keep or folder))
        return 0
    if options.play is not None:
        play(Path(options.play), options.modes[0], options.steps, options.median, options.sigma)
        return 0
    results: dict[str, list[dict[str, float]]] = {mode: [] for mode in options.modes}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for mode in options.modes:
                root = Path(options.keep or folder, f"round_{number}")
                command = [sys.executable, "-m", "benchmarks.staleness", "--play", str(root), "--modes", mode]
                command += [f"--{name}={getattr(options, name)}" for name in ("steps", "median", "sigma")]
                subprocess.run(command, check=True, stdout=sys.stderr)
                results[mode].append(rate(root / mode))
                shown = ", ".join(f"{name} {value:.4g}" for name, value in results[mode][-1].items())
                print(f"{mode}: {shown}", flush=True)
    middle = {mode: statistics.median(each["tokens_per_s"] for each in of_mode) for mode, of_mode in results.items()}
    base = middle[options.modes[0]]
    for mode, tokens in middle.items():
        print(f"{mode}: {tokens:.0f} tokens/s, {tokens / base:.2f} times {options.modes[0]}")
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--median", type=float, default=64.0, help="tokens of the median response")
    parser.add_argument("--sigma", type=float, default=1.0, help="of the lengths' logarithm")
    parser.add_argument("--importance", nargs="+", choices=[each.name for each in IMPORTANCE], default=[])
    parser.add_argument("--ages", nargs="+", type=int, default=[1, 2], help="of the weights that sample, in steps")
    parser.add_argument("--prompts", type=int, default=32, help="proposals of a step, with --importance")
    parser.add_argument("--json", type=Path, help="writes every run's numbers there")
    parser.add_argument("--keep", type=Path, help="keeps the run directories there")
    parser.add_argument("--play", metavar="ROOT", help=argparse.SUPPRESS)
    parser.add_argument("--learn", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
