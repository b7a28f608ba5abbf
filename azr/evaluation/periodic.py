"""The exam as part of a run: a fixed subset of it before the first step, every few steps and after the last."""

from __future__ import annotations

from pathlib import Path

from azr.config import Config
from azr.errors import UserError
from azr.evaluation.evaluate import GenerateFn, evaluate, longest_prompt
from azr.evaluation.results import metrics, rows
from azr.evaluation.suite import program_fingerprint, read_suite, subset
from azr.selfplay.prompt_codec import PromptCodec
from azr.selfplay.roles import Executor


class PeriodicEval:
    """Evaluates a run's policy on a subset of the exam, and knows the programs that the run must not train on."""

    def __init__(self, config: Config, codec: PromptCodec) -> None:
        """Raises UserError when there is no exam where it should be, or a task does not fit into a prompt."""
        self._config, self._codec = config, codec
        benchmark = read_suite(Path(config.eval.path)) if config.eval.path is not None else ()
        self.programs = frozenset(program_fingerprint(each.task) for each in benchmark)
        """Fingerprints of all programs of the exam."""
        self.benchmark = subset(benchmark, config.eval.tasks_per_kind)
        """The tasks that are evaluated, the same in every run of these settings."""
        if config.eval.every:
            self._check()

    def _check(self) -> None:
        if not self.benchmark:
            raise UserError("eval.every asks for evaluations but eval.path is none: give the folder of an exam.")
        longest = longest_prompt(self._codec, self.benchmark)
        if longest > self._config.rollout.max_prompt_tokens:
            raise UserError(
                f"A task of the exam has {longest} tokens, but rollout.max_prompt_tokens is "
                f"{self._config.rollout.max_prompt_tokens}; raise it or set eval.every to 0."
            )

    def should_run(self, step: int, last: bool) -> bool:
        """Whether to evaluate after this step, which may be the run's last; step 0 stands for the start."""
        every = self._config.eval.every
        return every > 0 and (last or step % every == 0)

    async def run(self, generate: GenerateFn, executor: Executor) -> dict[str, float]:
        """Results of the current policy, see `azr.evaluation.results.metrics`."""
        samples = self._config.eval.samples
        scores = await evaluate(self._config, self._codec, generate, executor, self.benchmark, samples)
        return metrics(rows(scores))
