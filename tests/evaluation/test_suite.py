"""The committed exam: what it holds, that no training document holds any of it, and that it can be made anew."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from azr.evaluation.suite import ExamTask, program_fingerprint, read, write
from azr.records import CallResult, CallStatus, ExecutionRequest, ExecutionResult, Task
from azr.tasks.base import Verdict
from azr.tasks.normalize import fingerprint, normalize
from azr.tasks.prompts import CompactFormat
from azr.tasks.registry import KINDS
from tests.evaluation.grammar import can_be_emitted, deepest_nesting
from tools import exam as maker
from tools.make_exam import main
from tools.pretrain.corpus import CorpusConfig, make_document
from tools.pretrain.generator import is_held_out, sample, sketch

FOLDER = Path(__file__).parent.parent.parent / "data" / "exam"
DOCUMENTS = 20_000


@pytest.fixture(scope="module")
def paper() -> tuple[ExamTask, ...]:
    return read(FOLDER)


@pytest.fixture(scope="module")
def trained_on() -> list[tuple[str, str]]:
    """Programs with inputs, of a pretraining corpus that gives every kind and role its share."""
    shares = dict.fromkeys(KINDS, 1.0)
    config, rng = CorpusConfig(solve=shares, propose=shares), random.Random(1)
    pairs: list[tuple[str, str]] = []
    for _ in range(DOCUMENTS):
        document = make_document(rng, config)
        pairs += shown(document.prompt.removesuffix(CompactFormat.answer) + document.answer)
    return pairs


def shown(text: str) -> list[tuple[str, str]]:
    """Each program of a document with each of its inputs."""
    bare = text.removeprefix("<|solve|>").removeprefix("<|propose|>")
    for kind in KINDS:
        bare = bare.removeprefix(f"<|{kind}|>")
    sections = CompactFormat().parse(bare)
    assert sections, text
    programs = [s.text for s in sections if s.label == "program"]
    inputs = [s.text for s in sections if s.label == "input"]
    return [(program, given) for program in programs for given in inputs or [""]]


def programs(paper: tuple[ExamTask, ...]) -> Iterator[str]:
    return (question.task.program for question in paper)


def test_there_is_enough_of_every_kind_and_band(paper):
    count = Counter((question.task.kind, question.band) for question in paper)
    assert Counter(question.task.kind for question in paper) == maker.TASKS
    assert maker.TASKS["deduction"] >= 300 and maker.TASKS["abduction"] >= 300 and maker.TASKS["induction"] >= 150
    assert all(count[kind, band] >= 0.2 * wanted for kind, wanted in maker.TASKS.items() for band in maker.BANDS)


def test_no_two_questions_of_a_kind_are_about_the_same_program(paper):
    pairs = [(question.task.kind, question.task.fingerprint) for question in paper]
    assert len(set(pairs)) == len(pairs)
    assert all(question.task.fingerprint == program_fingerprint(question.task) for question in paper)


def test_every_program_is_one_that_pretraining_holds_out(paper):
    assert all(map(is_held_out, programs(paper)))


def test_the_corpus_holds_neither_a_program_nor_a_pair_of_the_exam(paper, trained_on):
    assert len(trained_on) > DOCUMENTS
    assert any(given for _, given in trained_on)
    known = {normalize(program) for program in {program for program, _ in trained_on}}
    assert len(known) > DOCUMENTS / 10
    assert not known & {normalize(program) for program in programs(paper)}
    assert not set(trained_on) & {(q.task.program, given) for q in paper for given in q.task.inputs}


def test_seeds_are_not_in_the_exam(paper):
    seeds = {fingerprint(kind.seed().program) for kind in KINDS.values()}
    assert not seeds & {question.task.fingerprint for question in paper}


def test_the_grammar_accepts_all_that_the_generator_emits():
    rng = random.Random(5)
    assert all(can_be_emitted(sketch(rng).source) for _ in range(5000))
    assert all(can_be_emitted(sample(rng, 1, held_out=True).program) for _ in range(100))


def test_the_generator_can_emit_no_program_of_the_top_band_and_all_others(paper):
    for question in paper:
        assert can_be_emitted(question.task.program) == (question.band != "novel"), question.task.program


def test_the_top_band_has_every_new_composition(paper):
    top = [question.task.program for question in paper if question.band == "novel"]
    assert sum(deepest_nesting(program) > 1 for program in top) > len(top) / 5
    assert sum("\n        a = " in program for program in top) > len(top) / 15
    assert sum(program.count("\n") == 1 for program in top) > len(top) / 2


async def test_every_question_accepts_its_own_answer_and_can_be_asked(paper):
    for question in paper:
        kind, outputs = KINDS[question.task.kind], dict(zip(question.task.inputs, question.task.outputs, strict=True))

        async def run(request: ExecutionRequest, outputs=outputs) -> ExecutionResult:
            calls = tuple(CallResult(status=CallStatus.OK, value=outputs[given]) for given in request.inputs)
            return ExecutionResult(outputs=calls, deterministic=True)

        assert await kind.grade(question.task, kind.solution(question.task), run) is Verdict.RIGHT
        assert kind.solver_view(question.task)


def test_few_programs_that_the_generator_draws_are_in_the_exam(paper):
    """Self-play starts from such programs, and a run has to refuse each of them."""
    held, rng = set(programs(paper)), random.Random(6)
    hits = sum(sketch(rng).source in held for _ in range(50_000))
    assert hits / 50_000 < 0.005


async def test_the_exam_is_made_anew_byte_for_byte(tmp_path):
    await main(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{kind}.jsonl" for kind in maker.TASKS}
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (FOLDER / path.name).read_bytes()


def test_what_is_no_exam_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(ValueError, match=r"There is no exam in .*: give the folder"):
        read(tmp_path)
    (tmp_path / "deduction.jsonl").write_text('{"id": "a", "band": "short"}\n')
    with pytest.raises(
        ValueError, match=r"deduction\.jsonl, line 1 is no question of an exam \(KeyError\('program'\)\)"
    ):
        read(tmp_path)


def test_what_is_written_is_read_back(tmp_path):
    task = Task(id="1", kind="induction", program="def f(a):\n    return a", inputs=("1", "'é'"), outputs=("1", "'é'"),
                fingerprint="", message="same")  # fmt: skip
    write(tmp_path, [ExamTask("short", task)])
    (question,) = read(tmp_path)
    assert question.band == "short" and question.task.fingerprint == program_fingerprint(task)
    assert (question.task.inputs, question.task.outputs, question.task.message) == (task.inputs, task.outputs, "same")
