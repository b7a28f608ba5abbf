"""The proposer: its prompts, and the checks by which a proposal becomes a task."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from azr.answering import judge_text, read_texts
from azr.config import Config
from azr.prompts.codec import PromptCodec
from azr.records import COPIED, VALID, Completion, Judgement, Task
from azr.selfplay.buffer import Draw
from azr.tasks.base import Proposal, RejectReason, Run
from azr.tasks.explanations import explain_rejection
from azr.tasks.normalize import fingerprint, held_out_keys, is_program
from azr.tasks.prompts import Section, of_corpus
from azr.tasks.registry import KINDS

DRAWS = 16
"""Draws of references for one prompt. With four of the seeds that base models proposed one draw in three is short."""


def draw_references(kind: str, draw: Draw, codec: PromptCodec, count: int, rng: random.Random) -> list[Task]:
    """Draw the tasks that a prompt shows; again, up to `DRAWS` times, if the prompt would be long."""
    for _ in range(DRAWS):
        tasks = draw(KINDS[kind].references_per_prompt(count), rng)
        if codec.is_short(KINDS[kind], tasks):
            break
    return tasks


async def validate(
    kind: str,
    completion: Completion,
    references: Sequence[Task],
    *,
    config: Config,
    codec: PromptCodec,
    execute: Run,
    id: str,
    step: int,
) -> tuple[Task | RejectReason, Judgement]:
    """Return the task that a proposal becomes once its program ran, or the first check that it failed; and what was
    read from it and why it was rejected.

    ``references``: those that its prompt showed.
    """

    _, given, _ = of_corpus(KINDS[kind], references)

    async def checked(stated: Sequence[Section], run: Run) -> Task | RejectReason:
        if given:
            stated = [*given, *(section for section in stated if section.label != "program")]
        count = config.selfplay.induction_inputs
        proposal = Proposal(id=id, sections=stated, references=references, step=step, induction_inputs=count)
        task = await KINDS[kind].validate(proposal, run)
        if isinstance(task, RejectReason):
            return task
        if given:  # other inputs of it are other tasks, and are not taken for repeats
            task = replace(task, fingerprint=fingerprint(task.program, *task.inputs))
        return reject_reason(task, config, codec) or task

    outcome, sections, last_run, reason = await judge_text(
        completion,
        codec,
        KINDS[kind],
        execute,
        checked,
        id=id,
        malformed=RejectReason.MALFORMED,
        expected=lambda: KINDS[kind].proposal(KINDS[kind].seed())[len(given) :],
    )
    parts = {} if sections is None else {COPIED: _is_copy(kind, sections, references, config, codec)}
    verdict, detail = VALID, ""
    if isinstance(outcome, RejectReason):
        verdict, detail = outcome, explain_rejection(outcome, completion, sections, last_run)
    return outcome, Judgement(verdict=verdict, detail=detail, answer=read_texts(sections), parts=parts, reason=reason)


def _is_copy(
    kind: str, sections: Sequence[Section], references: Sequence[Task], config: Config, codec: PromptCodec
) -> bool:
    """Whether a proposal copies a worked example or one of its references, its program up to names and constants."""
    program = next((each.text.strip("\n") for each in sections if each.label == "program"), None)
    if program is None:
        return tuple(sections) in codec.worked(KINDS[kind])
    if not is_program(program):
        return False
    known = {key for task in references if task.program for key in held_out_keys(task.program)}
    known |= codec.example_programs(KINDS[name] for name in config.selfplay.kinds).keys()
    return not known.isdisjoint(held_out_keys(program))


def reject_reason(task: Task, config: Config, codec: PromptCodec) -> RejectReason | None:
    """Return why a prompt may not show a task that ran; None if every prompt may."""
    if codec.has_control_tokens(KINDS[task.kind], task):
        return RejectReason.NOT_ALLOWED
    max_tokens = config.rollout.max_prompt_tokens
    fits = codec.solver_prompt_fits(KINDS[task.kind], task, max_tokens) and all(
        codec.proposal_fits(KINDS[name], [task], max_tokens)
        for name in config.selfplay.kinds
        if task.kind in KINDS[name].reference_kinds
    )
    return None if fits else RejectReason.TOO_LARGE
