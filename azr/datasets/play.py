"""Answers rows of a file: sample, grade beside generation, reward."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from azr.concurrency import Phase, gather
from azr.config import Config
from azr.datasets.order import rows_of_step
from azr.datasets.rows import DataRow
from azr.evaluation.graders import CODE_GRADERS, make_grader
from azr.evaluation.periodic import answer_executor
from azr.evaluation.question import Grader, GraderName, Judgement, Verdict
from azr.records import Completion, FinishReason, Judged, Role, Trajectory
from azr.selfplay.form import FormCount
from azr.selfplay.ordering import sort_trajectories, stable_seed
from azr.selfplay.pieces import Answers
from azr.selfplay.play import StepResult
from azr.selfplay.prompt_codec import PromptCodec
from azr.selfplay.rewards.pay import answer_trajectory, unrewarded, with_length_penalty
from azr.selfplay.roles import Sampler


@asynccontextmanager
async def open_graders(rows: Sequence[DataRow], config: Config) -> AsyncIterator[dict[GraderName, Grader]]:
    """What grades the answers to these rows; what it starts ends with the block.

    Raises UserError when a package of the extra ``eval`` is missing, or model-written code cannot be isolated here.
    """
    names = sorted({row.grader for row in rows})
    async with AsyncExitStack() as stack:
        needs_pool = CODE_GRADERS.intersection(names)
        pool = await stack.enter_async_context(answer_executor(config)) if needs_pool else None
        yield {
            name: await stack.enter_async_context(make_grader(name, pool if name in CODE_GRADERS else None))
            for name in names
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlay:
    """Rows that the policy answers, and what it earns for that."""

    config: Config
    codec: PromptCodec
    rows: Sequence[DataRow]
    """Those whose prompts fit."""
    graders: Mapping[GraderName, Grader]

    async def play(self, step: int, sampler: Sampler, phase: Phase) -> StepResult:
        """What a step's rows bring; nothing in a step that takes none."""
        due = rows_of_step(self.config.data, step, len(self.rows), self.config.run.seed)
        answers = await gather(*(self._answer(self.rows[row], epoch, sampler, phase) for epoch, row in due))
        return StepResult(
            trajectories=sort_trajectories([each for of_row in answers for each in of_row.trajectories]),
            proposal_stats={},
            stored=[],
            sampled_tokens=Counter(solve=sum(of_row.num_tokens for of_row in answers)),
            ungraded=sum(of_row.num_ungraded for of_row in answers),
            forms={Role.SOLVER: sum((of_row.form for of_row in answers), FormCount())},
            untrained=sort_trajectories([each for of_row in answers for each in of_row.untrained]),
        )

    async def _answer(self, row: DataRow, epoch: int, sampler: Sampler, phase: Phase) -> Answers:
        """Answers of the current policy to a row, as one group."""
        prompt, _ = self.codec.converse(row.turns)
        seed = stable_seed(self.config.run.seed, "data", epoch, row.question.id)
        data, longest = self.config.data, self.config.rollout.max_response_tokens
        with phase("solve"):
            completions = await sampler.generate(prompt, n=data.samples, max_tokens=longest, seed=seed)
        with phase("verify"):
            judgements = await gather(*(self._grade(row, completion) for completion in completions))
        graded, ungraded = list[Trajectory](), list[Trajectory]()
        id, kind, reward = row.question.id, row.question.suite, self.config.reward
        group = f"data:{epoch}:{id}"
        for completion, judgement in zip(completions, judgements, strict=True):
            judged = _judged(completion, judgement)
            if judgement.verdict is Verdict.UNGRADED:
                ungraded.append(unrewarded(Role.SOLVER, kind, id, group, completion, judged))
            else:
                paid = answer_trajectory(kind, id, group, completion, judgement.verdict, reward, judged)
                graded.append(with_length_penalty(paid, reward, longest))
        right = sum(judgement.verdict is Verdict.RIGHT for judgement in judgements)
        return Answers(
            phase="solve",
            solve_rate=right / len(graded) if graded else None,
            trajectories=graded,
            untrained=ungraded,
            num_tokens=sum(len(completion.response_ids) for completion in completions),
            num_ungraded=data.samples - len(graded),
            form=FormCount.of(completions, [each.verdict is Verdict.MALFORMED for each in judgements]),
        )

    async def _grade(self, row: DataRow, completion: Completion) -> Judgement:
        """A response that was cut off has no answer: what looks like one stands amid its thinking."""
        if completion.finish_reason is FinishReason.LENGTH:
            return Judgement(verdict=Verdict.MALFORMED)
        return await self.graders[row.grader].grade(row.question, self.codec.response_text(completion))


def _judged(completion: Completion, judgement: Judgement) -> Judged:
    detail = ""
    if completion.finish_reason is FinishReason.LENGTH:
        detail = f"cut off after {len(completion.response_ids)} tokens"
    elif judgement.verdict is Verdict.MALFORMED:
        detail = "no answer was found"
    answer = None if judgement.answer is None else (("answer", judgement.answer),)
    return Judged(outcome=str(judgement.verdict), detail=detail, answer=answer)
