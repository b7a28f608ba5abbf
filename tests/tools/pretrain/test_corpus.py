from __future__ import annotations

import random
from itertools import islice

import torch

from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.records import Task
from azr.tasks.base import Proposal, ProposalLimits, Verdict
from azr.tasks.error import NO_ERROR
from azr.tasks.prompts import CompactFormat
from azr.tasks.registry import KINDS
from tools.pretrain.corpus import batches, make_document, make_task, solver_prompt

LIMITS = ProposalLimits(source_bytes=4096, induction_inputs=6, repeats=1)


def test_documents_are_the_same_for_the_same_seed(corpus_config, documents):
    rng = random.Random(0)
    assert [make_document(rng, corpus_config) for _ in range(50)] == documents[:50]


def test_prompts_ask_and_answers_parse_back(documents):
    style = CompactFormat()
    for document in documents[:300]:
        assert document.prompt.startswith(("<|solve|>", "<|propose|>"))
        assert document.prompt.endswith(CompactFormat.answer)
        sections = style.parse(document.answer)
        assert sections is not None
        assert style.response(sections) == document.answer


async def test_every_kind_accepts_its_own_proposals_and_solutions():
    rng = random.Random(1)
    for name, kind in KINDS.items():
        for _ in range(20):
            task = make_task(rng, name, 6)
            outputs = dict(zip(task.inputs, task.outputs, strict=True))

            async def run(request: ExecutionRequest, task=task, outputs=outputs) -> ExecutionResult:
                """What the program of the task returns, or raises."""
                assert request.program == task.program
                calls = [
                    CallResult(status=CallStatus.OK, value=outputs[given])
                    if task.kind != "error" or outputs[given] == NO_ERROR
                    else CallResult(status=CallStatus.RAISED, error=outputs[given])
                    for given in request.inputs
                ]
                return ExecutionResult(outputs=tuple(calls), deterministic=True)

            sections = CompactFormat().parse(CompactFormat().response(kind.proposal(task)))
            accepted = await kind.validate(Proposal(id="t", sections=sections, references=[task]), LIMITS, run)
            assert isinstance(accepted, Task)
            assert (accepted.program, accepted.inputs, accepted.outputs) == (task.program, task.inputs, task.outputs)
            assert await kind.grade(task, kind.solution(task), run) is Verdict.RIGHT


def test_a_solver_prompt_does_not_show_what_is_hidden():
    rng = random.Random(3)
    task: Task = make_task(rng, "induction", 6)
    prompt = solver_prompt(KINDS["induction"], task)
    assert task.program not in prompt
    assert prompt.count("<|input|>") == 3


def test_batches_pad_right_within_the_budget_and_mark_answers(compact_tokenizer, corpus_config):
    stream = batches(compact_tokenizer, corpus_config, seed=1, tokens_per_batch=1024, pool=256)
    for batch in islice(stream, 12):
        assert batch.ids_BT.shape == batch.real_BT.shape == batch.answers_BT.shape
        assert batch.ids_BT.shape[1] % 8 == 0
        assert batch.ids_BT.shape[0] * (batch.ids_BT.shape[1] - 7) <= 1024
        padding = batch.ids_BT == compact_tokenizer.pad_token_id
        assert torch.equal(padding, ~batch.real_BT)
        assert not padding[:, 0].any()
        assert (padding[:, 1:] >= padding[:, :-1]).all(), "padding is on the right only"
        assert batch.answers_BT.any(1).all()


def test_batches_never_repeat_a_document(compact_tokenizer, corpus_config):
    stream = batches(compact_tokenizer, corpus_config, seed=1, tokens_per_batch=1024, pool=256)
    rows = [tuple(row) for batch in islice(stream, 40) for row in batch.ids_BT.tolist()]
    stripped = [tuple(i for i in row if i) for row in rows]
    assert len(set(stripped)) == len(stripped)
