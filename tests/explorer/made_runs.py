"""Run directories made by the real writers."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from azr.evaluation.periodic import Evaluated
from azr.records import Judgement, Role, Sample, Task
from azr.runs.sample_file import JsonLines, write_samples
from azr.tasks.base import Verdict
from tests.runs.factory import completion

HOSTILE = "</pre><script>document.title='owned'</script>\"'&"
"""What must stay text on every page."""
OF_CORPUS = f"corpus:{HOSTILE}.py:double"


TOKENS = [("", -0.01, -0.02), ("", -3.0, -1.0), ("", None, None), *[("", -0.5, -0.6)] * 55]


def decode(ids: Sequence[int]) -> str:
    return "".join(map(chr, ids))


def task(id: str, *, kind: str = "deduction", body: str = "return a", **change: object) -> Task:
    settings: dict[str, object] = {
        "inputs": ("1",), "outputs": ("1",), "fingerprint": id, "step": 1, "solve_rate": 0.5, **change,
    }  # fmt: skip
    return Task(id=id, kind=kind, program=f"def f(a):\n    {body}", **settings)  # type: ignore[arg-type]


def proposal(id: str, verdict: str = "valid", detail: str = "", text: str = "a proposal", **change: object) -> Sample:
    return _sample("proposer", id, f"propose:{id}", verdict, detail, text, **change)


def answer(id: str, verdict: str = "right", detail: str = "", text: str = "an answer", **change: object) -> Sample:
    group = str(change.pop("group", f"estimate:{id}"))
    return _sample("solver", id, group, verdict, detail, text, **change)


def _sample(role: Role, id: str, group: str, verdict: str, detail: str, text: str, **change: object) -> Sample:
    prompt, finish = str(change.pop("prompt", f"the prompt of {id}")), change.pop("finish", "stop")
    made = completion([*map(ord, text)], [*map(ord, prompt)], logprobs=-0.5, finish=finish, versions=3)
    reward = float(str(change.pop("reward", 1.0 if verdict in ("valid", "right") else -1.0)))
    is_trained = change.get("used", "trained") == "trained"
    settings: dict[str, object] = {
        "kind": "deduction", "reward_parts": {verdict: reward},
        "accuracy": float(verdict == "right") if role == "solver" else None,
        "judgement": Judgement(verdict=verdict, detail=detail, answer=(("output", text),)),
        "advantage": 0.5 if is_trained else None, "mismatch": 0.01 if is_trained else None, **change,
    }  # fmt: skip
    return Sample(completion=made, role=role, problem_id=id, group=group, reward=reward, **settings)  # type: ignore[arg-type]


class MadeRun:
    """A run directory that grows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        (path / "rollouts").mkdir(parents=True)
        (path / "metrics.jsonl").touch()
        (path / "tasks.jsonl").touch()

    def rollouts(self, step: int) -> Path:
        return self.path / "rollouts" / f"step_{step:06d}.jsonl.gz"

    def step(self, step: int, samples: Sequence[Sample], tasks: Sequence[Task] = (), **numbers: float) -> None:
        """Adds a step as the run does."""
        write_samples(self.rollouts(step), step, samples, decode)
        self._append("tasks.jsonl", [asdict(each) for each in tasks])
        self._append("metrics.jsonl", [{"step": step, **{name.replace("__", "/"): v for name, v in numbers.items()}}])

    def evaluation(self, step: int, answers: Sequence[Sample]) -> Path:
        """The answers of an evaluation after a step, as a run writes them."""
        path = self.path / "evaluations" / f"step_{step:06d}.jsonl.gz"
        Evaluated({}, list(answers), {"suites": {"exam": {"sha256": ""}}}).write(path)
        return path

    def _append(self, name: str, records: list[dict]) -> None:
        lines = JsonLines(self.path / "more")
        lines.write(records)
        lines.close()
        with (self.path / name).open("ab") as file:
            file.write((self.path / "more").read_bytes())
        (self.path / "more").unlink()


def eval_answer(
    question: str, verdict: str, index: int | None = None, *, suite: str = "exam", answer: str | None = None,
    detail: str = "", response: str = "",
) -> Sample:  # fmt: skip
    read_as = None if answer is None else (("answer", answer),)
    return Sample(
        role="solver", kind=suite, problem_id=question, group="deduction", index=index,
        prompt=f"What is {question}?", response=response or f"{verdict} answer", response_tokens=7,
        judgement=Judgement(verdict=Verdict(verdict), detail=detail, answer=read_as), used="recorded",
    )  # fmt: skip


def small_run(path: Path) -> MadeRun:
    """Two steps with everything that pages show."""
    run = MadeRun(path)
    parents = [task("seed-deduction", step=0, solve_rate=None), task("seed-induction", kind="induction", step=0)]
    easy = task("000001-deduction-0000", parents=("seed-deduction",), solve_rate=0.75)
    evil = task(
        "000001-deduction-0001", body=f"return {HOSTILE!r}", solve_rate=0.0, outputs=(repr(HOSTILE),),
        parents=("seed-deduction",),
    )  # fmt: skip
    run.step(
        1,
        [
            proposal(easy.id),
            proposal(evil.id, text=f"<think>{HOSTILE}</think>", prompt=HOSTILE, tokens=TOKENS),
            proposal("000001-deduction-0002", "not_allowed", "line 3: imports random", advantage=-0.75),
            proposal("000001-induction-0000", "malformed", "cut off", kind="induction", finish="length"),
            *(answer(easy.id, verdict) for verdict in ("right", "right", "right", "wrong")),
            *(answer(evil.id, "wrong", f"f(1) returned {HOSTILE}, not 2", HOSTILE, used="estimate") for _ in range(4)),
        ],
        [*parents, easy, evil],
        deduction__solver__accuracy=0.25, deduction__proposer__funnel__proposed=3,
        deduction__proposer__funnel__valid=2, deduction__proposer__funnel__not_allowed=1, seconds__step=12.0,
        seconds__solve=8.0, policy__loss=0.5, eval__mean__accuracy=0.125,
    )  # fmt: skip
    late = task("000002-deduction-0000", body="return a * 2 + 1", step=2, solve_rate=0.25, parents=(evil.id, OF_CORPUS))
    run.step(
        2, [proposal(late.id), *(answer(late.id, verdict) for verdict in ("right", "wrong")), answer(easy.id)], [late],
        deduction__solver__accuracy=0.5, deduction__proposer__funnel__proposed=1, deduction__proposer__funnel__valid=1,
        seconds__step=10.0, seconds__solve=6.0, policy__loss=0.25,
    )  # fmt: skip
    run.evaluation(0, [eval_answer("q1", "wrong"), eval_answer("q1", "wrong", 0), eval_answer("q2", "right")])
    now = [eval_answer("q1", "right", answer="7"), eval_answer("q1", "wrong", 0, response=HOSTILE, answer=HOSTILE)]
    run.evaluation(2, [*now, eval_answer("q2", "malformed", detail="a list")])
    return run
