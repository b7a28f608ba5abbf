from collections.abc import Sequence
from dataclasses import replace

import pytest

from azr.config import ExecutorConfig
from azr.execution import ExecutionRequest
from azr.executor.pool import SandboxPool
from azr.records import Task
from azr.tasks.base import Proposal, ProposalLimits, TaskKind, Verdict
from azr.tasks.prompts import ChatFormat, CompactFormat, PromptFacts, Section
from azr.tasks.registry import KINDS


@pytest.mark.parametrize(
    "text", ["", "x", "<|program|>a<|answer|>b", "x<|output|>1", "<|other|>1", "x<|other|>1", "x<|end|><|output|>1"]
)
def test_compact_refuses_other_forms(text):
    assert CompactFormat().parse(text) is None


@pytest.mark.parametrize(
    "text, lenient",
    [
        ("x = x + 1\n4\n<|output|>3<|end|>", (Section("output", "3"),)),
        ("<|output|>3", (Section("output", "3"),)),
        ("4 <|other|>x<|output|>3", None),
        ("only working<|end|>", None),
        ("", None),
    ],
)
def test_compact_lets_working_stand_before_the_answer_on_request(text, lenient):
    assert CompactFormat("answer").parse(text) == lenient
    assert CompactFormat().parse(text) == (lenient if text.startswith("<|") else None)


def test_every_compact_tag_is_a_special_token():
    style, tokens = CompactFormat(), CompactFormat.special_tokens(list(KINDS))
    for kind in KINDS.values():
        seed = kind.seed()
        texts = (
            style.propose(kind, [seed]),
            style.solve(kind, kind.solver_view(seed)),
            style.response(kind.proposal(seed)),
        )
        for text in texts:
            assert set(CompactFormat._tag.findall(text)) <= {token[2:-2] for token in tokens}


OUTPUT = (Section("output", "3"),)


@pytest.mark.parametrize(
    "text, strict, lenient",
    [
        ("thinking</think>\n<answer>```output\n3\n```</answer>", OUTPUT, OUTPUT),
        ("<think>a</think><answer>```output\n3\n```</answer>\n", OUTPUT, OUTPUT),
        ("</think><answer>```output\n3\n```</answer><|im_end|>\nUser: and 4?", OUTPUT, OUTPUT),
        ("</think><answer>```output\n3\n```</answer> <answer>```output\n4\n```</answer>", OUTPUT, OUTPUT),
        ("</think>\r\n<answer>\r\n```output\r\n3\r\n```\r\n</answer>", OUTPUT, OUTPUT),
        ("I use <answer> tags.</think><answer>```output\n3\n```</answer>", OUTPUT, OUTPUT),
        ("<answer>```output\n3\n```</answer>", None, OUTPUT),
        ("a</think> so <answer>```output\n3\n```</answer>", None, OUTPUT),
        ("a</think><answer>```output\n3```</answer>", OUTPUT, OUTPUT),
        ("a</think><answer>\n  ```output\n3\n  ```\n</answer>", OUTPUT, OUTPUT),
        ("a</think><answer>```output\n3\n```", None, OUTPUT),
        ("a</think><answer>3</answer>", None, None),
        ("a</think>```output\n3\n```</answer>", None, OUTPUT),
        ("a</think>```output\n3\n```", None, OUTPUT),
        ("So it is ```output\n3\n```", None, OUTPUT),
        ("```output\n4\n```no</think>```output\n3\n```\nas f adds 1", None, OUTPUT),
        ("a</think>```output\n3", None, None),
        ("", None, None),
    ],
)
def test_chat_reads_the_first_complete_answer(text, strict, lenient):
    assert ChatFormat(str).parse(text) == strict
    assert ChatFormat(str, response_format="answer").parse(text) == lenient


@pytest.mark.parametrize("text", ["Assistant: <think>", "```", "```python"])
def test_chat_is_not_confused_by_marks_of_its_own_in_programs(text):
    program = f'def f(a):\n    return "{text}" + a'
    style = ChatFormat(str)
    response = style.response([Section("program", program), Section("input", "'User:'")])
    assert style.parse(response) == (Section("program", program), Section("input", "'User:'"))


FACTS = PromptFacts(induction_inputs=7, wall_s=2.5, modules=("math", "re"), refused_names=("eval", "open"))


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_chat_prompts_state_the_form_and_the_rules_that_are_graded(kind):
    style = ChatFormat(str, FACTS)
    proposal = style.propose(kind, [kind.seed()])
    question = style.solve(kind, kind.solver_view(kind.seed()))
    for prompt in (proposal, question):
        assert all(tag in prompt for tag in ("<think>", "</think>", "<answer>", "</answer>"))
    wanted = {section.label for section in kind.proposal(kind.seed())}
    assert all(f"```{'python' if label == 'program' else label} block" in proposal for label in wanted)
    (asked,) = {section.label for section in kind.solution(kind.seed())}
    assert f"one ```{'python' if asked == 'program' else asked} block" in question
    if "program" in wanted:
        assert "only of these modules: math, re." in proposal and "Refused names are eval, open." in proposal
        assert "called f" in proposal and "A program has at most 16,384 bytes" in proposal
    else:
        assert "Choose 7 inputs for" in proposal and "7 ```input blocks" in proposal
        assert "at most 4,000 characters" in proposal and "262,144 for all inputs together" in proposal
    assert "less than 1.25 s of CPU time" in proposal and "65,536" in proposal
    assert "plain data" in proposal


async def accepted(pool: SandboxPool, kind: TaskKind, sections: Sequence[Section], references: Sequence[Task]) -> Task:
    limits = ProposalLimits(source_bytes=2000, induction_inputs=FACTS.induction_inputs, repeats=2)
    proposal = Proposal(id="t", sections=sections, references=references)
    task = await kind.validate(proposal, limits, pool.execute)
    assert isinstance(task, Task), task
    return task


async def test_the_worked_examples_earn_full_marks():
    """Read back from the prompt itself by the parser: proposals become tasks, solutions are right."""
    style = ChatFormat(str, FACTS)
    async with SandboxPool(ExecutorConfig(workers=1, wall_s=30.0)) as pool:
        for kind in KINDS.values():
            proposed = style.parse(style.propose(kind, []).partition("whole response could be:")[2])
            program = next(
                (s.text for s in kind.proposer_instructions(FACTS).example.shown if s.label == "program"), ""
            )
            assert proposed is not None
            await accepted(pool, kind, proposed, [replace(kind.seed(), program=program)] if program else [])

            answer = style.parse(style.solve(kind, []).partition("whole response could be:")[2])
            question = {s.label: s.text for s in kind.solver_instructions(FACTS).example.shown}
            assert answer is not None
            if kind.name == "induction":
                shown = [s.text for s in kind.solver_instructions(FACTS).example.shown if s.label != "message"]
                request = ExecutionRequest(program=answer[0].text, inputs=tuple(shown[::2]))
                assert [call.value for call in (await pool.execute(request)).outputs] == shown[1::2]
                continue
            stated = Section("input", question.get("input") or answer[0].text)
            task = await accepted(pool, kind, [Section("program", question["program"]), stated], [])
            assert task.outputs[0] == question.get("output", task.outputs[0])
            assert await kind.grade(task, answer, pool.execute) is Verdict.RIGHT


@pytest.mark.parametrize("style", [ChatFormat(str, FACTS), CompactFormat()], ids=["chat", "compact"])
def test_functions_to_call_stand_last_and_without_any_the_prompt_is_as_ever(style):
    kind, functions = KINDS["deduction"], "def g_0(a):\n    return a + 41"
    shown = [kind.seed()]
    without, given = style.propose(kind, shown), style.propose(kind, shown, functions)
    assert style.propose(kind, shown, "") == without and functions not in without
    assert given.index(functions) > given.index(kind.seed().program)
    if isinstance(style, ChatFormat):
        assert given.startswith(without) and "must call every one of them" in given.removeprefix(without)
