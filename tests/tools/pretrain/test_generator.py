import random

import pytest

from azr import values
from azr.tasks.normalize import parse_program
from tools.pretrain.generator import (
    MAX_OUTPUT,
    MAX_STEPS,
    compile_program,
    random_error_sample,
    random_identity_sample,
    random_sample,
)


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


def test_programs_are_varied_and_stay_within_the_documented_composition(samples):
    assert len({sample.program for sample in samples}) > 200
    for sample in samples:
        assert parse_program(sample.program) is not None
        assert 1 <= sample.message.count(", ") - sample.message.count("sort, reverse") + 1 <= MAX_STEPS
        assert "while" not in sample.program and sample.program.count("for ") <= 2 * MAX_STEPS


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


def test_identity_sample_returns_its_inputs():
    sample = random_identity_sample(random.Random(6), inputs=6)
    assert sample.inputs == sample.outputs
    assert tuple(rerun(sample.program, given) for given in sample.inputs) == sample.outputs
