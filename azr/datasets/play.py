"""Answer rows of a file: sample, judge by the rule that their prompts state (`reward.format`), and reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from azr.answering import Generate, Problem, answer, cut_off_judgement, judged
from azr.concurrency import Phase, gather, stable_seed
from azr.config import Config
from azr.datasets.rows import DataRow, RowGrader, RowOrder
from azr.environments import Environment
from azr.environments.own import OwnEnvironments
from azr.environments.tool_calls import added
from azr.errors import UserError
from azr.graders.extraction import placed_boxes
from azr.graders.own import is_own
from azr.graders.question import Grader, GraderName
from azr.prompts.codec import PromptCodec
from azr.records import Completion, Judgement, PromptIds, Reason, Sample
from azr.selfplay.play import StepResult, sort_samples
from azr.selfplay.rewards import can_teach, mark_unlearnable_group, reward_answer, score_of
from azr.tasks.base import Verdict
from azr.tasks.prompts import ResponseFormat, answer_part

DETAILS: dict[Reason, str] = {
    "unclosed_thinking": "the thinking is not closed, or not just once",
    "no_answer": "no answer was found",
    "two_answers": "there is more than one answer part",
    "misplaced_answer": "text stands between the thinking and the answer",
    "no_block": "no block of code was found",
    "no_box": "the answer has no box",
    "unreadable": "the answer cannot be read as what was asked for",
    "lost": "the executor lost the call",
    "no_gold": "the reference solution fails",
    "grader_failed": "the grader failed over it, or took too long",
    "no_reward": "the reward function returned None",
}
"""Sentences for reasons to which a grader adds none."""
MARKS = ("####", "Answer:")
"""What prompts such as GSM8K's and DAPO's ask to write before an answer; a box is read too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataPlay:
    """Rows of a file as problems for the policy."""

    config: Config
    codec: PromptCodec
    rows: Sequence[DataRow]
    """Rows whose prompts fit."""
    graders: Mapping[GraderName, Grader]
    order: RowOrder
    environments: OwnEnvironments | None = None
    """`data.environment`."""
    tool: Callable[[], Environment] | None = None
    """Makes the environment of a conversation with `rollout.tools`."""

    async def play(self, step: int, generate: Generate, phase: Phase) -> StepResult:
        """Answer a step's rows and reward the answers, until enough rows can teach; nothing in a step that takes none.

        Whatever the order in which answers come in, the first so many rows are asked that hold enough that can teach.
        """
        config, samples = self.config, list[Sample]()
        wanted = config.data.prompts if config.data.uses_data(step) else 0
        counts, too_long = {"epoch": 0, "rows": 0, "traces": 0, "long_traces": 0}, set[int]()

        async def ask_until_one_teaches() -> None:
            while counts["rows"] < wanted * config.rollout.refill:
                ((epoch, row),) = self.order.take(step, 1)
                counts["rows"] += 1
                counts["epoch"] = max(counts["epoch"], epoch)
                if (found := await self._answer(self.rows[row], epoch, generate, phase)) is None:
                    too_long.add(row)
                    counts["rows"] -= 1  # another one is asked instead
                    if len(too_long) == len(self.rows):
                        raise UserError(
                            f"With what {config.data.environment} adds, every prompt has over "
                            f"rollout.max_prompt_tokens={config.rollout.max_prompt_tokens} tokens: raise it."
                        )
                    continue
                answers, long_traces = found
                rule = replace(config.reward, wrong=0.0) if self.rows[row].states_rewards else config.reward
                for sample in answers:
                    reward_answer(sample, rule, config.rollout.max_response_tokens)
                samples.extend(answers)
                counts["traces"] += sum(sample.origin == "trace" for sample in answers)
                counts["long_traces"] += long_traces
                if config.rollout.refill == 1 or can_teach(answers):
                    break
                mark_unlearnable_group(answers)

        await gather(*(ask_until_one_teaches() for _ in range(wanted)))
        return StepResult(samples=sort_samples(samples), data=counts | {"long_prompts": len(too_long)})

    async def _answer(
        self, row: DataRow, epoch: int, generate: Generate, phase: Phase
    ) -> tuple[list[Sample], int] | None:
        """Return a row's group, answers of the current policy and traces, and how many traces were too long; None if
        its prompt is, with what the environment adds."""
        turns, environment = row.turns, None if row.tools is None else self.tool
        if self.environments is not None:
            text = await self.environments.opening(row.given)
            turns = added(turns, self.codec.plain(text)) if text else turns
            environment = partial(self.environments.open, row.given, text)
        ids, opened = self.codec.converse(turns, row.tools or ())
        if len(ids) > self.config.rollout.max_prompt_tokens:
            return None
        prompt, data = np.array(ids, np.int32), self.config.data
        prompt.flags.writeable = False  # so that a group shares it
        problem = self._problem(row, epoch, prompt, environment)
        # Of a row's traces others join its group in every epoch.
        longest, count = self.config.rollout.max_response_tokens, min(data.traces, len(row.traces))
        chosen = [row.traces[(epoch * count + i) % len(row.traces)] for i in range(count)]
        encoded = [self.codec.trace_ids(trace, opened) for trace in chosen]
        given = [ids for ids in encoded if len(ids) <= longest]
        num_sampled = data.group_size - len(given) if data.samples else 0
        work = [self._judged(problem, trace, phase) for trace in given]
        if num_sampled:
            seed = stable_seed(self.config.run.seed, "data", epoch, row.question.id)
            work.append(answer(problem, num_sampled, generate=generate, max_tokens=longest, seed=seed, phase=phase))
        return [sample for some in await gather(*work) for sample in some], len(encoded) - len(given)

    def _problem(
        self, row: DataRow, epoch: int, prompt: PromptIds, environment: Callable[[], Environment] | None = None
    ) -> Problem:
        states_rewards = row.states_rewards

        async def judge(completion: Completion) -> Judgement:
            if not states_rewards and (cut_off := cut_off_judgement(completion)) is not None:
                return cut_off
            prompt, response = self.codec.decode(completion.prompt_ids), self.codec.response_text(completion)
            return await grade(row, prompt, response, self.graders, self.config.reward.format)

        id, source = row.question.id, row.question.suite
        group = f"data:{epoch}:{id}"
        return Problem(id=id, kind=source, group=group, prompt_ids=prompt, judge=judge, environment=environment)

    async def _judged(self, problem: Problem, trace: list[int], phase: Phase) -> list[Sample]:
        tokens: dict[str, Any] = {"prompt_ids": problem.prompt_ids, "response_ids": np.array(trace, np.int32)}
        completion = Completion(**tokens, logprobs=0.0, finish_reason="stop", weight_versions=0)  # type: ignore[arg-type]
        with phase("verify"):
            return [await judged(problem, completion, trace_tokens=len(trace))]


async def grade(
    row: DataRow, prompt: str, response: str, graders: Mapping[GraderName, Grader], form: ResponseFormat
) -> Judgement:
    """Judge a finished response to a row. Of several graders the score is the weighted mean of theirs, of reward
    functions the weighted sum, and a part each; it is ungraded or malformed if it is for one of them. Those that give
    no reward do not count beside others."""
    found = await gather(*(_grade_by(each, prompt, response, graders, form) for each in row.graders))
    pairs = [pair for pair in zip(row.graders, found, strict=True) if pair[1].reason != "no_reward"]
    judgement = _combined(pairs, as_sum=row.states_rewards) if pairs and len(found) > 1 else found[0]
    detail = judgement.detail or DETAILS.get(judgement.reason, "")
    return replace(judgement, detail=detail)


async def _grade_by(
    grader: RowGrader, prompt: str, response: str, graders: Mapping[GraderName, Grader], form: ResponseFormat
) -> Judgement:
    part, reason = graded_part(grader.name, prompt, response, form)
    if reason:
        return Judgement(verdict=Verdict.MALFORMED, reason=reason)
    return await graders[grader.name].grade(grader.question, part)


def graded_part(grader: GraderName, prompt: str, response: str, form: ResponseFormat) -> tuple[str, Reason]:
    """Return what a grader gets of a response, or why it gets nothing, as `answer_part`. A user's own gets all of it:
    what it pays for is its own rule."""
    if is_own(grader):
        return response, ""
    part, reason = answer_part(response, prompt, form)
    if reason or grader != "math" or form == "thought" or placed_boxes(part):
        return part, reason
    mark = next((mark for mark in MARKS if mark in prompt and mark in part), None)
    return ("", "no_box") if mark is None else (part[part.rindex(mark) :], "")


def _combined(pairs: Sequence[tuple[RowGrader, Judgement]], *, as_sum: bool) -> Judgement:
    found = [judgement for _, judgement in pairs]
    for verdict in (Verdict.UNGRADED, Verdict.MALFORMED):
        if (first := next((each for each in found if each.verdict == verdict), None)) is not None:
            return first
    parts, scores = dict[str, bool | float](), [score_of(judgement) for judgement in found]
    for (grader, judgement), score in zip(pairs, scores, strict=True):
        parts[grader.label] = score
        parts |= {f"{grader.label}.{name}": value for name, value in judgement.parts.items()}
    weights = [grader.weight for grader, _ in pairs]
    total = sum(weight * score for weight, score in zip(weights, scores, strict=True))
    mean = 1.0 if {*scores} == {1.0} else total / sum(weights)
    detail = "; ".join(f"{grader.label} {score:g}" for (grader, _), score in zip(pairs, scores, strict=True))
    verdict = Verdict.RIGHT if {each.verdict for each in found} == {Verdict.RIGHT} else Verdict.WRONG
    score = total if as_sum else mean
    return Judgement(verdict=verdict, detail=detail, answer=found[0].answer, parts=parts, score=score)
