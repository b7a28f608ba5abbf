"""Do the recipes of data files learn: PPO and GRPO where right answers are rare, LUFFY where there are none.

    python -m benchmarks.data_learning OUT [--seeds 1 2 3] [--arms ppo grpo luffy on_policy] [--steps N]

Real engines, trainers and driver through the shipped recipes, with the 14M model and small sizes. First
`playground.sft` makes a base that answers in chat form and seldom tells the larger of two numbers. From it, ``ppo``
(`playground.orz_0b5_ppo`) and ``grpo`` (the same with that estimator) answer more questions of this sort; ``luffy``
(`playground.luffy_7b`) and ``on_policy`` (the same without traces) are asked to write a number backwards, of which the
base knows nothing.

No question comes twice, and none of the base's comes again, so every share of right answers is of unseen questions.
OUT keeps all files and runs; a run that is there is not repeated, so delete one that was interrupted. The figure is
`OUT/data_learning.png`.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

BASE_STEPS, BASE_PROMPTS, MOST_QUESTIONS = 46, 64, 6_000
NUM_PROMPTS = 32
ENDS = 5
"""Steps at the start and at the end of a run whose answers are counted together."""
SIZES = shlex.split("""
    --model.prompt-format chat --rollout.max-prompt-tokens 64 --rollout.max-response-tokens 32 --rollout.engines 1
    --train.data-parallel 1 --train.gradient-checkpointing none --train.tokens-per-micro-batch 8192
    --train.warmup-steps 5 --eval.every 0 --checkpoint.every 0 --run.no-stop-when-malformed
""")
SFT = shlex.split(f"--data.prompts {BASE_PROMPTS} --train.policy-lr 1e-3 --train.decay-steps 0")
RL = f"--data.prompts {NUM_PROMPTS} --train.policy-lr 3e-4 --data.samples"
PPO = RL.replace("3e-4", "1e-4")  # at 3e-4 one of two seeds ended in babble
ARMS = {
    "ppo": ("orz_0b5_ppo", "larger", 40, f"{PPO} 8 --train.critic-lr 3e-4 --algorithm.estimator.critic-mini-batches 4"),
    "grpo": ("orz_0b5_ppo", "larger", 40, f"{RL} 8 --algorithm.estimator grpo"),
    "luffy": ("luffy_7b", "backwards", 60, f"{RL} 7"),
    "on_policy": ("luffy_7b", "backwards", 60, f"{RL} 8 --data.traces 0"),
}
"""Recipe, task, steps and options."""
LINES = {"ppo": "PPO", "grpo": "GRPO", "luffy": "LUFFY", "on_policy": "the same without traces"}
TITLES = {"larger": "the larger of two numbers", "backwards": "a number backwards, which the base cannot write"}
TEMPLATE = """{% for message in messages %}{{ message['role'] | capitalize }}: {{ message['content'] }}
{% endfor %}{% if add_generation_prompt %}Assistant: <think>{% endif %}"""


def write_questions(path: Path, task: str, count: int, first: int = 0) -> None:
    """Rows ``first`` to ``first + count`` of all questions of a task, in an order that is always the same."""
    larger = task == "larger"
    numbers = list(range(10_000) if larger else range(1_000, 10_000))
    random.Random(task).shuffle(numbers)
    with path.open("w") as file:
        for number in numbers[first : first + count]:
            a, b = divmod(number, 100)
            answer = str(max(a, b)) if larger else str(number)[::-1]
            row = {
                "prompt": f"max of {a} and {b}" if larger else f"backwards {number}",
                "grader": "math",
                "answer": answer,
                "source": task,
                "traces": [f"</think>\\boxed{{{answer}}}"],
            }
            file.write(json.dumps(row) + "\n")


def run(out: Path, recipe: str, name: str, data: Path, model: Path | str, seed: int, options: Sequence[str]) -> Path:
    """The run's directory, after the run where there was none."""
    folder = out / name
    if not folder.is_dir():
        where = [
            *("--model.path", str(model), "--model.template", str(out / "template.jinja"), "--data.path", str(data)),
            *("--run.root", str(out), "--run.name", name, "--run.seed", str(seed)),
        ]
        subprocess.run(
            [sys.executable, "-m", f"playground.{recipe}", *SIZES, *options, *where],
            check=True,
        )
    return folder


def make_base(out: Path) -> Path:
    """A Hugging Face folder of a policy that knows the form of an answer, and little else."""
    data, model = out / "base.jsonl", out / "base_model"
    write_questions(data, "larger", BASE_STEPS * BASE_PROMPTS)
    steps = ["--run.steps", str(BASE_STEPS)]
    folder = run(out, "sft", "base", data, "data/azr_14m_base", 1, [*SFT, *steps])
    if not model.is_dir():
        subprocess.run([sys.executable, "-m", "azr", "export", str(folder), str(model)], check=True)
    return model


def right_answers(folder: Path, task: str) -> list[tuple[int, int]]:
    """Right answers and sampled ones of every step; traces are not counted."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    sampled = [(line[f"{task}/solver/accuracy"], line[f"{task}/solver/trajectories"]) for line in lines]
    return [(round(share * count), count) for share, count in sampled]


def wilson(right: int, count: int) -> tuple[float, float]:
    """95% interval of a share."""
    z, share = 1.96, right / count
    centre, half = share + z * z / (2 * count), z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return (centre - half) / (1 + z * z / count), (centre + half) / (1 + z * z / count)


def ends(counts: Sequence[tuple[int, int]]) -> str:
    """Share of right answers with its interval at the start and at the end, in percent."""
    texts = []
    for part in (counts[:ENDS], counts[-ENDS:]):
        right, count = (sum(numbers) for numbers in zip(*part, strict=True))
        low, high = wilson(right, count)
        texts.append(f"{100 * right / count:5.1f} [{100 * low:.1f}, {100 * high:.1f}]")
    return " -> ".join(texts)


def draw(path: Path, results: dict[str, list[list[tuple[int, int]]]]) -> None:
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.6), sharey=True, layout="constrained")
    for axis, (task, title) in zip(axes, TITLES.items(), strict=True):
        for number, (arm, runs) in enumerate((arm, runs) for arm, runs in results.items() if ARMS[arm][1] == task):
            for seed, counts in enumerate(runs):
                shares = [100 * right / count for right, count in counts]
                label = LINES[arm] if not seed else None
                axis.plot(range(1, len(shares) + 1), shares, color=f"C{number}", linewidth=1.4, label=label)
        axis.set(title=title, xlabel="step", ylim=(0, 100))
        axis.grid(alpha=0.3)
        axis.legend(frameon=False)
    axes[0].set_ylabel("right answers, %")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--steps", type=int, help="instead of each arm's own number")
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / "template.jinja").write_text(TEMPLATE)
    base = make_base(out)
    for task in TITLES:
        write_questions(out / f"{task}.jsonl", task, MOST_QUESTIONS, BASE_STEPS * BASE_PROMPTS)
    results: dict[str, list[list[tuple[int, int]]]] = {arm: [] for arm in args.arms}
    for seed in args.seeds:
        for arm in args.arms:
            recipe, task, steps, options = ARMS[arm]
            options = [*shlex.split(options), "--run.steps", str(args.steps or steps)]
            folder = run(out, recipe, f"{arm}_{seed}", out / f"{task}.jsonl", base, seed, options)
            results[arm].append(right_answers(folder, task))
            print(f"{arm:10} seed {seed}: {ends(results[arm][-1])}", flush=True)
    draw(out / "data_learning.png", results)
    print(f"figure: {out / 'data_learning.png'}")


if __name__ == "__main__":
    main()
