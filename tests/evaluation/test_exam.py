"""The committed exams: what they hold, that no training document holds any of it, and that they are made again."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from azr.errors import UserError
from azr.evaluation.suites import hash_of
from azr.evaluation.suites.exam import exam_questions
from azr.graders.question import Question
from azr.tasks.normalize import fingerprint, normalize
from azr.tasks.registry import KINDS
from tools import exam
from tools.pretrain.corpus import CORPORA, CorpusConfig, make_document
from tools.pretrain.generator import is_held_out

DATA = Path(__file__).parent.parent.parent / "data"


@pytest.fixture(scope="module")
def benchmark() -> list[Question]:
    return exam_questions(DATA / "exam")


def programs(benchmark: list[Question]) -> Iterator[str]:
    return (each.gold.program for each in benchmark)


@pytest.mark.parametrize(("corpus", "documents", "names"), [
    (CorpusConfig(solve=dict.fromkeys(KINDS, 1.0), propose=dict.fromkeys(KINDS, 1.0)), 20_000, ("exam",)),
    (CORPORA["worked"], 5_000, ("exam_worked", "exam_worked/sealed")),
])  # fmt: skip
def test_pretraining_holds_out_every_program_of_an_exam(corpus, documents, names):
    rng, held = random.Random(2), {program for name in names for program in programs(exam_questions(DATA / name))}
    assert all(map(is_held_out, held))
    seen: set[str] = set()
    for _ in range(documents):
        document = make_document(rng, corpus)
        seen |= {text.split("<|")[0] for text in (document.prompt + document.answer).split("<|program|>")[1:]}
    assert len(seen) > documents / 10 and all(program.startswith("def f(") for program in seen)
    assert not set(map(normalize, seen)) & set(map(normalize, held))


@pytest.mark.parametrize(
    "name", ["exam", *(pytest.param(name, marks=pytest.mark.long) for name in exam.PLANS if name != "exam")]
)
async def test_an_exam_is_made_again_byte_for_byte(tmp_path, name):
    await exam.make_files(exam.PLANS[name], tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{kind}.jsonl" for kind in exam.PLANS[name].tasks}
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (DATA / name / path.name).read_bytes()


def test_no_two_tasks_are_about_the_same_program_and_the_sealed_exam_is_the_one_that_was_sealed(benchmark):
    pairs = [(each.gold.kind, each.gold.fingerprint) for each in benchmark]
    assert len(set(pairs)) == len(pairs)
    assert all(each.gold.fingerprint == fingerprint(each.gold.program) for each in benchmark)
    assert not {fingerprint(kind.seed().program) for kind in KINDS.values()} & {seen for _, seen in pairs}
    asked, sealed = (exam_questions(DATA / name) for name in ("exam_worked", "exam_worked/sealed"))
    assert hash_of(DATA / "exam_worked" / "sealed" / "deduction.jsonl").startswith("80c8224efbc84dca")
    assert len(asked) == len(sealed) == 480
    groups = Counter(each.group.partition("/")[2] for each in sealed)
    assert groups == dict.fromkeys(("two", "three", "four", "five", "six"), 96)
    assert not set(programs(asked)) & set(programs(sealed))


def test_what_is_no_exam_is_refused_in_one_sentence(tmp_path):
    (tmp_path / "deduction.jsonl").write_text('{"id": "a", "difficulty": "short"}\n')
    with pytest.raises(UserError, match=r"jsonl, row 1: this is not a row of the suite \(it has no field 'program'\)"):
        exam_questions(tmp_path)
