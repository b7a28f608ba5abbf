"""What the records say of refused proposals and wrong answers, with the real executor."""

from dataclasses import replace

import pytest

from azr.answering import judge_text
from azr.tasks.base import RejectReason, Verdict
from azr.tasks.explanations import explain_answer
from azr.tasks.prompts import Section
from azr.tasks.registry import KINDS
from tests.runs.factory import completion
from tests.selfplay.test_play import CODEC, CONFIG, Script, play, proposal, replace_play  # noqa: F401

pytestmark = pytest.mark.asyncio(loop_scope="module")


def program(text: str, given: str = "2") -> str:
    return f"<|program|>{text}<|input|>{given}<|end|>"


REFUSED = {
    program("import random\ndef f(a):\n    return random.random()"): ("not_allowed", "line 1: imports random"),
    program("def f(a):\n    return (a"): ("malformed", "line 2: '(' was never closed"),
    program("def g(a):\n    return a"): ("malformed", "the program defines 0 functions f instead of one"),
    program("def f():\n    return 1"): ("malformed", "f takes no argument"),
    program("def f(a):\n    return a", "x y"): ("malformed", "the answer holds 1 program, 1 input: others were asked"),
    proposal("1 // 0"): ("failed", "f(2) raised: ZeroDivisionError"),
    proposal("hash('a')"): ("non_deterministic", "runs with other hash seeds gave other results"),
    "<|program|>never ends": ("malformed", "cut off after"),
    "no sections<|end|>": ("malformed", "no answer in the asked form was found"),
}


async def test_a_refused_proposal_says_why(play):  # noqa: F811
    config = replace_play(CONFIG, proposer_prompts=len(REFUSED), solver_prompts=0)
    result, _ = await play(config, Script(list(REFUSED), lambda prompt, attempt: ""))
    judged = {CODEC.decode(t.completion.response_ids): t.judgement for t in result.samples}
    assert judged.keys() == REFUSED.keys()
    for text, (outcome, detail) in REFUSED.items():
        assert (judged[text].verdict, judged[text].detail[: len(detail)]) == (outcome, detail)
    reasons = [judged[text].reason for text in REFUSED]
    assert reasons == ["", "unreadable", "unreadable", "unreadable", "unreadable", "", "", "cut_off", "no_block"]
    assert judged[proposal("1 // 0")].answer == (("program", "def f(a):\n    return 1 // 0"), ("input", "2"))
    assert judged["no sections<|end|>"].answer is None


async def test_two_equal_proposals_and_wrong_answers_say_why(play):  # noqa: F811
    again = "<|program|>def f(number):\n    # again\n    return number + 1<|input|>2<|end|>"
    answers = ["<|output|>3<|end|>", "<|output|>4<|end|>", "<|output|>three<|end|>", "<|output|>3"]
    script = Script([proposal("a + 1"), again], lambda prompt, attempt: answers[attempt % 4])
    config = replace_play(CONFIG, proposer_prompts=2, solver_prompts=0)
    result, buffer = await play(config, script)
    assert buffer.sizes() == {"deduction": 2}
    (valid,) = (t.problem_id for t in result.samples if t.judgement.verdict == "valid")
    said = {(t.judgement.verdict, t.judgement.detail) for t in result.samples if t.role == "proposer"}
    assert said == {("valid", ""), (str(RejectReason.DUPLICATE), f"duplicate of {valid}")}
    solved = {CODEC.decode(t.completion.response_ids): t.judgement for t in result.samples if t.accuracy is not None}
    assert [solved[text].verdict for text in answers] == [
        Verdict.RIGHT, Verdict.WRONG, Verdict.MALFORMED, Verdict.MALFORMED,
    ]  # fmt: skip
    assert solved[answers[1]].answer == (("output", "4"),) and solved[answers[1]].detail == "f(2) gives 3, not 4"
    assert solved[answers[2]].detail == "the answer holds one output, which is not plain data or not what was asked"
    assert solved[answers[3]].detail.startswith("cut off after")
    assert [solved[text].reason for text in answers] == ["", "", "unreadable", "cut_off"]


async def test_what_lacks_a_block_or_could_not_be_judged_has_a_reason(play, monkeypatch):  # noqa: F811
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    proposals = ["<|program|>def f(a):\n    return a<|end|>", proposal("a + 1")]
    config = replace_play(CONFIG, proposer_prompts=2, solver_prompts=0)
    answers = ["<|input|>3<|end|>", "<|output|>3<|end|>"]
    monkeypatch.setattr("azr.tasks.registry.values.parse", fail)
    result, _ = await play(config, Script(proposals, lambda prompt, attempt: answers[attempt % 2]))
    said = {CODEC.decode(t.completion.response_ids): t.judgement.reason for t in result.samples}
    assert said.keys() == {*proposals, *answers}
    assert [said[text] for text in (*proposals, *answers)] == ["missing_block", "", "missing_block", "grader_failed"]


async def test_what_an_answer_ran_is_told_with_its_arguments(play):  # noqa: F811
    play_config = replace(CONFIG.selfplay, kinds=("abduction",), proposer_prompts=1, solver_prompts=0, group_size=2)
    config = replace(CONFIG, selfplay=play_config)
    script = Script([proposal("10 // a")], lambda prompt, attempt: f"<|input|>{[3, 0][attempt % 2]}<|end|>")
    result, _ = await play(config, script)
    details = [t.judgement.detail for t in result.samples if t.role == "solver"]
    assert sorted(details) == ["f(0) raised: ZeroDivisionError", "f(3) returned 3, not 5"]


async def test_a_plugins_task_without_inputs_and_without_a_solution_ends_no_run():
    def no_solution() -> tuple[Section, ...]:
        raise IndexError

    task = replace(KINDS["deduction"].seed(), inputs=(), outputs=())
    answer = completion(CODEC.encode("<|output|>3<|end|>"))
    assert explain_answer(Verdict.WRONG, task, answer, (Section("output", "3"),), None) == ""

    async def judge(sections, run):
        return Verdict.MALFORMED

    outcome, _, _, reason = await judge_text(
        answer, CODEC, KINDS["deduction"], None, judge, id="t", malformed=Verdict.MALFORMED, expected=no_solution
    )
    assert (outcome, reason) == (Verdict.MALFORMED, "grader_failed")
