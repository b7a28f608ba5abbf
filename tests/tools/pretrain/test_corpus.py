import random
from collections import Counter
from itertools import islice

import pytest
import torch

from azr import values
from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.records import Task
from azr.tasks.base import Proposal, Verdict
from azr.tasks.normalize import parse_program
from azr.tasks.prompts import CompactFormat
from azr.tasks.registry import KINDS, NO_ERROR
from tools.pretrain.corpus import CORPORA, batches, make_document, make_task
from tools.pretrain.generator import (
    MAX_OUTPUT,
    MAX_STEPS,
    compile_program,
    is_held_out,
    random_error_sample,
    random_identity_sample,
    random_sample,
)

LIMITS = {"source_bytes": 4096, "induction_inputs": 6, "repeats": 1}


def test_documents_are_the_same_for_the_same_seed_and_answers_parse_back(corpus_config, documents):
    rng = random.Random(0)
    assert [make_document(rng, corpus_config) for _ in range(50)] == documents[:50]
    style = CompactFormat()
    for document in documents[:300]:
        assert document.prompt.startswith(("<|solve|>", "<|propose|>"))
        assert document.prompt.endswith(CompactFormat.answer)
        sections = style.parse(document.answer)
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
            accepted = await kind.validate(Proposal(id="t", sections=sections, references=[task], **LIMITS), run)
            assert isinstance(accepted, Task)
            assert (accepted.program, accepted.inputs, accepted.outputs) == (task.program, task.inputs, task.outputs)
            assert await kind.grade(task, kind.solution(task), run) is Verdict.RIGHT


def test_batches_pad_right_within_the_budget_mark_answers_and_never_repeat_a_document(compact_tokenizer, corpus_config):
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
    stream = batches(compact_tokenizer, corpus_config, seed=1, tokens_per_batch=1024, pool=256)
    rows = [tuple(row) for batch in islice(stream, 40) for row in batch.ids_BT.tolist()]
    stripped = [tuple(i for i in row if i) for row in rows]
    assert len(set(stripped)) == len(stripped)


def test_worked_programs_are_straight_and_as_long_as_their_shares_say():
    rng, lengths = random.Random(4), Counter[int]()
    for _ in range(1500):
        document = make_document(rng, CORPORA["worked"])
        if document.prompt.startswith("<|solve|>"):
            program = document.prompt.split("<|program|>")[1].partition("<|")[0]
            lines = program.split("\n")[1:]
            assert all(line.startswith("    x = ") for line in lines[:-1]) and lines[-1].startswith("    return ")
            assert "y" not in program.partition(":")[0]
            lengths[len(lines)] += 1
    assert set(lengths) == {1, 2, 3, 4}
    shares = [lengths[count] / lengths.total() for count in (1, 2, 3, 4)]
    assert shares == pytest.approx([0.5, 0.34, 0.12, 0.04], abs=0.06)


def test_answers_to_deductions_are_worked_out_line_by_line():
    rng, longer = random.Random(5), 0
    for _ in range(300):
        document = make_document(rng, CORPORA["worked"])
        if document.prompt.startswith("<|propose|>"):
            assert document.answer.startswith("<|program|>")
            continue
        program, given = document.prompt.removesuffix("<|answer|>").split("<|program|>")[1].split("<|input|>")
        *steps, last = (line.strip() for line in program.split("\n")[1:])
        working = document.answer.partition("<|output|>")[0]
        *told, end = working.split("\n")[:-1]
        assert told[::2] == steps and len(told) == 2 * len(steps) and end == last
        after = program.split("\n")[0]
        for line, value in zip(steps, told[1::2], strict=True):
            after += f"\n    {line}"
            assert values.canonical(compile_program(f"{after}\n    return x")(*values.parse_arguments(given))) == value
        longer += bool(steps)
    assert longer > 80


def rerun(program: str, given: str) -> str:
    """Canonical text of what the program returns, from the text of its arguments alone."""
    return values.canonical(compile_program(program)(*values.parse_arguments(given)))


@pytest.fixture(scope="module")
def samples():
    rng = random.Random(3)
    return [random_sample(rng, inputs=6) for _ in range(300)]


def test_samples_state_what_running_gives_for_distinct_inputs(samples):
    for sample in samples:
        assert tuple(rerun(sample.program, given) for given in sample.inputs) == sample.outputs
        assert len(set(sample.inputs)) == 6 and len(set(sample.outputs)) > 1 and sample.inputs != sample.outputs
        assert all(values.canonical_arguments(values.parse_arguments(given)) == given for given in sample.inputs)
        assert all(len(output) <= MAX_OUTPUT for output in sample.outputs)
    same = random_identity_sample(random.Random(6), inputs=6)
    assert tuple(rerun(same.program, given) for given in same.inputs) == same.outputs == same.inputs


def test_programs_are_varied_and_stay_within_the_documented_composition(samples):
    assert len({sample.program for sample in samples}) > 200
    for sample in samples:
        assert parse_program(sample.program) is not None
        assert 1 <= sample.message.count(", ") - sample.message.count("sort, reverse") + 1 <= MAX_STEPS
        assert "while" not in sample.program and sample.program.count("for ") <= 2 * MAX_STEPS
    rng = random.Random(4)
    assert not any(is_held_out(sample.program) for sample in samples)
    assert all(is_held_out(random_sample(rng, inputs=1, held_out=True).program) for _ in range(5))


def test_error_samples_name_what_running_raises():
    rng = random.Random(5)
    outcomes = set()
    for _ in range(200):
        sample = random_error_sample(rng)
        try:
            compile_program(sample.program)(*values.parse_arguments(sample.inputs[0]))
            raised = "NoError"
        except Exception as error:
            raised = type(error).__name__
        assert sample.outputs == (raised,)
        outcomes.add(raised)
    assert {"NoError", "IndexError", "ValueError", "TypeError", "ZeroDivisionError"} <= outcomes
