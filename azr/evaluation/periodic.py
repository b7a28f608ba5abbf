"""The exam as part of a run: a fixed part of it before the first step, every few steps and after the last."""

from __future__ import annotations

from pathlib import Path

from azr.config import Config
from azr.evaluation.evaluate import Examine, longest_prompt, sit
from azr.evaluation.result import metrics, rows
from azr.evaluation.suite import ExamTask, program_fingerprint, read
from azr.selfplay.prompt_codec import PromptCodec
from azr.selfplay.roles import Executor


class InRunExam:
    """What a run has to do with the exam: it is graded by a part of it, and trains on no program of it."""

    def __init__(self, config: Config, codec: PromptCodec) -> None:
        """Raises ValueError when there is no exam where it should be, or a question does not fit into a prompt."""
        self._config, self._codec = config, codec
        paper = read(Path(config.eval.path)) if config.eval.path is not None else ()
        self.programs = frozenset(program_fingerprint(question.task) for question in paper)
        """Fingerprints of its programs, whichever part is asked."""
        self.paper = part(paper, config.eval.tasks_per_kind)
        """The questions that are asked, the same in every run of these settings."""
        if config.eval.every:
            self._check()

    def _check(self) -> None:
        if not self.paper:
            raise ValueError("eval.every asks for exams but eval.path is none: give the folder of an exam.")
        longest = longest_prompt(self._codec, self.paper)
        if longest > self._config.rollout.max_prompt_tokens:
            raise ValueError(
                f"A question of the exam has {longest} tokens, but rollout.max_prompt_tokens is "
                f"{self._config.rollout.max_prompt_tokens}; raise it or set eval.every to 0."
            )

    def due(self, step: int, last: bool) -> bool:
        """Whether there is an exam after this step, which may be the run's last; step 0 stands for the start."""
        every = self._config.eval.every
        return every > 0 and (last or step % every == 0)

    async def take(self, examine: Examine, executor: Executor) -> dict[str, float]:
        """Results of the current policy, see `azr.evaluation.result.metrics`."""
        samples = self._config.eval.samples
        return metrics(rows(await sit(self._config, self._codec, examine, executor, self.paper, samples)))


def part(paper: tuple[ExamTask, ...], per_kind: int) -> tuple[ExamTask, ...]:
    """At most so many questions of each kind, spread evenly over the bands it is ordered by."""
    kinds: dict[str, list[ExamTask]] = {}
    for question in paper:
        kinds.setdefault(question.task.kind, []).append(question)
    return tuple(
        own[number * len(own) // per_kind] if per_kind < len(own) else own[number]
        for own in kinds.values()
        for number in range(min(per_kind, len(own)))
    )
