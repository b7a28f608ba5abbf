"""Samples made by hand, a clock, a limit on files, and waiting."""

import resource
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from azr.records import VALID, Completion, FinishReason, Judgement, Role, Sample
from azr.runs.checkpoint_store import POLICY, TRAINERS, RunState
from azr.runs.run_dir import RunDirectory
from azr.tasks.base import RejectReason


def proposals(
    proposed: int = 0,
    rejected: Counter[RejectReason] | None = None,
    solve_rates: Sequence[float] = (),
    kind: str = "deduction",
) -> list[Sample]:
    """Proposals of one kind without rewards, the rejected ones first."""
    verdicts = [str(reason) for reason in (rejected or Counter()).elements()]
    rates = [*[None] * len(verdicts), *solve_rates, *[None] * proposed]
    return [
        sample(
            "proposer", kind, reward=None, group=f"propose:{index}", verdict=verdict, solve_rate=rates[index]
        )
        for index, verdict in enumerate([*verdicts, *[VALID] * (proposed - len(verdicts))])
    ]  # fmt: skip


def completion(
    response_ids: Sequence[int],
    prompt_ids: Sequence[int] = (1,),
    *,
    logprobs: object = 0.0,
    finish: FinishReason = "stop",
    versions: object = 0,
) -> Completion:
    """A completion; one number stands for all tokens."""
    told = {"logprobs": logprobs, "finish_reason": finish, "weight_versions": versions}
    return Completion(prompt_ids=prompt_ids, response_ids=response_ids, **told)  # type: ignore[arg-type]


def sample(role: Role, kind: str = "deduction", *, reward: float | None = 1.0, **change: object) -> Sample:
    """A sample of two tokens; ``length``, ``finish``, ``version``, ``verdict`` and fields of `Sample` change it."""
    length = int(str(change.pop("length", 2)))
    finish, version = str(change.pop("finish", "stop")), int(str(change.pop("version", 4)))
    made = completion(range(length), (1, 2, 3), logprobs=-0.5, finish=finish, versions=version)
    verdict = change.pop("verdict", None)
    fields = {
        "completion": made, "problem_id": "000001-deduction-0001", "group": "solve:1:000001-deduction-0001",
        "reward_parts": {} if reward is None else {"right": reward},
        "judgement": None if verdict is None else Judgement(verdict=str(verdict)),
    }  # fmt: skip
    return Sample(role=role, kind=kind, reward=reward, **fields | change)  # type: ignore[arg-type]


def write_checkpoint(folder: Path, state: RunState, run: RunDirectory) -> None:
    """Fill a checkpoint's folder with each part that a run saves, tiny."""
    state.write(folder)
    shutil.copy(run.config, folder)
    for part in (POLICY, TRAINERS):
        (folder / part).mkdir()
        (folder / part / "state").write_text("weights")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow beyond this size: like a full disk, that ends a write midway with an OSError."""
    free = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, free[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, free)


def until(happened: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something that other threads bring about; a file that is not there yet counts as not happened."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            if happened():
                return
        except FileNotFoundError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.01)
