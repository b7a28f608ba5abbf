"""Every kind: sections round-trip, proposals are read strictly, answers are graded by value."""

import pytest

from azr.records import CallResult, CallStatus, ExecutionRequest, ExecutionResult, Task
from azr.tasks.base import Proposal, ProposalLimits, RejectReason, Verdict
from azr.tasks.chat import ChatFormat
from azr.tasks.prompts import CompactFormat, Section
from azr.tasks.registry import KINDS

RULES = ProposalLimits(source_bytes=500, induction_inputs=6, repeats=2)
ADD = "def f(a, b):\n    return a + b"


def ran(*values: str) -> ExecutionResult:
    outputs = tuple(CallResult(status=CallStatus.OK, value=value) for value in values)
    return ExecutionResult(outputs=outputs, deterministic=True)


def ended(status: CallStatus, error: str | None = None) -> ExecutionResult:
    return ExecutionResult(outputs=(CallResult(status=status, error=error),), deterministic=True)


def task(kind: str, program: str, given: str, output: str) -> Task:
    proposal = KINDS[kind].read_proposal([Section("program", program), Section("input", given)], [], RULES)
    assert isinstance(proposal, Proposal)
    admitted = KINDS[kind].admit(proposal, ran(output), id="t", step=1, parents=())
    assert isinstance(admitted, Task)
    return admitted


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("style", [CompactFormat(), ChatFormat()], ids=["compact", "chat"])
def test_a_stated_task_is_read_back(kind, style):
    seed = kind.seed()
    sections = style.parse(style.response(kind.proposal(seed)))
    proposal = kind.read_proposal(sections, [seed], RULES)
    assert (proposal.program, proposal.inputs, proposal.message) == (seed.program, seed.inputs, seed.message)
    assert style.parse(style.response(kind.solution(seed))) == kind.solution(seed)


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_its_own_solution_is_right(kind):
    seed = kind.seed()
    check = kind.verification(seed, kind.solution(seed))
    if isinstance(check, ExecutionRequest):
        check = kind.verdict(seed, ran(*check.inputs))
    assert check is Verdict.RIGHT


def test_prompts_show_what_is_given_and_nothing_else():
    deduction, abduction = task("deduction", ADD, "1, 2", "3"), task("abduction", ADD, "1, 2", "3")
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
        ("def f():\n    return 1", "1", RejectReason.MALFORMED),
        ("def f(a):\n  return (", "1", RejectReason.MALFORMED),
        (ADD, "a, b", RejectReason.MALFORMED),
        (ADD, "__import__('os'), 1", RejectReason.MALFORMED),
        (ADD + "\n#" + "x" * 600, "1, 2", RejectReason.TOO_LARGE),
    ],
)
def test_bad_proposals_are_refused(program, given, refusal):
    sections = [Section("program", program), Section("input", given)]
    assert KINDS["deduction"].read_proposal(sections, [], RULES) is refusal


def test_helpers_nested_functions_and_classes_are_allowed():
    program = (
        "class C:\n    def m(self):\n        return 1\ndef g(a):\n    return a\ndef f(a):\n    return g(a) + C().m()"
    )
    assert isinstance(
        KINDS["deduction"].read_proposal([Section("program", program), Section("input", "1")], [], RULES), Proposal
    )


def test_block_order_does_not_matter():
    sections = [Section("input", "1, 2"), Section("program", ADD)]
    assert isinstance(KINDS["deduction"].read_proposal(sections, [], RULES), Proposal)


@pytest.mark.parametrize(
    "result, refusal",
    [
        (ended(CallStatus.RAISED, "ValueError"), RejectReason.FAILED),
        (ended(CallStatus.RAISED, "Exception"), RejectReason.FAILED),
        (ended(CallStatus.TIMEOUT), RejectReason.FAILED),
        (ended(CallStatus.OUTPUT_TOO_LARGE), RejectReason.TOO_LARGE),
        (ended(CallStatus.LOST), RejectReason.LOST),
        (
            ExecutionResult(outputs=(CallResult(status=CallStatus.OK, value="1"),), deterministic=False),
            RejectReason.NON_DETERMINISTIC,
        ),
        (
            ExecutionResult(outputs=(CallResult(status=CallStatus.REJECTED),), screen=("line 1: imports random",)),
            RejectReason.NOT_ALLOWED,
        ),
    ],
)
def test_what_did_not_run_well_is_never_a_task(result, refusal):
    proposal = Proposal(program=ADD, inputs=("1, 2",))
    assert KINDS["deduction"].admit(proposal, result, id="t", step=1, parents=()) is refusal


@pytest.mark.parametrize(
    "output, answer, verdict",
    [
        ("5", "5", Verdict.RIGHT),
        ("5", "5.0", Verdict.RIGHT),
        ("'5'", "5.0", Verdict.WRONG),
        ("2", "1+1", Verdict.MALFORMED),
        ("{1, 2}", "{2, 1}", Verdict.RIGHT),
        ("3", "4", Verdict.WRONG),
        ("3", "__import__('os').getpid()", Verdict.MALFORMED),
        ("3", "", Verdict.MALFORMED),
    ],
)
def test_deduction_compares_values(output, answer, verdict):
    kind = KINDS["deduction"]
    assert kind.verification(task("deduction", ADD, "1, 2", output), [Section("output", answer)]) is verdict


def test_long_outputs_stay_whole():
    numbers = str(list(range(300)))
    made = task("deduction", "def f(n):\n    return list(range(n))", "300", numbers)
    assert made.outputs == (numbers,)
    assert KINDS["deduction"].verification(made, [Section("output", numbers)]) is Verdict.RIGHT


def test_abduction_takes_any_preimage_on_several_lines():
    kind, made = KINDS["abduction"], task("abduction", ADD, "1, 2", "3")
    check = kind.verification(made, [Section("input", "0,\n3")])
    assert isinstance(check, ExecutionRequest) and check.inputs == ("0, 3",)
    assert kind.verdict(made, ran("3")) is Verdict.RIGHT
    assert kind.verdict(made, ran("4")) is Verdict.WRONG


@pytest.mark.parametrize("answer", ["0) or True or (0", "1, b=2", "*[1, 2]", "1 # ,", "lambda: 0"])
def test_abduction_answers_are_data_never_code(answer):
    check = KINDS["abduction"].verification(task("abduction", ADD, "1, 2", "3"), [Section("input", answer)])
    assert check is Verdict.MALFORMED or check.inputs == ("1",)


@pytest.mark.parametrize("kind", ["abduction", "induction"])
def test_a_lost_executor_is_not_a_wrong_answer(kind):
    assert KINDS[kind].verdict(KINDS[kind].seed(), ended(CallStatus.LOST)) is Verdict.UNGRADED


def test_induction_checks_the_hidden_half_only():
    kind = KINDS["induction"]
    seed = kind.seed()
    check = kind.verification(seed, [Section("program", seed.program)])
    assert isinstance(check, ExecutionRequest) and check.inputs == seed.inputs[3:]
    assert kind.verdict(seed, ran(*seed.outputs[3:])) is Verdict.RIGHT
    assert kind.verdict(seed, ran(*seed.outputs[3:5], "0")) is Verdict.WRONG


def test_induction_inputs_must_differ_so_that_no_hidden_answer_is_shown():
    kind = KINDS["induction"]
    sections = [Section("input", text) for text in ("1", "2", "3", "4", "5", " 1 ")] + [Section("message", "same")]
    assert kind.read_proposal(sections, [kind.seed()], RULES) is RejectReason.MALFORMED


@pytest.mark.parametrize(
    "inputs, message, accepted",
    [("123456", 1, True), ("12345678", 1, True), ("12345", 1, False), ("123456", 0, False), ("123456", 2, False)],
)
def test_an_induction_proposal_needs_enough_inputs_and_one_message(inputs, message, accepted):
    kind = KINDS["induction"]
    sections = [Section("input", text) for text in inputs] + [Section("message", "a hint")] * message
    proposal = kind.read_proposal(sections, [kind.seed()], RULES)
    assert proposal is RejectReason.MALFORMED if not accepted else proposal.inputs == tuple("123456")


def test_an_induction_message_may_not_state_the_program():
    kind = KINDS["induction"]
    sections = [Section("input", text) for text in "123456"] + [Section("message", "it is def f(a): return a")]
    assert kind.read_proposal(sections, [kind.seed()], RULES) is RejectReason.NOT_ALLOWED


def test_the_error_kind_is_playable():
    kind = KINDS["error"]
    proposal = Proposal(program=ADD, inputs=("1, 'a'",))
    made = kind.admit(proposal, ended(CallStatus.RAISED, "TypeError"), id="t", step=1, parents=())
    assert isinstance(made, Task) and made.outputs == ("TypeError",)
    assert kind.verification(made, [Section("output", "TypeError")]) is Verdict.RIGHT
    assert kind.verification(made, [Section("output", "NoError")]) is Verdict.WRONG
    assert kind.verification(made, [Section("output", "it fails")]) is Verdict.MALFORMED


@pytest.mark.parametrize("status", [CallStatus.TIMEOUT, CallStatus.MEMORY, CallStatus.CRASHED])
def test_a_timeout_is_no_error_label(status):
    assert (
        KINDS["error"].admit(Proposal(program=ADD, inputs=("1, 2",)), ended(status), id="t", step=1, parents=())
        is RejectReason.FAILED
    )
