"""Does everything run on this machine's GPUs, and how fast: a GPU recipe on random models, in ten minutes.

python -m benchmarks.gpu_smoke [--minutes 10] [--out DIR] [--only CASE ...] [--dry-run]

Needs the installed project and nothing else: it makes its own models of 0.5B and 1.5B shape with a real vocabulary.
Each case is a process of its own; one that fails or runs out of time leaves the others alone. Prints what was measured
beside what the first H100 showed, what the plan predicts and what is aimed at; writes the same as JSON, with the output
of every case. Exit code 1 when a case did not run to its end. ``--tiny`` does it all with toy sizes, for a machine
without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks import smoke_rows

RECIPE = "playground.azr_coder7b_ppo"
GRACE_S = 10.0
"""From the polite signal to the one that cannot be caught."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One command that must run to its end."""

    name: str
    command: list[str]
    limit_s: float
    gpus: int = 1
    after: str | None = None
    """A case that must have succeeded."""
    instead_of: str | None = None
    """Run only if this case failed; one that ran out of time would do so once more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a case ended."""

    name: str
    status: str
    """``ok``, ``failed``, ``out of time`` or ``not run``."""
    seconds: float = 0.0
    log: str = ""
    """File with all that it printed."""
    why: str = ""
    """The end of its output, where it did not run to its end."""
    results: dict[str, float] = field(default_factory=dict)
    """What it wrote to its result file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """How much of everything the cases do."""

    small: str
    large: str
    prompts: int
    """Proposals, and as many solutions, of each of the three kinds."""
    response_tokens: int
    """Of the large model, whose steps are timed."""
    short_response_tokens: int
    """Of the small one, of which it is asked only that everything runs."""
    update_layers: dict[str, int]
    """Layers of the sizes whose update is measured by itself; all of 7B do not fit."""
    update_checkpointing: dict[str, list[str]]
    """How, a process each."""
    turns: int
    device: str
    limits: float
    """Factor of all limits."""


FULL = Sizes(
    small="0.5B",
    large="1.5B",
    prompts=32,
    response_tokens=1024,
    short_response_tokens=256,
    update_layers={"1.5B": 28, "7B": 6},
    update_checkpointing={"1.5B": ["full", "selective"], "7B": ["none"]},
    turns=20,
    device="auto",
    limits=1,
)
TINY = Sizes(
    small="tiny",
    large="tiny",
    prompts=3,
    response_tokens=32,
    short_response_tokens=32,
    update_layers={},
    update_checkpointing={},
    turns=3,
    device="cpu",
    limits=3,
)


def recipe_options(sizes: Sizes, model: Path, root: Path, name: str, steps: int, tokens: int) -> list[str]:
    """The GPU recipe with sizes changed and nothing else but what random weights ask for: they only write nonsense."""
    return [
        f"--model.path={model}", f"--run.root={root}", f"--run.name={name}", f"--run.steps={steps}",
        "--run.no-stop-when-malformed", f"--train.device={sizes.device}", "--train.data-parallel=1",
        "--rollout.engines=1", f"--rollout.max-response-tokens={tokens}", "--rollout.max-prompt-tokens=3072",
        f"--selfplay.proposer-prompts={sizes.prompts}", f"--selfplay.solver-prompts={sizes.prompts}",
        "--selfplay.seed-tasks=0", "--selfplay.references=2", "--executor.workers=4",
    ]  # fmt: skip


def cases(sizes: Sizes, out: Path) -> list[Case]:
    """What is run, the most telling first."""
    python, runs = sys.executable, out / "runs"
    small, large = out / "models" / sizes.small, out / "models" / sizes.large
    trrpp = ["--algorithm.estimator=trrpp", "--algorithm.kl.coef=0"]
    # Only the large model's steps are timed; the others start sooner without compiling.
    eager, offload = ["--rollout.engine-options", "enforce_eager:true"], "--train.offload-optimizer"

    def steps(
        name: str, model: Path, count: int, *more: str, limit_s: float, gpus: int = 1, after: str, **rest: str
    ) -> Case:
        tokens = sizes.response_tokens if model == large else sizes.short_response_tokens
        folder = name.removesuffix(" resumed").replace(" ", "_")
        options = recipe_options(sizes, model, runs, folder, count, tokens)
        command = [python, "-m", RECIPE, *options, *more]
        return Case(name=name, command=command, limit_s=sizes.limits * limit_s, gpus=gpus, after=after, **rest)

    def models(name: str, size: str, folder: Path) -> Case:
        command = [python, "-m", "benchmarks.random_model", size, str(folder)]
        return Case(name=name, command=command, limit_s=sizes.limits * 60)

    turns = [python, "-m", "benchmarks.smoke_turns", str(sizes.turns), str(out / "turns.json"), RECIPE]
    turns += recipe_options(sizes, small, runs, "turns", 1, sizes.short_response_tokens)
    export = [python, "-m", "azr", "export", str(runs / "gae"), str(out / "export")]
    listed = [
        models("large model", sizes.large, large),
        steps("trrpp", large, 2, *trrpp, "--checkpoint.every=0", limit_s=400, after="large model"),
        steps(
            "trrpp by host",
            large,
            2,
            *trrpp,
            "--checkpoint.every=0",
            "--cluster.push=host",
            limit_s=400,
            after="large model",
            instead_of="trrpp",
        ),
    ]
    if small != large:
        listed.append(models("small model", sizes.small, small))
    of_small = "small model" if small != large else "large model"
    listed += [
        steps("gae", small, 2, offload, "--checkpoint.every=1", *eager, limit_s=200, after=of_small),
        steps("gae resumed", small, 3, offload, "--resume", "--cluster.push=host", *eager,
              limit_s=150, after="gae"),
        Case(name="export", command=export, limit_s=sizes.limits * 60, after="gae"),
        Case(
            name="turns",
            command=[*turns, *trrpp, *eager],
            limit_s=sizes.limits * 200,
            after=of_small,
        ),
    ]  # fmt: skip
    for size, layers in sizes.update_layers.items():
        command = [python, "-m", "benchmarks.update", "--size", size, "--layers", str(layers)]
        command += ["--checkpointing", *sizes.update_checkpointing[size], "--micro-batches", "4", "--steps", "2"]
        command += ["--json", str(out / f"update_{size}.json")]
        listed.append(Case(name=f"update {size}", command=command, limit_s=150))
    listed += [
        steps("tensor parallel 2", small, 2, *trrpp, "--rollout.tensor-parallel=2", "--train.data-parallel=2", *eager,
              limit_s=200, gpus=2, after=of_small),
        steps("data parallel 2", small, 2, *trrpp, "--rollout.engines=2", "--train.data-parallel=2", *eager,
              limit_s=200, gpus=2, after=of_small),
    ]  # fmt: skip
    return listed


def environment() -> dict[str, str]:
    """Of every case. Without compiled modules each process would compile all of vLLM again."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return inherited | {"HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def run_case(case: Case, out: Path, left_s: float) -> Outcome:
    """Runs the command in a session of its own, all of which ends with it."""
    log, started = out / f"{case.name.replace(' ', '_')}.log", time.monotonic()
    limit = min(case.limit_s, left_s)
    with log.open("w") as file:
        process = subprocess.Popen(
            case.command,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment(),
        )
        try:
            code = process.wait(limit)
            status = "ok" if code == 0 else "failed"
        except subprocess.TimeoutExpired:
            status = "out of time"
        finally:
            end_session(process)
    why = "" if status == "ok" else log.read_text(errors="replace")[-1500:]
    return Outcome(name=case.name, status=status, seconds=time.monotonic() - started, log=str(log), why=why)


def end_session(process: subprocess.Popen[bytes]) -> None:
    """Ends a case's process and what it started; a run that is asked politely leaves nothing on the GPU."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            continue
    process.wait()


def gpu_names() -> list[str]:
    """Of this machine's GPUs; empty without any."""
    if shutil.which("nvidia-smi") is None:
        return []
    asked = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().splitlines()


def run_all(listed: Sequence[Case], out: Path, gpus: int, minutes: float, say: Callable[[str], None]) -> list[Outcome]:
    """All cases one after the other, as far as time and GPUs suffice."""
    deadline, outcomes = time.monotonic() + 60 * minutes, []
    for case in listed:
        left_s = deadline - time.monotonic()
        failed = {outcome.name for outcome in outcomes if outcome.status != "ok"}
        if case.instead_of and case.instead_of not in {each.name for each in outcomes if each.status == "failed"}:
            continue
        if case.gpus > max(1, gpus):
            say(f"{case.name}: left out, it takes {case.gpus} GPUs")
            continue
        if case.after in failed:
            outcome = Outcome(name=case.name, status="not run", why=f"{case.after} did not succeed")
        elif left_s < GRACE_S:
            outcome = Outcome(name=case.name, status="not run", why=f"the {minutes:g} minutes are over")
        else:
            outcome = run_case(case, out, left_s)
        say(f"{case.name}: {outcome.status} after {outcome.seconds:.0f} s")
        if outcome.why:
            say("    " + outcome.why.strip().replace("\n", "\n    "))
        outcomes.append(outcome)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="python -m benchmarks.gpu_smoke"
    )
    parser.add_argument("--minutes", type=float, default=10, help="all cases together; what is left then is not run")
    parser.add_argument(
        "--out", type=Path, default=Path("orz_ckpt/gpu_smoke"), help="new folder for models, runs, logs"
    )
    parser.add_argument("--only", nargs="+", metavar="CASE", help="these cases, with those that they need")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and what the plan predicts, and end")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, on the CPU")
    options = parser.parse_args()
    sizes, out, gpus = TINY if options.tiny else FULL, options.out.absolute(), gpu_names()
    listed = chosen(cases(sizes, out), options.only)
    if options.dry_run:
        for case in listed:
            print(f"{case.name} (at most {case.limit_s:.0f} s, {case.gpus} GPU):\n  {shlex.join(case.command)}")
        print(smoke_rows.table({}, plan_of(listed, sizes)))
        return 0
    if not gpus and not options.tiny:
        print(
            "nvidia-smi shows no GPU here: take --dry-run to see what would be run, or --tiny for toy sizes on the CPU"
        )
        return 2
    if out.exists():
        print(f"{out} is there already: name a new folder with --out, or remove it")
        return 2
    out.mkdir(parents=True)
    print("\n".join(gpus), flush=True)
    outcomes = run_all(listed, out, len(gpus), options.minutes, lambda line: print(line, flush=True))
    measured = smoke_rows.measure(out)
    predicted = plan_of(listed, sizes)
    print(smoke_rows.table(measured, predicted))
    report = {"gpus": gpus, "cases": [asdict(outcome) for outcome in outcomes], "measured": measured, "plan": predicted}
    (out / "gpu_smoke.json").write_text(json.dumps(report, indent=1) + "\n")
    print(f"all of it: {out / 'gpu_smoke.json'}")
    return int(any(outcome.status != "ok" for outcome in outcomes))


def plan_of(listed: Sequence[Case], sizes: Sizes) -> dict[str, float]:
    """What the plan says of the case whose steps are in the table; nothing without it, and for toy sizes."""
    options = [case.command[3:] for case in listed if case.name == "trrpp" and sizes is FULL]
    return smoke_rows.predicted(options[0], sizes.large) if options else {}


def chosen(listed: Sequence[Case], only: Sequence[str] | None) -> list[Case]:
    """The named cases and those that they need, in order; all where none is named. Exits for a name there is not."""
    if only is None:
        return list(listed)
    by_name: Mapping[str, Case] = {case.name: case for case in listed}
    if unknown := [name for name in only if name not in by_name]:
        sys.exit(f"there is no case {unknown[0]!r}: take some of {', '.join(by_name)}")
    wanted: set[str] = set()
    for name in only:
        needed: str | None = name
        while needed is not None:
            wanted.add(needed)
            needed = by_name[needed].after
    return [case for case in listed if case.name in wanted]


if __name__ == "__main__":
    sys.exit(main())
