"""Answers rows of a file: sample, grade beside generation, reward."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from azr.concurrency import Phase, gather, stable_seed
from azr.config import Config
from azr.datasets.order import rows_of_step
from azr.datasets.rows import DataRow
from azr.datasets.traces import after_prefix, prefix_share, whole_trace
from azr.evaluation.graders import CODE_GRADERS, make_grader
from azr.evaluation.periodic import answer_executor
from azr.evaluation.question import Grader, GraderName
from azr.prompts.codec import PromptCodec
from azr.records import Completion, FinishReason, Judgement, Role, Sample
from azr.selfplay.form import FormCount
from azr.selfplay.ordering import sort_trajectories
from azr.selfplay.play import StepResult
from azr.selfplay.rewards.pay import answer_trajectory, unrewarded, with_length_penalty
from azr.selfplay.roles import Sampler
from azr.tasks.base import Verdict


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


Ids = npt.NDArray[np.int32]
_Sampled = tuple[Completion, int]
"""A response, and how many of its first tokens a trace gave."""


@dataclass(frozen=True, slots=True)
class _Response:
    row: DataRow
    group: str
    completion: Completion
    trace_tokens: int
    judgement: Judgement

    @property
    def sampled_tokens(self) -> int:
        return len(self.completion.response_ids) - self.trace_tokens


@dataclass(frozen=True, slots=True)
class _Answered:
    """What became of one row."""

    responses: list[_Response]
    lost: int
    """Answers that took an engine too long."""
    long_traces: int


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
        answers = await gather(*(self._answer(self.rows[row], epoch, step, sampler, phase) for epoch, row in due))
        responses = [each for of_row in answers for each in of_row.responses]
        graded = [each for each in responses if each.judgement.verdict is not Verdict.UNGRADED]
        ungraded = [each for each in responses if each.judgement.verdict is Verdict.UNGRADED]
        sampled = [each for each in responses if each.sampled_tokens]
        malformed = [each.judgement.verdict is Verdict.MALFORMED for each in sampled]
        return StepResult(
            trajectories=sort_trajectories(list(map(self._trajectory, graded))),
            proposal_stats={},
            stored=[],
            sampled_tokens=Counter(solve=sum(each.sampled_tokens for each in sampled)),
            ungraded=len(ungraded) + sum(of_row.lost for of_row in answers),
            forms={Role.SOLVER: FormCount.of([each.completion for each in sampled], malformed)},
            data={
                "epoch": max((epoch for epoch, _ in due), default=0),
                "rows": len(due),
                "traces": sum(bool(each.trace_tokens) for each in responses),
                "long_traces": sum(of_row.long_traces for of_row in answers),
            },
            untrained=sort_trajectories(list(map(self._trajectory, ungraded))),
        )

    async def _answer(self, row: DataRow, epoch: int, step: int, sampler: Sampler, phase: Phase) -> _Answered:
        """A row's group: answers of the current policy, and traces."""
        ids, opened = self.codec.converse(row.turns)
        prompt, data = np.array(ids, np.int32), self.config.data
        prompt.flags.writeable = False  # so that a group shares it
        names = self.config.run.seed, "data", epoch, row.question.id
        given, num_long = self._traces(row, epoch, opened)
        num_sampled = data.group_size - len(given) if data.samples else 0
        work = [
            self._follow(sampler, prompt, trace, prefix_share(data, step, *names, i), (*names, i))
            for i, trace in enumerate(given)
        ]
        if num_sampled:
            work.append(self._sample(sampler, prompt, num_sampled, names))
        with phase("solve"):
            found = [each for some in await gather(*work) for each in some]
        with phase("verify"):
            judgements = await gather(*(self._grade(row, completion) for completion, _ in found))
        group = f"data:{epoch}:{row.question.id}"
        responses = [
            _Response(row, group, completion, trace_tokens, judgement)
            for (completion, trace_tokens), judgement in zip(found, judgements, strict=True)
        ]
        return _Answered(responses, num_sampled + len(given) - len(found), num_long)

    def _traces(self, row: DataRow, epoch: int, opened: str) -> tuple[list[list[int]], int]:
        """Ids of those of the row's traces that join its group, others in every epoch, and how many were too long."""
        data, longest = self.config.data, self.config.rollout.max_response_tokens
        count = min(data.traces, len(row.traces))
        chosen = [row.traces[(epoch * count + i) % len(row.traces)] for i in range(count)]
        encoded = [self.codec.trace_ids(trace, opened) for trace in chosen]
        fitting = [ids for ids in encoded if len(ids) <= longest or data.long_traces == "cut"]
        return fitting, sum(len(ids) > longest for ids in encoded)

    async def _sample(self, sampler: Sampler, prompt: Ids, count: int, names: tuple[object, ...]) -> list[_Sampled]:
        longest = self.config.rollout.max_response_tokens
        found = await sampler.generate(prompt, n=count, max_tokens=longest, seed=stable_seed(*names))
        return [(completion, 0) for completion in found]

    async def _follow(
        self, sampler: Sampler, prompt: Ids, trace: list[int], share: float, names: tuple[object, ...]
    ) -> list[_Sampled]:
        """The whole trace, or its beginning and what the policy goes on with."""
        longest = self.config.rollout.max_response_tokens
        if share == 1.0:
            completion = whole_trace(prompt, trace, longest)
            return [(completion, len(completion.response_ids))]
        prefix = trace[: min(int(share * len(trace)), longest - 1)]
        asked = np.concatenate([prompt, np.array(prefix, np.int32)])
        seed = stable_seed("prefix", *names)
        found = await sampler.generate(asked, n=1, max_tokens=longest - len(prefix), seed=seed)
        return [(after_prefix(prompt, prefix, completion), len(prefix)) for completion in found]

    def _trajectory(self, response: _Response) -> Sample:
        """What is trained on, with its reward; what could not be graded has none."""
        completion, verdict, reward = response.completion, response.judgement.verdict, self.config.reward
        question, judged = response.row.question, _judged(completion, response.judgement)
        identity = question.suite, question.id, response.group
        if verdict is Verdict.UNGRADED:
            made = unrewarded(Role.SOLVER, *identity, completion, judged)
        else:
            made = answer_trajectory(*identity, completion, verdict, reward, judged)
            made = with_length_penalty(made, reward, self.config.rollout.max_response_tokens)
        return replace(made, trace_tokens=response.trace_tokens)

    async def _grade(self, row: DataRow, completion: Completion) -> Judgement:
        """A response that was cut off has no answer: what looks like one stands amid its thinking."""
        if completion.finish_reason is FinishReason.LENGTH:
            return Judgement(verdict=Verdict.MALFORMED)
        return await self.graders[row.grader].grade(row.question, self.codec.response_text(completion))


def _judged(completion: Completion, judgement: Judgement) -> Judgement:
    detail = ""
    if completion.finish_reason is FinishReason.LENGTH:
        detail = f"cut off after {len(completion.response_ids)} tokens"
    elif judgement.verdict is Verdict.MALFORMED:
        detail = "no answer was found"
    return replace(judgement, detail=detail)
