"""The proposer: its prompts, and the checks by which a proposal becomes a task."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from azr.answering import Executor, RecordedRun, malformed_reason, read_texts
from azr.config import Config
from azr.executor.protocol import MAX_PROGRAM_BYTES, REPEATS
from azr.prompts.codec import PromptCodec
from azr.records import COPIED, VALID, Completion, Judgement, PromptIds, Task
from azr.selfplay.buffer import TaskBuffer
from azr.tasks.base import Proposal, ProposalLimits, RejectReason
from azr.tasks.composites import GivenFunctions, compose
from azr.tasks.explanations import explain_rejection
from azr.tasks.normalize import held_out_keys, is_program
from azr.tasks.prompts import Section
from azr.tasks.registry import KINDS

DRAWS = 16
"""Draws of references for one prompt. With four of the seeds that base models proposed one draw in three is short."""


def proposal_limits(induction_inputs: int = 0) -> ProposalLimits:
    """Return the bounds of every proposal; the number of inputs matters to inductions only."""
    return ProposalLimits(source_bytes=MAX_PROGRAM_BYTES, induction_inputs=induction_inputs, repeats=REPEATS)


@dataclass(frozen=True, slots=True)
class Shown:
    """What a proposal prompt shows after its instructions."""

    references: tuple[Task, ...]
    functions: GivenFunctions | None = None
    """Functions that the program must call."""


class Proposer:
    """Writes proposal prompts and validates proposals, which count only once they ran."""

    def __init__(self, config: Config, codec: PromptCodec, executor: Executor) -> None:
        self._codec, self._executor = codec, executor
        self._kinds = config.selfplay.kinds
        self._references, self._max_prompt = config.selfplay.references, config.rollout.max_prompt_tokens
        self._examples = codec.example_programs(KINDS[kind] for kind in self._kinds)
        self.limits = proposal_limits(config.selfplay.induction_inputs)

    def draw_references(self, kind: str, buffer: TaskBuffer, rng: random.Random) -> list[Task]:
        """Draw the tasks that a prompt shows; again, up to `DRAWS` times, if the prompt would be long."""
        for _ in range(DRAWS):
            tasks = buffer.references(kind, self._references, rng)
            if self._codec.is_short(KINDS[kind], tasks):
                break
        return tasks

    def prompt(self, kind: str, wanted: Shown) -> tuple[PromptIds, Shown]:
        """Return the prompt's ids, and the part of ``wanted`` that it had room for."""
        ids, references, functions = self._codec.proposer_prompt(
            KINDS[kind], list(wanted.references), self._max_prompt, wanted.functions
        )
        return ids, Shown(tuple(references), functions)

    async def validate(
        self, kind: str, completion: Completion, shown: Shown, *, id: str, step: int
    ) -> tuple[Task | RejectReason, Judgement]:
        """Return the task that a proposal becomes once its program ran, or the first check that it failed; and what
        was read from it and why it was rejected."""
        run = RecordedRun(self._executor)

        async def checked() -> Task | RejectReason:
            run.sections = program = self._codec.parse_response(completion, KINDS[kind].labels)
            if program is None:
                return RejectReason.MALFORMED
            parents = shown.references
            if shown.functions is not None:
                composed = compose(program, shown.functions)
                if isinstance(composed, RejectReason):
                    return composed
                program = composed
                parents += tuple(task for task in shown.functions.tasks if task not in parents)
            proposal = Proposal(id=id, sections=program, references=parents, step=step)
            task = await KINDS[kind].validate(proposal, self.limits, run)
            return task if isinstance(task, RejectReason) else self.reject_reason(task) or task

        outcome = await run.judge(id, checked(), RejectReason.MALFORMED)
        sections, answer = run.sections, read_texts(run.sections)
        parts = {} if sections is None else {COPIED: self._is_copy(kind, sections, shown.references)}
        if isinstance(outcome, Task):
            return outcome, Judgement(verdict=VALID, answer=answer, parts=parts)
        detail = explain_rejection(outcome, completion, sections, run.last)
        reason = ""
        if outcome is RejectReason.MALFORMED:
            asked = KINDS[kind].proposal(KINDS[kind].seed())
            reason = malformed_reason(self._codec, completion, run, asked)
        elif outcome is RejectReason.LOST:
            reason = run.ungraded_reason
        return outcome, Judgement(verdict=outcome, detail=detail, answer=answer, parts=parts, reason=reason)

    def _is_copy(self, kind: str, sections: Sequence[Section], references: Sequence[Task]) -> bool:
        """Whether a proposal copies a worked example or one of its references, its program up to names and
        constants."""
        program = next((each.text.strip("\n") for each in sections if each.label == "program"), None)
        if program is None:
            return tuple(sections) in self._codec.worked(KINDS[kind])
        if not is_program(program):
            return False
        shown = {key for task in references if task.program for key in held_out_keys(task.program)}
        return any(key in shown or key in self._examples for key in held_out_keys(program))

    def reject_reason(self, task: Task) -> RejectReason | None:
        """Return why a prompt may not show a task that ran; None if every prompt may."""
        if self._codec.has_control_tokens(task):
            return RejectReason.NOT_ALLOWED
        fits = self._codec.solver_prompt_fits(KINDS[task.kind], task, self._max_prompt) and all(
            self._codec.proposal_fits(KINDS[name], [task], self._max_prompt)
            for name in self._kinds
            if task.kind in KINDS[name].reference_kinds
        )
        return None if fits else RejectReason.TOO_LARGE
