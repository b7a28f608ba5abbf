"""The committed exam: what it holds, that no training document holds any of it, and that it can be made again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from azr.errors import UserError
from azr.evaluation.question import Question
from azr.evaluation.suites import hash_of
from azr.evaluation.suites.exam import exam_questions
from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.records import Task
from azr.tasks.base import Verdict
from azr.tasks.normalize import fingerprint, normalize
from azr.tasks.prompts import CompactFormat
from azr.tasks.registry import KINDS
from tests.evaluation.grammar import can_be_emitted, deepest_nesting
from tools import exam
from tools.pretrain.corpus import CORPORA, CorpusConfig, make_document
from tools.pretrain.generator import is_held_out, random_sample, random_template

DATA = Path(__file__).parent.parent.parent / "data"
PLAN = exam.PLANS["exam"]
DOCUMENTS = 20_000


@pytest.fixture(scope="module")
def benchmark() -> list[Question]:
    return exam_questions(DATA / "exam")


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


def programs(benchmark: list[Question]) -> Iterator[str]:
    return (each.gold.program for each in benchmark)


def test_there_is_enough_of_every_kind_and_difficulty(benchmark):
    count = Counter((each.gold.kind, each.group.partition("/")[2]) for each in benchmark)
    assert Counter(each.gold.kind for each in benchmark) == PLAN.tasks
    assert PLAN.tasks["deduction"] >= 300 and PLAN.tasks["abduction"] >= 300 and PLAN.tasks["induction"] >= 150
    assert all(
        count[kind, difficulty] >= 0.2 * wanted
        for kind, wanted in PLAN.tasks.items()
        for difficulty in PLAN.difficulties
    )


def test_no_two_tasks_of_a_kind_are_about_the_same_program(benchmark):
    pairs = [(each.gold.kind, each.gold.fingerprint) for each in benchmark]
    assert len(set(pairs)) == len(pairs)
    assert all(each.gold.fingerprint == fingerprint(each.gold.program) for each in benchmark)


def test_every_program_is_one_that_pretraining_holds_out(benchmark):
    assert all(map(is_held_out, programs(benchmark)))


def test_the_corpus_holds_neither_a_program_nor_a_pair_of_the_exam(benchmark, trained_on):
    assert len(trained_on) > DOCUMENTS
    assert any(given for _, given in trained_on)
    known = {normalize(program) for program in {program for program, _ in trained_on}}
    assert len(known) > DOCUMENTS / 10
    assert not known & {normalize(program) for program in programs(benchmark)}
    assert not set(trained_on) & {(each.gold.program, given) for each in benchmark for given in each.gold.inputs}


def test_seeds_are_not_in_the_exam(benchmark):
    seeds = {fingerprint(kind.seed().program) for kind in KINDS.values()}
    assert not seeds & {each.gold.fingerprint for each in benchmark}


def test_the_grammar_accepts_all_that_the_generator_emits():
    rng = random.Random(5)
    assert all(can_be_emitted(random_template(rng).source) for _ in range(5000))
    assert all(can_be_emitted(random_sample(rng, 1, held_out=True).program) for _ in range(100))


def test_the_generator_can_emit_no_novel_program_and_all_others(benchmark):
    for each in benchmark:
        assert can_be_emitted(each.gold.program) == (each.group.partition("/")[2] != "novel"), each.gold.program


def test_the_novel_tasks_have_every_new_composition(benchmark):
    novel = [each.gold.program for each in benchmark if each.group.partition("/")[2] == "novel"]
    assert sum(deepest_nesting(program) > 1 for program in novel) > len(novel) / 5
    assert sum("\n        a = " in program for program in novel) > len(novel) / 15
    assert sum(program.count("\n") == 1 for program in novel) > len(novel) / 2


async def test_every_task_accepts_its_own_answer_and_can_be_asked(benchmark):
    for each in benchmark:
        kind, outputs = KINDS[each.gold.kind], dict(zip(each.gold.inputs, each.gold.outputs, strict=True))

        async def run(request: ExecutionRequest, outputs=outputs) -> ExecutionResult:
            calls = tuple(CallResult(status=CallStatus.OK, value=outputs[given]) for given in request.inputs)
            return ExecutionResult(outputs=calls, deterministic=True)

        assert await kind.grade(each.gold, kind.solution(each.gold), run) is Verdict.RIGHT
        assert kind.solver_view(each.gold)


def test_few_programs_that_the_generator_draws_are_in_the_exam(benchmark):
    """Self-play starts from such programs, and a run has to refuse each of them."""
    held, rng = set(programs(benchmark)), random.Random(6)
    hits = sum(random_template(rng).source in held for _ in range(50_000))
    assert hits / 50_000 < 0.005


@pytest.mark.parametrize(
    "name", ["exam", *(pytest.param(name, marks=pytest.mark.long) for name in exam.PLANS if name != "exam")]
)
async def test_an_exam_is_made_again_byte_for_byte(tmp_path, name):
    await exam.make_files(exam.PLANS[name], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{kind}.jsonl" for kind in exam.PLANS[name].tasks}
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (DATA / name / path.name).read_bytes()


def test_the_sealed_exam_is_the_one_that_was_sealed_and_has_no_program_of_the_other():
    asked, sealed = (exam_questions(DATA / name) for name in ("exam_worked", "exam_worked/sealed"))
    assert hash_of(DATA / "exam_worked" / "sealed" / "deduction.jsonl").startswith("80c8224efbc84dca")
    assert len(asked) == len(sealed) == 480
    groups = Counter(each.group.partition("/")[2] for each in sealed)
    assert groups == dict.fromkeys(("two", "three", "four", "five", "six"), 96)
    assert not set(programs(asked)) & set(programs(sealed))
    assert all(map(is_held_out, (*programs(asked), *programs(sealed))))


def test_the_corpus_of_worked_deductions_holds_no_program_of_their_exams():
    rng, held = (
        random.Random(2),
        {*programs(exam_questions(DATA / "exam_worked")), *programs(exam_questions(DATA / "exam_worked" / "sealed"))},
    )
    seen: set[str] = set()
    for _ in range(5000):
        document = make_document(rng, CORPORA["worked"])
        seen |= {text.split("<|")[0] for text in (document.prompt + document.answer).split("<|program|>")[1:]}
    assert len(seen) > 1000 and all(program.startswith("def f(") for program in seen) and not seen & held


def test_what_is_no_exam_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"There is no exam in .*: give the folder"):
        exam_questions(tmp_path)
    (tmp_path / "deduction.jsonl").write_text('{"id": "a", "difficulty": "short"}\n')
    with pytest.raises(UserError, match=r"jsonl, row 1: this is no row of the suite \(it has no field 'program'\)"):
        exam_questions(tmp_path)


def test_what_is_written_is_read_back(tmp_path):
    task = Task(id="1", kind="induction", program="def f(a):\n    return a", inputs=("1", "'é'"), outputs=("1", "'é'"),
                fingerprint="", message="same")  # fmt: skip
    exam.write_exam(tmp_path, [("short", task)])
    (each,) = exam_questions(tmp_path)
    assert each.group == "induction/short" and each.gold.fingerprint == fingerprint(task.program)
    assert (each.gold.inputs, each.gold.outputs, each.gold.message) == (task.inputs, task.outputs, "same")
