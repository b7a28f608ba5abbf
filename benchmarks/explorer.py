"""How long the explorer takes over a long run: ``python -m benchmarks.explorer [--steps 500 --trajectories 2000]``.

Makes a run directory by the run's own writers, with prompts and responses of a usual length, indexes it, opens it once
indexed as ``azr view`` does, and asks for every page through the server's application. Times are wall-clock seconds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
from starlette.testclient import TestClient

from azr.explorer import queries
from azr.explorer.index import RunIndex
from azr.explorer.queries import TaskFilter
from azr.explorer.server import make_app
from azr.records import Completion, Judgement, Sample, Task
from azr.runs.sample_file import JsonLines, write_samples

KINDS = ("deduction", "abduction", "induction")
GROUP = 8
OPEN_S, PAGE_S = 2.0, 0.3
"""What is aimed at."""


def words(rng: random.Random, count: int) -> str:
    """Text that is about as hard to compress as a model's."""
    return " ".join(rng.choice(_WORDS) for _ in range(count))


_WORDS = ["".join(random.Random(i).choices("etaoinshrdlu", k=2 + i % 7)) for i in range(3000)]


def program(rng: random.Random) -> str:
    lines = [
        f"    x{i} = x{max(0, i - 1)} * {rng.randrange(99)} + len({words(rng, 3)!r})"
        for i in range(rng.randrange(2, 15))
    ]
    return "\n".join(["def f(x0):", *lines, f"    return x{len(lines) - 1}"])


def step_of(step: int, count: int, texts: Sequence[str], rng: random.Random) -> Iterator[Sample]:
    """Proposals, each with a group of answers."""
    ids = np.arange(len(texts), dtype=np.int32)
    for number in range(count // (GROUP + 1)):
        kind = KINDS[number % 3]
        id = f"{step:06d}-{kind}-{number:04d}"
        prompt = np.array([rng.randrange(len(texts))], np.int32)
        prompt.flags.writeable = False
        for place in range(GROUP + 1):
            role = "solver" if place else "proposer"
            verdict = rng.choice(["right", "wrong", "wrong", "malformed"] if place else ["valid", "valid", "failed"])
            completion = Completion(
                prompt_ids=prompt, response_ids=ids[(at := rng.randrange(len(texts))) : at + 1], logprobs=-0.5,
                finish_reason="stop", weight_versions=step - 1,
            )  # fmt: skip
            judgement = Judgement(verdict=verdict, detail="f(3) returned 4, not 5", answer=(("output", "4"),))
            yield Sample(
                completion=completion, role=role, kind=kind, problem_id=id, group=f"estimate:{id}", reward=-0.5,
                reward_parts={verdict: -0.5}, accuracy=float(verdict == "right") if place else None,
                judgement=judgement, advantage=rng.gauss(0, 1), mismatch=0.005,
            )  # fmt: skip


def make_run(path: Path, steps: int, trajectories: int) -> None:
    (path / "rollouts").mkdir(parents=True)
    rng = random.Random(0)
    texts = [words(rng, 350) for _ in range(400)]  # 2 KB each; a record has two
    tasks, metrics = JsonLines(path / "tasks.jsonl"), JsonLines(path / "metrics.jsonl")
    known = [f"seed-{kind}" for kind in KINDS]
    tasks.write(asdict(_task(id, kind, 0, [], rng)) for id, kind in zip(known, KINDS, strict=True))
    for step in range(1, steps + 1):
        samples = list(step_of(step, trajectories, texts, rng))
        write_samples(path / "rollouts" / f"step_{step:06d}.jsonl.gz", step, samples, lambda ids: texts[int(ids[0])])
        valid = [each for each in samples if each.verdict == "valid"]
        tasks.write(
            asdict(_task(each.problem_id, each.kind, step, rng.sample(known[-2000:], min(3, len(known))), rng))
            for each in valid
        )
        known += [each.problem_id for each in valid]
        metrics.write([{"step": step, **_numbers(rng)}])


def _task(id: str, kind: str, step: int, parents: Sequence[str], rng: random.Random) -> Task:
    return Task(
        id=id, kind=kind, program=program(rng), inputs=("3",), outputs=("4",),
        fingerprint=id, parents=tuple(parents), step=step, solve_rate=rng.randrange(9) / 8,
    )  # fmt: skip


def _numbers(rng: random.Random) -> dict[str, float]:
    names = [
        f"{kind}/{role}/{name}"
        for kind in KINDS
        for role in ("proposer", "solver")
        for name in ("reward", "accuracy", "response_length")
    ]
    names += [
        f"{kind}/proposer/funnel/{name}" for kind in KINDS for name in ("proposed", "valid", "failed", "malformed")
    ]
    names += [f"seconds/phase {i}" for i in range(15)] + [f"policy/measure {i}" for i in range(60)] + ["seconds/step"]
    return {name: rng.random() for name in names}


def measure(path: Path) -> None:
    started = time.perf_counter()
    with closing(RunIndex(path)) as index:
        index.refresh()
        nbytes = index.path.stat().st_size
    print(f"{'indexing, once':<44}{time.perf_counter() - started:8.2f} s, {nbytes / 1e6:.0f} MB of index")
    started = time.perf_counter()
    client = TestClient(make_app([path]))
    assert client.get("/0/").status_code == 200
    _tell("opened once indexed, the first page included", time.perf_counter() - started, OPEN_S)
    with closing(RunIndex(path)) as index:
        last = queries.steps(index)[-1]
        (task, *_), _ = queries.find_tasks(index, TaskFilter(step_from=last // 2, order="oldest", limit=1))
        shown = queries.find_tasks(index, TaskFilter(order="most children", limit=1))[0][0]["id"]
    for name, address in {
        "overview": "", "newest tasks": "tasks", "hardest tasks": "tasks?order=hardest",
        "tasks with a rare text": "tasks?text=x0+%2A+42+%2B+len&order=hardest",
        "tasks with 'return'": "tasks?text=return", "tasks with 'x0_'": "tasks?text=x0_",
        "most complex": "tasks?order=most+complex&kind=induction&rate_to=0.5",
        "a step": f"step?step={last // 2}", "a step by mismatch": f"step?step={last}&order=mismatch&role=solver",
        "a task": f"task?id={task['id']}", "a response": f"response?step={last}&line=100",
        "newest responses": "responses",
        "lineage": "lineage", "lineage of a task": f"lineage?id={shown}",
    }.items():  # fmt: skip
        times = []
        for _ in range(3):
            started = time.perf_counter()
            answered = client.get(f"/0/{address}")
            times.append(time.perf_counter() - started)
            assert answered.status_code == 200, answered.text
        _tell(name, statistics.median(times), PAGE_S)


def _tell(name: str, seconds: float, aim: float) -> None:
    print(f"{name:<44}{seconds:8.3f} s{'' if seconds <= aim else f'   more than {aim} s'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--trajectories", type=int, default=2000, help="of each step")
    parser.add_argument("--folder", type=Path, help="where the run is made, and kept; else a temporary folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = (options.folder or Path(temporary)) / f"run-{options.steps}x{options.trajectories}"
        if not path.exists():
            make_run(path, options.steps, options.trajectories)
        size = sum(file.stat().st_size for file in path.rglob("*.gz"))
        print(f"{options.steps} steps of {options.trajectories} trajectories, {size / 1e6:.0f} MB of rollouts")
        measure(path)


if __name__ == "__main__":
    main()
