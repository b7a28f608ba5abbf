import ast
import contextlib
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from azr.config import ExecutorConfig
from azr.execution import ExecutionRequest
from azr.executor.pool import SandboxPool
from azr.records import Task
from azr.selfplay.buffer import TaskBuffer
from azr.tasks.base import Proposal, RejectReason, TaskKind, Verdict
from azr.tasks.normalize import held_out_keys
from azr.tasks.prompts import (
    ChatFormat,
    CompactFormat,
    CompletionFormat,
    PromptFacts,
    Section,
    opened_block,
    read_sections,
)
from azr.tasks.registry import FAILING, KINDS, NO_ERROR, WORKED, Worked
from tests.tables import programs


@pytest.mark.parametrize(
    "text, lenient",
    [
        ("x = x + 1\n4\n<|output|>3<|end|>", (Section("output", "3"),)), ("<|output|>3", (Section("output", "3"),)),
        ("4 <|other|>x<|output|>3", None), ("only working<|end|>", None), ("", None),
    ],
)  # fmt: skip
def test_compact_lets_working_stand_before_the_answer_on_request(text, lenient):
    assert CompactFormat("answer").parse(text) == lenient
    assert CompactFormat().parse(text) == (lenient if text.startswith("<|") else None)


OTHERS = ("", "x", "<|program|>a<|answer|>b", "x<|output|>1", "<|other|>1", "x<|other|>1", "x<|end|><|output|>1")


def test_compact_refuses_other_forms():
    assert [text for text in OTHERS if CompactFormat().parse(text) is not None] == []


def test_every_compact_tag_is_a_special_token():
    style, tokens = CompactFormat(), CompactFormat.special_tokens(list(KINDS))
    for kind in KINDS.values():
        seed = kind.seed()
        asked = style.propose(kind, [seed]), style.solve(kind, kind.solver_view(seed))
        for text in (*asked, style.response(kind.proposal(seed))):
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
        ("a</think><answer>```output\n3\n```", None, OUTPUT), ("a</think><answer>3</answer>", None, None),
        ("a</think>```output\n3\n```</answer>", None, OUTPUT), ("a</think>```output\n3\n```", None, OUTPUT),
        ("So it is ```output\n3\n```", None, OUTPUT),
        ("```output\n4\n```no</think>```output\n3\n```\nas f adds 1", None, OUTPUT),
        ("a</think>```output\n3", None, None), ("", None, None),
    ],
)  # fmt: skip
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
    bounds = {"source_bytes": 2000, "induction_inputs": FACTS.induction_inputs, "repeats": 2}
    proposal = Proposal(id="t", sections=sections, references=references, **bounds)
    task = await kind.validate(proposal, pool.execute)
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
            await accepted(pool, kind, proposed, [replace(kind.seed(), program=program)] if program else [])

            answer = style.parse(style.solve(kind, []).partition("whole response could be:")[2])
            question = {s.label: s.text for s in kind.solver_instructions(FACTS).example.shown}
            if kind.name == "induction":
                shown = [s.text for s in kind.solver_instructions(FACTS).example.shown if s.label != "message"]
                request = ExecutionRequest(program=answer[0].text, inputs=tuple(shown[::2]))
                assert [call.value for call in (await pool.execute(request)).outputs] == shown[1::2]
                continue
            stated = Section("input", question.get("input") or answer[0].text)
            task = await accepted(pool, kind, [Section("program", question["program"]), stated], [])
            assert task.outputs[0] == question.get("output", task.outputs[0])
            assert await kind.grade(task, answer, pool.execute) is Verdict.RIGHT


def traced(program: str, arguments: str) -> str:
    """Run ``f`` and write down what each line binds or changes, as the traces of worked examples do."""
    tree = ast.parse(program)
    statements = {node.lineno: node for node in ast.walk(tree) if isinstance(node, ast.stmt)}
    top = {node.lineno for node in tree.body[0].body}
    lines: list[list[str]] = []
    done = 1

    def bound(node: ast.stmt) -> list[str]:
        match node:
            case ast.Assign(targets=[target]) | ast.AugAssign(target=target) | ast.For(target=target):
                return [each.id for each in ast.walk(target) if isinstance(each, ast.Name)]
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
                return [name]
        return []

    def follow(frame, event, arg):
        nonlocal done
        if frame.f_code.co_name != "f":
            return None
        if event == "call":
            lines.append([f"{name} = {value!r}" for name, value in frame.f_locals.items()])
        elif event == "line":
            node, at, done = statements[done], done, frame.f_lineno
            is_loop = isinstance(node, ast.For | ast.While)
            enters = is_loop and done == node.body[0].lineno
            if enters or at in top:
                lines.append([])
            if enters or not is_loop:
                lines[-1] += [f"{name} = {frame.f_locals[name]!r}" for name in bound(node)]
        elif event == "exception":
            lines.append([f"raise {arg[0].__name__}"])
        elif not "".join(lines[-1]).startswith("raise "):
            lines.append([f"return {arg!r}"])
        return follow

    space: dict = {}
    exec(program, space)
    before = sys.gettrace()
    sys.settrace(follow)
    try:
        with contextlib.suppress(Exception):
            eval(f"f({arguments})", space)
    finally:
        sys.settrace(before)
    return "\n".join(", ".join(line) for line in lines if line)


@pytest.mark.parametrize("example", [*WORKED, *FAILING], ids=lambda example: example.program.split("\n")[0])
def test_the_trace_of_a_worked_example_is_what_running_it_shows(example: Worked):
    arguments, result = example.calls[0]
    assert example.trace == traced(example.program, arguments)
    assert example.trace.endswith((f"return {result}", f"raise {result}")) or result == NO_ERROR


NUM_INPUTS = 4
STYLE = CompletionFormat(lambda text: range(len(text) // 4), PromptFacts(induction_inputs=NUM_INPUTS))
WORKING = CompletionFormat(lambda text: (), PromptFacts(induction_inputs=NUM_INPUTS), works=True)
ALL = pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
PROPOSAL = programs(Path(__file__).with_name("prompts.txt"), "completion")["a proposal"]


def test_references_are_the_examples_and_the_prompt_ends_inside_the_answer():
    kind = KINDS["deduction"]
    shown = [kind.examples(NUM_INPUTS)[0], kind.seed()]
    prompt = STYLE.propose(kind, [*shown, kind.seed()])
    assert prompt.startswith(f"{PROPOSAL}\n") and "Exercise 4\n```python\n" in prompt
    assert "```output" not in prompt, "nor may the answer hold one"
    few = STYLE.propose(kind, [kind.seed()])
    assert few.count("\n\nExercise") == 4 and few.rindex("return a\n") > few.index("Exercise 3"), (
        "worked ones come first"
    )


def test_references_from_easy_to_hard_come_with_a_heading_that_asks_for_a_harder_program():
    harder = CompletionFormat(str.encode, PromptFacts(easy_to_hard=True))
    for kind in KINDS.values():
        shown = [kind.seed()] * kind.references_per_prompt(3)
        heading, examples = harder.propose(kind, shown).split("\n", 1)
        assert examples == CompletionFormat(str.encode).propose(kind, shown).split("\n", 1)[1]
        assert heading.endswith("harder than all before it, and like none of them.") == kind.proposes_programs
        view = kind.solver_view(kind.seed())
        assert harder.solve(kind, view) == CompletionFormat(str.encode).solve(kind, view)


@ALL
def test_in_the_worked_form_answers_follow_a_trace_which_is_not_read(kind: TaskKind):
    view = kind.solver_view(kind.seed())
    worked, direct = WORKING.solve(kind, view), STYLE.solve(kind, view)
    assert WORKING.propose(kind, [kind.seed()]) == STYLE.propose(kind, [kind.seed()])
    if kind.name == "induction":
        assert worked == direct
        return
    assert worked.endswith("\n```trace\n") and worked.count("```trace\n") == 3
    without = re.sub(r"```trace\n.*?\n```\n", "", worked, flags=re.DOTALL).partition("\n")[2]
    assert without.removesuffix("```trace\n") == direct.partition("\n")[2].rpartition("```")[0]
    for example in kind.examples(NUM_INPUTS):
        (trace,), answer = kind.working(example), kind.solution(example)
        response = WORKING.response([trace, *answer])
        assert WORKING.parse(opened_block(worked) + response, kind.labels) == answer
        assert not any(string in response for string in WORKING.stop_strings), "they would end it too early"
        assert WORKING.parse(opened_block(worked) + trace.text + "\n```", kind.labels) is None


@ALL
def test_a_response_completes_the_block_that_its_prompt_opened(kind: TaskKind):
    task = kind.examples(NUM_INPUTS)[2]
    asked = [
        (STYLE.propose(kind, [kind.seed()]), kind.proposal(task)),
        (STYLE.solve(kind, kind.solver_view(kind.seed())), kind.solution(task)),
    ]
    for prompt, sections in asked:
        opened = opened_block(prompt)
        assert prompt.endswith(opened) and opened.startswith("```")
        for after in ("", "\n\nExercise ", "\nExercise 5\n```python\ndef f(x):\n    return 1\n```", "\n\nIt is so."):
            assert STYLE.parse(opened + STYLE.response(sections) + after, kind.labels) == sections
        assert STYLE.parse(opened + STYLE.response(sections).rpartition("\n```")[0], kind.labels) != sections
        assert all(tag not in prompt for tag in ("<think>", "<answer>", "User:"))


@ALL
def test_examples_differ_between_prompts_and_not_between_answers_of_a_group(kind: TaskKind):
    view = kind.solver_view(kind.seed())
    views = [(Section("input", str(i)), *view[1:]) for i in range(200)]
    fronts = {STYLE.solve(kind, each).rpartition("\n\nExercise ")[0] for each in views}
    assert len(fronts) == len(kind.examples(NUM_INPUTS)) > 1, "few enough that engines keep all of them"
    assert STYLE.solve(kind, view) == STYLE.solve(kind, view)


@ALL
def test_a_question_that_is_long_has_one_example_and_shares_its_beginning_with_a_short_one(kind: TaskKind):
    question = kind.solver_view(kind.seed())
    long = CompletionFormat(lambda text: range(STYLE.solver_tokens + 1)).solve(kind, question)
    short = CompletionFormat(lambda text: range(STYLE.solver_tokens)).solve(kind, question)
    assert "\n\nExercise 2\n" in long and "Exercise 3" not in long and "\n\nExercise 3\n" in short
    assert short.startswith(long.partition("\n\nExercise 2\n")[0])
    assert long.rpartition("Exercise 2")[2] == short.rpartition("Exercise 3")[2], "the question is whole"
    kind = KINDS["induction"]
    long = CompletionFormat(lambda text: range(STYLE.proposal_tokens + 1)).propose(kind, [kind.seed()])
    assert "\n\nExercise 2\n```python\ndef f(a):\n    return a\n```\n```input\n" in long and "Exercise 3" not in long


@ALL
async def test_worked_examples_are_right(kind: TaskKind):
    """Every one is accepted by the validation, its stated outputs are what it returns, and its answer is right."""
    async with SandboxPool(ExecutorConfig(workers=2, wall_s=30.0)) as pool:
        for count in (NUM_INPUTS, 10):
            bounds = {"source_bytes": 2000, "induction_inputs": count, "repeats": 2}
            for example in kind.examples(count):
                proposal = Proposal(id=example.id, sections=kind.proposal(example), references=[example], **bounds)
                task = await kind.validate(proposal, pool.execute)
                assert isinstance(task, Task), f"{example.program}: {task}"
                assert replace(task, parents=()) == example
                assert await kind.grade(task, kind.solution(example), pool.execute) is Verdict.RIGHT


@ALL
def test_a_worked_example_is_no_task_of_any_kind_whatever_its_names_and_constants(kind: TaskKind):
    examples = [example for each in KINDS.values() for example in each.examples(NUM_INPUTS)]
    keys = {key: example.id for example in examples for key in held_out_keys(example.program)}
    buffer = TaskBuffer(list(KINDS), examples=keys)
    for example in kind.examples(NUM_INPUTS):
        changed = example.program.replace("2", "7").replace("low", "first").replace("text", "s").replace("word", "w")
        for other in KINDS.values():
            task = other.make_task("copy", changed, example.inputs, example.outputs, message="new")
            assert buffer.reject_reason(task) is RejectReason.DUPLICATE and buffer.twin(task).startswith("example-")
    assert buffer.reject_reason(KINDS["deduction"].seed()) is None


def spelled(word: str, text: str) -> st.SearchStrategy[str]:
    """One block in the spellings of language models."""
    before = st.sampled_from(["", "\n", "The answer is ", "So: ", "1. "])
    ending = st.sampled_from(["\n```", "\n```\n", "\n``` ", "\n\n```\n", "```"])
    after_word = st.sampled_from(["", " ", "\t"])
    return st.builds(lambda a, b, c: f"{a}```{word}{b}\n{text}{c}", before, after_word, ending)


@given(st.data(), st.sampled_from(["\n", "\n\n", "\nand then\n"]))
@settings(max_examples=300, deadline=None)
def test_blocks_are_read_in_every_spelling(data: st.DataObject, between: str):
    program = data.draw(st.sampled_from(["def f(a):\n    return a + '```'", "def f(a):\n\n    return '''\nx\n'''"]))
    text = data.draw(spelled("python", program)) + between + data.draw(spelled("input", "'x', [1]"))
    found = read_sections(text, ("program", "input"))
    assert [(each.label, each.text.rstrip("\n")) for each in found] == [("program", program), ("input", "'x', [1]")]


def test_a_block_may_begin_where_another_one_ends_and_what_is_no_complete_labelled_block_is_none():
    text = "```python\ndef f(a):\n    return a\n``` ```input\n1\n``` ```output\n1\n```"
    found = read_sections(text, ("program", "input", "output"))
    assert found == (Section("program", "def f(a):\n    return a"), Section("input", "1"), Section("output", "1"))
    for text in ("```python\nx = 1", "no blocks", "`python`", "```text\n3\n```", "```\n3\n```", "~~~output\n3"):
        assert read_sections(text, ("program", "input", "output")) is None, text
