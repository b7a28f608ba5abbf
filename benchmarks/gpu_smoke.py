"""Does everything run on this machine's GPUs, and how fast: a GPU recipe on random models, in fifteen minutes.

python -m benchmarks.gpu_smoke [--second] [--minutes 15] [--out DIR] [--only CASE ...] [--real-model DIR] [--dry-run]

Needs the installed project and nothing else: it makes its own models of 0.5B, 1.5B and 7B shape with a real vocabulary.
``--real-model`` is the folder of a pretrained one, such as Qwen2.5-Coder-0.5B-Instruct, which then plays a few steps.
Each case is a process of its own; one that fails or runs out of time leaves the others alone. The most telling come
first, on two GPUs those that need them. It ends by itself after the minutes, which are enough for the first list by the
plan; ``--second`` adds another one. Called again with the same folder, it continues what has not succeeded. After
each case it prints what has been measured since, and writes all of it as JSON, with the output of every case; in the
end a table beside what the first GPUs showed, what the plan predicts and what is aimed at. Exit code 1 when a case did
not run to its end. ``--dry-run`` prints the commands with the minutes that each should take. ``--tiny`` does it all
with toy sizes on CPUs: the tiny model stands for every model, the pretrained one included, and cases that need a GPU or
two are left out by name.
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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks import smoke_rows

RECIPE = "playground.azr_coder7b_ppo"
REAL = "playground.azr_coder0b5_cpu"
"""What a pretrained model plays, with its prompts for such models."""
START_S, EAGER_START_S = 190.0, 60.0
"""From the command to the first step, with and without compiling: the first was measured on an H100, the other is a
guess."""
REPORT = "gpu_smoke.json"
"""What has been measured, in the folder."""
GRACE_S = 10.0
"""From the polite signal to the one that cannot be caught."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One command that must run to its end."""

    name: str
    command: list[str]
    limit_s: float
    expected_s: float
    """By the plan's arithmetic, or a guess."""
    gpus: int = 0
    """It is left out where there are fewer; 0 for a case that runs on CPUs too."""
    after: str | None = None
    """A case that must have succeeded."""
    instead_of: str | None = None
    """Run only if this case failed; one that ran out of time would do so once more."""
    goal: str = ""
    """What it is to show."""
    second: bool = False
    """Only in the second list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a case ended."""

    name: str
    status: str
    """``ok``, ``failed``, ``out of time``, ``not run`` or ``left out``, for it needs more GPUs."""
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
    largest: str
    prompts: int
    """Proposals, and as many solutions, of each of the three kinds."""
    response_tokens: int
    """Of the large model, whose steps are timed."""
    short_response_tokens: int
    """Of the small one, of which it is asked only that everything runs."""
    update_options: list[str]
    """Sizes of their batches, where these are not the defaults."""
    turns: int
    """Of the GPUs, between engines and trainers."""
    steps: int
    """Of the large model."""
    real_steps: int
    """Of a pretrained one."""
    engine_options: list[str]
    """Batches of the engine by itself, where these are not the defaults."""
    device: str
    limits: float
    """Factor of all limits."""


FULL = Sizes(
    small="0.5B",
    large="1.5B",
    largest="7B",
    prompts=32,
    response_tokens=1024,
    short_response_tokens=256,
    update_options=[],
    turns=20,
    steps=2,
    real_steps=5,
    engine_options=[],
    device="auto",
    limits=1,
)
TINY = Sizes(
    small="tiny",
    large="tiny",
    largest="tiny",
    prompts=3,
    response_tokens=32,
    short_response_tokens=32,
    update_options=["--tokens=256", "--prompt=32", "--response=64"],
    turns=2,
    steps=1,
    real_steps=1,
    engine_options=["--executors=uni", "--sequences=2", "--tokens=8"],
    device="cpu",
    limits=3,
)


TINY_PLAY = ["--selfplay.proposer-prompts=2", "--selfplay.proposals-per-prompt=2", "--selfplay.group-size=2",
             "--selfplay.repeated-tasks=2", "--selfplay.seed-tasks=2", "--rollout.max-response-tokens=16",
             "--run.no-stop-when-malformed"]  # fmt: skip
"""For the recipe of pretrained models."""

CHECK_INSTALL = """
from azr.doctor.machine import packages_section
section = packages_section(has_gpus={})
for each in section.findings:
    print(each.mark.name, each.name, each.message)
raise SystemExit(not section.ok)
"""


def recipe_options(sizes: Sizes, model: Path, root: Path, name: str, steps: int, tokens: int) -> list[str]:
    """The GPU recipe with sizes changed and nothing else but what random weights ask for: they only write nonsense."""
    return [
        f"--model.path={model}", f"--run.root={root}", f"--run.name={name}", f"--run.steps={steps}",
        "--run.no-stop-when-malformed", f"--train.device={sizes.device}", "--train.data-parallel=1",
        "--rollout.engines=1", f"--rollout.max-response-tokens={tokens}", "--rollout.max-prompt-tokens=3072",
        f"--selfplay.proposer-prompts={sizes.prompts}", f"--selfplay.solver-prompts={sizes.prompts}",
        "--selfplay.seed-tasks=0", "--selfplay.references=2", "--executor.workers=4",
    ]  # fmt: skip


def cases(sizes: Sizes, out: Path, real_model: Path | None = None) -> list[Case]:
    """What is run, the most telling first."""
    python, runs = sys.executable, out / "runs"
    trrpp = ["--algorithm.estimator=trrpp", "--algorithm.kl.coef=0"]
    # Only the large model's steps are timed; the others start sooner without compiling.
    eager, offload, lora = (
        ["--rollout.engine-options", "enforce_eager:true"],
        "--train.shard=offload",
        "--train.lora.rank=16",
    )
    no_checkpoint, compiled = "--checkpoint.every=0", [] if sizes is FULL else eager

    def steps(name: str, size: str, count: int, *more: str, limit_s: float, **rest: Any) -> Case:
        model = out / "models" / size
        tokens = sizes.response_tokens if size == sizes.large else sizes.short_response_tokens
        folder = name.removesuffix(" resumed").replace(" ", "_")
        options = recipe_options(sizes, model, runs, folder, count, tokens)
        step_s = smoke_rows.predicted([*options, *more], size)["step s"] if sizes is FULL else 0.0
        expected_s = (EAGER_START_S if eager[1] in more else START_S) + count * step_s
        rest.setdefault("after", of_size[size])
        # A case that was cut has left a run, which makes way.
        command = [python, "-m", RECIPE, *options, *more, *["--restart"] * ("--resume" not in more)]
        return Case(name=name, command=command, limit_s=sizes.limits * limit_s, expected_s=expected_s, **rest)

    def other(name: str, *command: str, limit_s: float, expected_s: float, **rest: Any) -> Case:
        limit_s *= sizes.limits
        return Case(name=name, command=[python, *command], limit_s=limit_s, expected_s=expected_s, **rest)

    def model(size: str) -> list[Case]:
        """The case that makes a model, unless one before has."""
        if size in of_size:
            return []
        of_size[size] = f"model {size}"
        folder = str(out / "models" / size)
        return [other(of_size[size], "-m", "benchmarks.random_model", size, folder, limit_s=90, expected_s=15)]

    def update(name: str, size: str, *more: str, limit_s: float, expected_s: float, goal: str) -> Case:
        command = ["-m", "benchmarks.update", "--size", size, "--micro-batches", "4"]
        command += ["--steps", "2", *sizes.update_options, "--json", str(out / f"update_{name}.json")]
        return other(f"update {name}", *command, *more, limit_s=limit_s, expected_s=expected_s, goal=goal)

    of_size: dict[str, str] = {}
    whole, both = ["--shard", "none"], ["--attention", "torch", *["flash_attn"] * (sizes is FULL)]
    small = out / "models" / sizes.small
    # Of the large model, which pushes of 32 MB would say nothing about.
    pushed = recipe_options(sizes, out / "models" / sizes.large, runs, "push", 1, sizes.short_response_tokens)
    engine = ["-m", "benchmarks.engine", str(out / "models" / sizes.large), str(out / "engine.json")]
    listed = [
        other("install", "-c", CHECK_INSTALL.format(sizes is FULL), limit_s=60, expected_s=25,
              goal="FlashAttention 4 can be imported"),
        other("attention", "-m", "benchmarks.attention", limit_s=60, expected_s=30,
              goal="FlashAttention 4 agrees with torch's kernel and is no slower"),
        update(sizes.large, sizes.large, *whole, "--checkpointing", "none", "full", *both, limit_s=150, expected_s=90,
               goal="43% of the peak without recomputation"),
        update(f"{sizes.large} compiled", sizes.large, *whole, "--checkpointing", "none", "--kernels", "compile",
               limit_s=150, expected_s=45, goal="8% more tokens a second than with Liger's kernels"),
        *model(sizes.large),
        other("push", "-m", "benchmarks.push", "5", str(out / "push.json"), RECIPE, *pushed, *trrpp, *eager,
              limit_s=150, expected_s=EAGER_START_S + 20, after=of_size[sizes.large],
              goal="60 GB/s with buckets of 1 GiB"),
        # The profile slows its step down, which is none of those that are measured.
        steps("trrpp", sizes.large, sizes.steps + 1, *trrpp, no_checkpoint,
              f"--train.profile-step={sizes.steps + 1}", *compiled, limit_s=420, goal="a step of 18 s"),
        steps("trrpp by host", sizes.large, sizes.steps, *trrpp, no_checkpoint, "--cluster.push=host", *compiled,
              limit_s=420, instead_of="trrpp"),
        other("engine", *engine, *sizes.engine_options, limit_s=200, expected_s=90, after=of_size[sizes.large],
              goal="below 5 ms a token with 96 sequences"),
    ]  # fmt: skip
    listed += model(sizes.small)
    turns = ["-m", "benchmarks.smoke_turns", str(sizes.turns), str(out / "turns.json"), RECIPE]
    turns += recipe_options(sizes, small, runs, "turns", 1, sizes.short_response_tokens)
    listed += [
        steps("gae", sizes.small, 1, offload, "--checkpoint.every=1", *eager, limit_s=150, goal="a checkpoint"),
        steps("gae resumed", sizes.small, 2, offload, "--resume", "--cluster.push=host", *eager, limit_s=150,
              after="gae", goal="continues the critic's and the policy's state"),
        *model(sizes.largest),
        steps("7B with adapters", sizes.largest, 1, *trrpp, lora, no_checkpoint, *eager, limit_s=200, gpus=1,
              goal="a step and a push of 15 GB"),
    ]  # fmt: skip
    second = [
        other("turns", *turns, *trrpp, *eager, limit_s=200, expected_s=EAGER_START_S + 2 * sizes.turns,
              after=of_size[sizes.small], goal="the last turn holds no more memory than the first"),
        update(f"{sizes.largest} layers", sizes.largest, "--layers", "6" if sizes is FULL else "2", *whole, *both,
               "--checkpointing", "none", limit_s=150, expected_s=60, goal="45% of the peak"),
        steps("adapters in 4 bits", sizes.small, 1, *trrpp, lora, "--train.lora.four-bit", no_checkpoint, *eager,
              limit_s=120, gpus=1),
        other("export", "-m", "azr", "export", str(runs / "gae"), str(out / "export"), limit_s=60, expected_s=15,
              after="gae"),
    ]  # fmt: skip
    if real_model is not None or sizes is TINY:
        options = [f"--model.path={real_model or small}", f"--run.root={runs}", "--run.name=real"]
        options += [
            f"--run.steps={sizes.real_steps}",
            f"--train.device={sizes.device}",
            no_checkpoint,
            "--eval.every=0",
        ]
        options += TINY_PLAY if sizes is TINY else []
        second.append(
            other("real model", "-m", REAL, *options, "--restart", *compiled, limit_s=200,
                  expected_s=90 + 6 * sizes.real_steps, after=of_size[sizes.small] if sizes is TINY else None,
                  goal="five steps, half of the proposals valid")
        )  # fmt: skip
    listed += [replace(case, second=True) for case in second]
    return listed + two_gpus(steps, sizes, trrpp, eager)


def two_gpus(steps: Callable[..., Case], sizes: Sizes, trrpp: list[str], eager: list[str]) -> list[Case]:
    """What needs two GPUs, which nobody has tried; where there are two, it comes first (`main`)."""
    pair = ["--train.data-parallel=2", *eager]
    return [
        steps("tensor parallel 2", sizes.small, 2, *trrpp, "--rollout.tensor-parallel=2", *pair, limit_s=200, gpus=2,
              goal="an engine of two GPUs takes the weights of two ranks"),
        steps("data parallel 2", sizes.small, 2, *trrpp, "--rollout.engines=2", *pair, limit_s=200, gpus=2,
              goal="NCCL's collectives"),
        steps("engines apart", sizes.small, 2, *trrpp, "--cluster.no-colocate", *eager, limit_s=200, gpus=2,
              goal="a push by NCCL"),
        steps("critic on two", sizes.small, 1, "--rollout.engines=2", "--checkpoint.every=1", *pair, limit_s=200,
              gpus=2, goal="a checkpoint of two ranks"),
        steps("critic on two resumed", sizes.small, 2, "--rollout.engines=2", "--resume", *pair, limit_s=200, gpus=2,
              after="critic on two", goal="both models return, one after the other"),
    ]  # fmt: skip


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


def run_all(
    listed: Sequence[Case],
    out: Path,
    gpus: int,
    minutes: float,
    say: Callable[[str], None],
    known: Callable[[Sequence[Outcome]], None] = lambda outcomes: None,
    before: Mapping[str, Outcome] = MappingProxyType({}),
) -> list[Outcome]:
    """All cases one after the other, as far as time and GPUs suffice; `known` is called after each. A case that has
    succeeded `before` is not run again."""
    deadline, outcomes = time.monotonic() + 60 * minutes, list[Outcome]()
    for case in listed:
        if case.name in before and before[case.name].status == "ok":
            outcomes.append(before[case.name])
            continue
        left_s = deadline - time.monotonic()
        failed = {outcome.name for outcome in outcomes if outcome.status != "ok"}
        if case.instead_of and case.instead_of not in {each.name for each in outcomes if each.status == "failed"}:
            continue
        if case.gpus > gpus:
            needs = "a GPU" if case.gpus == 1 else f"{case.gpus} GPUs"
            outcome = Outcome(name=case.name, status="left out", why=f"needs {needs}")
        elif case.after in failed:
            outcome = Outcome(name=case.name, status="not run", why=f"{case.after} did not succeed")
        elif left_s < 2 * GRACE_S:
            outcome = Outcome(name=case.name, status="not run", why=f"the {minutes:g} minutes are over")
        else:
            outcome = run_case(case, out, left_s - GRACE_S)
        aim = f" (goal: {case.goal})" if case.goal and outcome.status == "ok" else ""
        say(f"{case.name}: {outcome.status} after {outcome.seconds:.0f} s{aim}")
        if outcome.why:
            say("    " + outcome.why.strip().replace("\n", "\n    "))
        outcomes.append(outcome)
        known(outcomes)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, prog="python -m benchmarks.gpu_smoke"
    )
    parser.add_argument("--minutes", type=float, default=15, help="all cases together; what is left then is not run")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("orz_ckpt/gpu_smoke"),
        help="folder for models, runs, logs; one that is there continues where it was cut",
    )
    parser.add_argument("--second", action="store_true", help="continue the second list; --tiny takes both")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="these cases, with those that they need")
    parser.add_argument("--real-model", type=Path, metavar="DIR", help="folder of a pretrained model to play with")
    parser.add_argument("--dry-run", action="store_true", help="print the commands and what the plan predicts, and end")
    parser.add_argument("--tiny", action="store_true", help="toy sizes, on the CPU")
    options = parser.parse_args()
    sizes, out = TINY if options.tiny else FULL, options.out.absolute()
    gpus = [] if options.tiny else gpu_names()
    listed = cases(sizes, out, options.real_model)
    if options.only or not (options.second or options.tiny):
        listed = chosen(listed, options.only or [case.name for case in listed if not case.second])
    if len(gpus) > 1:  # they are why two GPUs are had
        listed.sort(key=lambda case: case.name != "install" and case.gpus < 2 and case.name != f"model {sizes.small}")
    if options.dry_run:
        for case in listed:
            minutes = f"{case.expected_s / 60:.1f} min expected"
            head = f"{case.name} (at most {case.limit_s:.0f} s, {minutes}, {max(1, case.gpus)} GPU)"
            print(f"{head}: {case.goal}\n  {shlex.join(case.command)}")
        alone = [case for case in listed if case.gpus <= 1 and case.instead_of is None]
        for name, second in (("first", False), ("second", True)):
            expected_s = sum(case.expected_s for case in alone if case.second is second)
            print(f"{name} list on one GPU: {expected_s / 60:.1f} min expected")
        print(smoke_rows.table({}, plan_of(listed, sizes)))
        return 0
    if not gpus and not options.tiny:
        print(
            "nvidia-smi shows no GPU here: take --dry-run to see what would be run, or --tiny for toy sizes on the CPU"
        )
        return 2
    report_file, before = out / REPORT, dict[str, Outcome]()
    if report_file.is_file():
        done = json.loads(report_file.read_text())["cases"]
        before = {case["name"]: Outcome(**case) for case in done}
    elif out.exists():
        print(f"{out} is there already and has no {REPORT}: name a new folder with --out, or remove it")
        return 2
    out.mkdir(parents=True, exist_ok=True)
    print("\n".join(gpus), flush=True)
    predicted = plan_of(listed, sizes)
    report = Report(out, gpus, predicted, before)
    outcomes = run_all(listed, out, len(gpus), options.minutes, report.say, report.write, before)
    print(smoke_rows.table(report.measured, predicted))
    print(f"all of it: {report_file}")
    return int(any(outcome.status not in ("ok", "left out") for outcome in outcomes))


class Report:
    """What has been measured so far, printed and on disk after each case."""

    def __init__(
        self,
        out: Path,
        gpus: Sequence[str],
        plan: Mapping[str, float],
        before: Mapping[str, Outcome] = MappingProxyType({}),
    ) -> None:
        """``before``: outcomes of an earlier call, which stay until a case is run again."""
        self._out, self._gpus, self._plan, self._before = out, gpus, plan, before
        self.measured: dict[str, float] = {}

    def say(self, line: str) -> None:
        print(line, flush=True)

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """Print what is new, and write everything."""
        measured = self.measured
        try:
            measured = smoke_rows.measure(self._out)
        except (KeyError, ValueError) as error:  # half a line of a case that was killed; the others continue
            self.say(f"    what the cases have written cannot be read: {error!r}")
        for key, value in measured.items():
            if key not in self.measured:
                self.say(f"    {key}: {value:.4g}")
        self.measured = measured
        cases = [asdict(each) for each in ({**self._before} | {each.name: each for each in outcomes}).values()]
        report = {"gpus": self._gpus, "cases": cases, "measured": measured, "plan": self._plan}
        (self._out / REPORT).write_text(json.dumps(report, indent=1) + "\n")


def plan_of(listed: Sequence[Case], sizes: Sizes) -> dict[str, float]:
    """What the plan says of the case whose steps are in the table; nothing without it, and for toy sizes."""
    options = [case.command[3:] for case in listed if case.name == "trrpp" and sizes is FULL]
    return smoke_rows.predicted(options[0], sizes.large) if options else {}


def chosen(listed: Sequence[Case], only: Sequence[str]) -> list[Case]:
    """The named cases and those that they need, in order. Exits for a name there is not."""
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
