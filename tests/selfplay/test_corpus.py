"""The user's own code as what proposals are about: how it is read, shown, given, played and repeated on resume."""

import json
import random
import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from azr.config import Config, ExecutorConfig, RolloutConfig, SelfPlayConfig
from azr.errors import UserError
from azr.executor.pool import SandboxPool
from azr.prompts.codec import PromptCodec
from azr.records import Task
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.corpus import read_corpus
from azr.selfplay.journal import Journal, write_journal
from azr.selfplay.play import SelfPlayStep
from azr.tasks.normalize import held_out_keys, is_program, parse
from azr.tasks.prompts import ChatFormat, CompletionFormat
from azr.tasks.registry import KINDS
from tests.conftest import byte_tokenizer
from tests.runs import factory
from tests.selfplay.test_hostile_texts import HOSTILE, PROGRAMS
from tests.tables import programs

ALONE = """
def double(numbers: list[int]) -> list[int]:
    '''Twice each of them.'''
    return [2 * number for number in numbers]
"""
TASK = "def f(numbers):\n    return [2 * number for number in numbers]"
KINDS_PLAYED = ("deduction", "abduction", "induction")


@pytest.fixture(scope="module")
def codec() -> PromptCodec:
    tokenizer = byte_tokenizer()
    return PromptCodec(tokenizer, CompletionFormat(tokenizer.encode), template="{{ messages[0].content }}")


@pytest.fixture
def read(tmp_path, codec):
    def from_text(text: str, held_out=()) -> tuple[list[Task], list[str]]:
        (tmp_path / "code" / "inner").mkdir(parents=True, exist_ok=True)
        (tmp_path / "code" / "inner" / "one.py").write_text(text)
        return read_corpus(tmp_path / "code", codec, held_out)

    return from_text


FILES = programs(Path(__file__).with_name("corpus.txt"), "file")


@pytest.mark.parametrize("name", FILES)
def test_a_function_comes_with_what_it_needs_or_says_why_it_is_not_played(name, read):
    source, _, expected = FILES[name].partition("\n>>>\n")
    passages, (_, *notes) = read(source + "\ndef passed(x): pass\n")  # one to show, whatever becomes of the others
    reasons = [reason for note in notes for reason in re.findall(r"[:,] \d+ ([^,]+)", note)]
    reasons.remove("return nothing")
    found = [each.program for each in passages if each.program] + [f"# {reason}" for reason in reasons]
    assert found == (expected.split("\n---\n") if "show(x)" not in source else [])


def test_passages_keep_their_source_and_say_where_they_are_from(read, tmp_path, codec):
    (passage,), notes = read(ALONE)
    assert passage.id == "corpus:inner/one.py:double" and passage.program == TASK
    assert passage.message == ALONE.strip()
    assert notes == ["corpus: 1 functions, 1 of them for proposers to see, 1 to be played"]
    rows = tmp_path / "rows.jsonl"
    old = ALONE.replace("\n", "\r\n").replace("Twice", "\x0cTwice")  # a form feed ends no line for Python
    rows.write_text("\n".join(json.dumps({"text": text, "license": "MIT"}) for text in (old, ALONE, "print(")))
    (again,), notes = read_corpus(rows, codec, ())
    assert again.id == "corpus:rows.jsonl-1:double"
    assert again.message == ALONE.strip().replace("Twice", "\x0cTwice")
    assert notes[1:] == [
        "corpus, left out: 1 equal to others up to names and constants, 1 in files that Python cannot read"
    ]


def test_what_is_held_out_or_holds_control_tokens_is_never_shown(read, codec):
    kept = ALONE + "\ndef half(number):\n    return number / 2\n"
    assert [each.id[-4:] for each in read(kept, held_out_keys(TASK))[0]] == ["half"]
    (token, *_) = byte_tokenizer().all_special_tokens
    with pytest.raises(UserError, match=r"nothing to show .1 with control tokens of the model.: give a folder"):
        read(f"def f(text):\n    return text + {token!r}\n")


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("nowhere", None, "does not exist: give a folder with .py files"),
        ("empty.py", "x = 1", r"nothing to show .there is no function in it.: give a folder"),
        ("rows.jsonl", '{"code": "x"}', "line 1 has no text: each line must be an object"),
        ("rows.jsonl", "[1]", "line 1: it is not a JSON object; each line"),
        ("broken.py", "def f(:", r"nothing to show .1 in files that Python cannot read.: give"),
    ],
)
def test_a_corpus_that_cannot_be_used_is_refused_in_a_sentence(name, text, sentence, tmp_path, codec):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=sentence):
        read_corpus(tmp_path / name, codec, ())


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_no_text_of_a_corpus_raises_and_what_is_played_is_a_program(number, read):
    bodies = [
        PROGRAMS[number].replace("{{", "{").replace("}}", "}").replace("{}", text) for text in HOSTILE[number % 3 :: 3]
    ]
    for body in bodies:
        passages, _ = read(f"def spare(x):\n    return x\n\n{body}\n") if parse(body) else read(ALONE)
        assert all(is_program(each.program) for each in passages if each.program)


def passage(message: str = "") -> Task:
    return Task(
        id="corpus:a.py:double", kind="corpus", program=TASK, inputs=(), outputs=(), fingerprint="d", message=message
    )


def test_a_given_program_stands_before_the_answer_and_a_shown_one_above_the_examples(codec):
    deduction, seed = KINDS["deduction"], KINDS["deduction"].seed()
    given = codec.decode(codec.proposal_ids(deduction, [passage(), seed]))  # one example: bytes are many tokens
    assert given.endswith(f"Exercise 2\n```python\n{TASK}\n```\n```input\n")
    shown = codec.decode(codec.proposal_ids(deduction, [passage(ALONE), seed]))
    heading = f"made from an idea of this code:\n```python\n{ALONE}\n```\n\nExercise 1\n"
    assert heading in shown and shown.endswith("Exercise 4\n```python\n")
    about = codec.decode(codec.proposal_ids(KINDS["induction"], [passage()]))
    assert about.endswith(f"```python\n{TASK}\n```\n```input\n")


def test_chat_prompts_ask_for_an_input_alone_or_for_an_idea():
    style = ChatFormat(lambda message: message)
    for name in ("deduction", "abduction", "error"):
        given = style.propose(KINDS[name], [passage()])
        assert given.startswith("Choose one input for the Python program below.") and "Invent" not in given
        assert f"The program:\n```python\n{TASK}\n```" in given and "holds one ```input block with the input" in given
        example = given.partition("whole response could be:")[2].partition("The program:")[0]
        assert example.count("```input") == 1 and "```python" not in example
        shown = style.propose(KINDS[name], [passage(ALONE), KINDS[name].seed()])
        assert shown.startswith("Invent") and f"copy nothing of it:\n```python\n{ALONE}\n```\n\nReference 1:" in shown


def test_passages_are_drawn_by_share_and_half_of_them_given():
    only_shown = replace(passage(ALONE), id="corpus:a.py:method", program="")
    buffer = TaskBuffer(KINDS_PLAYED, corpus=[passage(ALONE), only_shown])
    draw = lambda kind, share: [buffer.passage(kind, share, rng) for _ in range(400)]  # noqa: E731
    rng = random.Random(0)
    assert not any(draw("deduction", 0.0)) and all(draw("induction", 1.0))
    assert {(each.program, each.message) for each in draw("induction", 1.0)} == {(TASK, "")}
    found = Counter(each and (each.id[-6:], not each.message) for each in draw("deduction", 0.5))
    assert 150 < found[None] < 250 and set(found) == {None, ("double", True), ("double", False), ("method", False)}


CONFIG = Config(
    selfplay=SelfPlayConfig(
        proposer_prompts=3, solver_prompts=0, references=1, group_size=2, train_on_estimates=True,
        induction_inputs=2, corpus="code", corpus_share=1.0,
    ),
    rollout=RolloutConfig(max_prompt_tokens=4000, max_response_tokens=200),
    executor=ExecutorConfig(workers=2, wall_s=5.0),
)  # fmt: skip


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", KINDS_PLAYED)
async def test_each_input_of_a_given_program_makes_one_task_and_a_resume_repeats_it(kind, codec, tmp_path, monkeypatch):
    monkeypatch.setattr("azr.selfplay.play.draw_references", None)  # the prompt of one that is given shows none
    inputs = iter(["[3, 4]", "[3, 4]", "[6]"])

    async def generate(prompt_ids, *, n, **_):
        text = "no answer"
        if codec.decode(prompt_ids).startswith("Python exercises. Each"):
            text = f"{next(inputs)}\n```\n"
            text += "```input\n[5]\n```\n```message\nIt grows.\n```\n" if kind == "induction" else ""
        return [factory.completion(codec.encode_text(text), tuple(prompt_ids))] * n

    journal, buffer = Journal(generate, 1.0), TaskBuffer([kind], corpus=[passage()])
    config = replace(CONFIG, selfplay=replace(CONFIG.selfplay, kinds=(kind,)))
    async with SandboxPool(CONFIG.executor) as pool:
        step = SelfPlayStep(
            config=config, step=1, name="000001", buffer=buffer, codec=codec, execute=pool.execute, journal=journal,
            phase=lambda name: nullcontext(),
        )  # fmt: skip
        result = await step.play()
    assert [task.inputs[0] for task in result.stored] == ["[3, 4]", "[6]"]
    assert all(task.program == TASK and task.parents == ("corpus:a.py:double",) for task in result.stored)
    proposals = [each for each in result.samples if each.role == "proposer"]
    assert Counter(each.verdict for each in proposals) == {"valid": 2, "duplicate": 1}
    assert not any(each.judgement.parts["copied"] for each in proposals)
    # What a prompt showed travels with the work, whatever the corpus holds by then.
    write_journal(tmp_path, journal.copy(1))
    resumed = Journal(generate, 1.0)
    resumed.read(tmp_path, 1)
    shown = [item.references for item in resumed._items.values() if item.begins == "propose"]
    assert shown == [(passage(),)] * 3
