"""Every kind: sections round-trip, proposals are read strictly, answers are graded by value, tasks are derived."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.records import Task
from azr.tasks.base import Proposal, RejectReason, Verdict
from azr.tasks.prompts import ChatFormat, CompactFormat, Section
from azr.tasks.registry import KINDS, derived_tasks

LIMITS = {"source_bytes": 500, "induction_inputs": 6, "repeats": 2}
ADD = "def f(a, b):\n    return a + b"


def ran(*values: str) -> ExecutionResult:
    outputs = tuple(CallResult(status=CallStatus.OK, value=value) for value in values)
    return ExecutionResult(outputs=outputs, deterministic=True)


def echo(request: ExecutionRequest) -> ExecutionResult:
    """As if the program were the identity."""
    return ran(*request.inputs)


def ended(status: CallStatus, error: str | None = None) -> ExecutionResult:
    return ExecutionResult(outputs=(CallResult(status=status, error=error),), deterministic=True)


class Runner:
    """Stands where the executor stands: gives the same result for whatever it is asked, and keeps the requests."""

    def __init__(self, result: ExecutionResult | None = None) -> None:
        """``result``: the echo of each request unless given."""
        self._result = result
        self.requests: list[ExecutionRequest] = []

    async def __call__(self, request: ExecutionRequest) -> ExecutionResult:
        self.requests.append(request)
        return self._result or echo(request)


async def nothing_runs(request: ExecutionRequest) -> ExecutionResult:
    raise AssertionError(f"nothing has to run here, but {request} does")


async def validate(kind: str, *sections: Section, run=nothing_runs, references=()) -> Task | RejectReason:
    proposal = Proposal(id="t", sections=sections, references=references, step=1, **LIMITS)
    return await KINDS[kind].validate(proposal, run)


async def task(kind: str, program: str, given: str, output: str) -> Task:
    accepted = await validate(kind, Section("program", program), Section("input", given), run=Runner(ran(output)))
    assert isinstance(accepted, Task)
    return accepted


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("style", [CompactFormat(), ChatFormat(str)], ids=["compact", "chat"])
async def test_a_stated_task_is_read_back(kind, style):
    seed = kind.seed()
    sections = style.parse(style.response(kind.proposal(seed)))
    accepted = await validate(kind.name, *sections, run=Runner(), references=(seed,))
    assert replace(accepted, id=seed.id, step=0, parents=()) == seed
    assert (accepted.id, accepted.step, accepted.parents) == ("t", 1, (seed.id,))
    assert style.parse(style.response(kind.solution(seed))) == kind.solution(seed)


async def test_prompts_show_what_is_given_and_nothing_else():
    deduction, abduction = await task("deduction", ADD, "1, 2", "3"), await task("abduction", ADD, "1, 2", "3")
    assert [s.label for s in KINDS["deduction"].solver_view(deduction)] == ["program", "input"]
    assert [s.label for s in KINDS["abduction"].solver_view(abduction)] == ["program", "output"]
    seed = KINDS["induction"].seed()
    shown = KINDS["induction"].solver_view(seed)
    assert [s.text for s in shown if s.label == "input"] == list(seed.inputs[:3])
    assert not any(hidden in s.text for s in shown for hidden in seed.inputs[3:])


@pytest.mark.parametrize(
    "program, given, refusal",
    [
        ("def g(a):\n    return a", "1", RejectReason.MALFORMED),
        ("def f():\n    return 1", "1", RejectReason.MALFORMED), ("def f(a):\n  return (", "1", RejectReason.MALFORMED),
        (ADD, "a, b", RejectReason.MALFORMED), (ADD, "__import__('os'), 1", RejectReason.MALFORMED),
        (ADD + "\n#" + "x" * 600, "1, 2", RejectReason.TOO_LARGE),
    ],
)  # fmt: skip
async def test_bad_proposals_are_refused_before_anything_runs(program, given, refusal):
    assert await validate("deduction", Section("program", program), Section("input", given)) is refusal


async def test_helpers_and_classes_are_allowed_and_the_order_of_blocks_does_not_matter():
    helped = (
        "class C:\n    def m(self):\n        return 1\ndef g(a):\n    return a\ndef f(a):\n    return g(a) + C().m()"
    )
    assert isinstance(await task("deduction", helped, "1", "2"), Task)
    run = Runner(ran("3"))
    assert isinstance(await validate("deduction", Section("input", "1, 2"), Section("program", ADD), run=run), Task)
    assert run.requests == [ExecutionRequest(program=ADD, inputs=("1, 2",), repeats=2)]


@pytest.mark.parametrize(
    "result, refusal",
    [
        (ended(CallStatus.RAISED, "ValueError"), RejectReason.FAILED),
        (ended(CallStatus.RAISED, "Exception"), RejectReason.FAILED), (ended(CallStatus.TIMEOUT), RejectReason.FAILED),
        (ended(CallStatus.OUTPUT_TOO_LARGE), RejectReason.TOO_LARGE), (ended(CallStatus.LOST), RejectReason.LOST),
        (replace(ran("1"), deterministic=False), RejectReason.NON_DETERMINISTIC),
        (replace(ended(CallStatus.REJECTED), static_check=("line 1: imports random",)), RejectReason.NOT_ALLOWED),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["deduction", "abduction", "induction"])
async def test_what_did_not_run_well_is_never_a_task(kind, result, refusal):
    seed = KINDS[kind].seed()
    sections = KINDS[kind].proposal(seed)
    assert await validate(kind, *sections, run=Runner(result), references=(seed,)) is refusal


async def test_abduction_takes_any_preimage_on_several_lines_and_induction_checks_the_hidden_half_only():
    kind, stated = KINDS["abduction"], await task("abduction", ADD, "1, 2", "3")
    answer, run = [Section("input", "0,\n3")], Runner(ran("3"))
    assert await kind.grade(stated, answer, run) is Verdict.RIGHT
    assert [request.inputs for request in run.requests] == [("0, 3",)]
    assert await kind.grade(stated, answer, Runner(ran("4"))) is Verdict.WRONG
    kind, run = KINDS["induction"], Runner()
    seed = kind.seed()
    assert await kind.grade(seed, kind.solution(seed), run) is Verdict.RIGHT
    assert [request.inputs for request in run.requests] == [seed.inputs[3:]]
    assert await kind.grade(seed, kind.solution(seed), Runner(ran(*seed.outputs[3:5], "0"))) is Verdict.WRONG


@pytest.mark.parametrize("kind", ["abduction", "induction"])
async def test_a_lost_executor_is_not_a_wrong_answer(kind):
    seed, lost = KINDS[kind].seed(), Runner(ended(CallStatus.LOST))
    assert await KINDS[kind].grade(seed, KINDS[kind].solution(seed), lost) is Verdict.UNGRADED


async def test_an_induction_proposal_needs_enough_inputs_and_one_message_that_does_not_state_the_program():
    for inputs, messages, refusal in (
        ("123456", ["a hint"], None), ("12345678", ["a hint"], None), ("12345", ["a hint"], RejectReason.MALFORMED),
        ("123456", [], RejectReason.MALFORMED), ("123456", ["a hint"] * 2, RejectReason.MALFORMED),
        ("123456", ["it is def f(a): return a"], RejectReason.NOT_ALLOWED),
    ):  # fmt: skip
        sections = [Section("input", text) for text in inputs] + [Section("message", text) for text in messages]
        run = nothing_runs if refusal else Runner()
        outcome = await validate("induction", *sections, run=run, references=[KINDS["induction"].seed()])
        assert outcome is refusal if refusal else outcome.inputs == tuple("123456"), (inputs, messages)


async def test_a_timeout_is_no_error_label():
    proposed = (Section("program", ADD), Section("input", "1, 'a'"))
    for status in (CallStatus.TIMEOUT, CallStatus.MEMORY, CallStatus.CRASHED):
        assert await validate("error", *proposed, run=Runner(ended(status))) is RejectReason.FAILED, status


PLAYED = ("deduction", "abduction", "induction", "error")
GIVEN, RETURNED = ("1", "2", "3", "4"), ("2", "3", "4", "5")
ADDS = {"program": "def f(a):\n    return a + 1", "fingerprint": "x", "message": "adds", "solve_rate": 0.5}
INDUCTION = Task(id="t", kind="induction", inputs=GIVEN, outputs=RETURNED, **ADDS)
DEDUCTION = replace(INDUCTION, kind="deduction", inputs=("1",), outputs=("2",), message="")


def derive(task: Task, most: int = 9, kinds: tuple[str, ...] = PLAYED) -> list[Task]:
    return derived_tasks(task, kinds, most, random.Random(1))


def test_the_pairs_of_an_induction_are_deductions_and_abductions() -> None:
    derived = derive(INDUCTION)
    assert Counter(task.kind for task in derived) == {"deduction": 4, "abduction": 4}
    for kind in ("deduction", "abduction"):
        posed = {(*task.inputs, *task.outputs) for task in derived if task.kind == kind}
        assert posed == set(zip(GIVEN, RETURNED, strict=True))
    for task in derived:
        assert task.program == INDUCTION.program and task.parents == ("t",) and task.solve_rate is None
        assert task.message == ""
    assert len({task.id for task in (*derived, INDUCTION)}) == len(derived) + 1
    assert Counter(task.kind for task in derive(INDUCTION, 2)) == {"deduction": 2, "abduction": 2}, "as many as asked"
    assert not derive(INDUCTION, 0)


def test_a_deduction_is_an_abduction_and_the_other_way_round() -> None:
    (derived,) = derive(DEDUCTION)
    assert (derived.kind, derived.program, derived.inputs) == ("abduction", DEDUCTION.program, ("1",))
    (back,) = derive(derived)
    assert (back.kind, back.inputs, back.outputs) == ("deduction", ("1",), ("2",))


def test_kinds_that_are_not_played_and_names_of_exceptions_are_not_posed() -> None:
    assert not derive(INDUCTION, kinds=("error",)) and not derive(DEDUCTION, kinds=("error",))
    assert not derive(replace(DEDUCTION, kind="error", outputs=("ValueError",)))
