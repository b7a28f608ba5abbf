"""Answers survive a kill at any byte, and nobody's file is overwritten."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from azr.errors import UserError
from azr.evaluation.answer_file import AnswerFile, read_answers, without_texts
from azr.records import Sample
from azr.runs.sample_file import clean
from azr.tasks.base import Verdict
from tests.evaluation.written import answers_to, protocol
from tests.runs.factory import largest_file

PROTOCOL = protocol(["exam"], stops=("</answer>",))
QUESTIONS = [answers_to("exam", str(i), "deduction/short", Verdict.RIGHT, [Verdict.WRONG]) for i in range(3)]


def written(path: Path) -> list[int]:
    """Bytes of the file after its head and after each question."""
    ends = []
    with AnswerFile(path, PROTOCOL) as file:
        ends.append(path.stat().st_size)
        for answers in QUESTIONS:
            file.add(answers)
            ends.append(path.stat().st_size)
    return ends


def bare(questions: list[list[Sample]]) -> list[Sample]:
    """All answers without their texts."""
    found = [without_texts(answer) for answers in questions for answer in answers]
    assert not any(each.prompt or each.response or each.judgement.answer for each in found)
    return found


def test_what_is_written_is_read_back_and_any_gzip_reader_reads_it(tmp_path: Path):
    written(tmp_path / "a.gz")
    head, answers = read_answers(tmp_path / "a.gz")
    # Half a surrogate pair is read back as its escape.
    given = [replace(each, response=clean(each.response)) for question in QUESTIONS for each in question]
    assert head == json.loads(json.dumps(PROTOCOL)) and answers == given
    lines = gzip.decompress((tmp_path / "a.gz").read_bytes()).decode("utf-8", "surrogatepass").rstrip("\n").split("\n")
    assert len(lines) == 1 + 3 * 2


def test_a_kill_at_any_byte_loses_no_question_that_was_written(tmp_path: Path):
    ends = written(tmp_path / "whole.gz")
    data = (tmp_path / "whole.gz").read_bytes()
    path = tmp_path / "cut.gz"
    for size in [*range(0, len(data), 7), *ends, *(end - 1 for end in ends)]:
        path.write_bytes(data[:size])
        if size in ends:
            assert len(read_answers(path)[1]) == 2 * ends.index(size) and path.read_bytes() == data[:size]
        with AnswerFile(path, PROTOCOL) as file:
            kept = sum(end <= size for end in ends[1:])
            assert file.answers == bare(QUESTIONS[:kept])
            assert len(file.questions) == kept
            for answers in QUESTIONS[kept:]:
                file.add(answers)
        assert path.read_bytes() == data


def test_an_evaluation_by_another_protocol_is_not_mixed_in(tmp_path: Path):
    written(tmp_path / "a.gz")
    data = (tmp_path / "a.gz").read_bytes()
    with pytest.raises(UserError, match=r"another samples \(8, now 4\): use the same options"):
        AnswerFile(tmp_path / "a.gz", PROTOCOL | {"samples": 4})
    with pytest.raises(UserError, match=r"another seed \(None, now 3\)"):
        AnswerFile(tmp_path / "a.gz", PROTOCOL | {"seed": 3})
    assert (tmp_path / "a.gz").read_bytes() == data


@pytest.mark.parametrize("data", [
    b"x" * 100_000, *(gzip.compress(text, mtime=0) for text in (b'{"a": 1}\n', b"no JSON\n", b"[]\n" * 30_000)),
])  # fmt: skip
def test_somebody_elses_file_stays_as_it_is(tmp_path: Path, data: bytes):
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(UserError, match="holds no answers of an evaluation"):
        AnswerFile(tmp_path / "a.gz", PROTOCOL)
    assert (tmp_path / "a.gz").read_bytes() == data


def test_large_answers_are_read_in_pieces(tmp_path: Path):
    (long,) = answers_to("exam", "1", "all", Verdict.RIGHT, [])
    noise = "".join(chr(33 + (i * i * 7919) % 90) for i in range(300_000))
    with AnswerFile(tmp_path / "a.gz", PROTOCOL) as file:
        file.add([replace(long, response=noise)])
    assert read_answers(tmp_path / "a.gz")[1][0].response == noise


def test_two_processes_do_not_write_into_one_file(tmp_path: Path):
    with AnswerFile(tmp_path / "a.gz", PROTOCOL) as file:
        file.add(QUESTIONS[0])
        with pytest.raises(UserError, match=r"Another azr eval writes into .*: wait, or"):
            AnswerFile(tmp_path / "a.gz", PROTOCOL)
        file.add(QUESTIONS[1])
    with AnswerFile(tmp_path / "a.gz", PROTOCOL) as file:
        assert file.answers == bare(QUESTIONS[:2])


def test_what_follows_damage_is_not_cut_off_unasked(tmp_path: Path):
    ends = written(tmp_path / "a.gz")
    data = bytearray((tmp_path / "a.gz").read_bytes())
    data[ends[1] + 20] ^= 0xFF
    (tmp_path / "a.gz").write_bytes(data)
    with pytest.raises(UserError, match=f"damaged after byte {ends[1]}: .* truncate -s {ends[1]}"):
        AnswerFile(tmp_path / "a.gz", PROTOCOL)
    assert (tmp_path / "a.gz").read_bytes() == data


def test_a_full_disk_leaves_whole_answers(tmp_path: Path):
    ends = written(tmp_path / "whole.gz")
    with AnswerFile(tmp_path / "a.gz", PROTOCOL) as file:
        file.add(QUESTIONS[0])
        with (
            largest_file(ends[2] - 3),
            pytest.raises(UserError, match=r"a.gz cannot be written \(File too large\): make room"),
        ):
            file.add(QUESTIONS[1])
        assert (tmp_path / "a.gz").stat().st_size == ends[1] and file.answers == bare(QUESTIONS[:1])
        for answers in QUESTIONS[1:]:
            file.add(answers)
    assert (tmp_path / "a.gz").read_bytes() == (tmp_path / "whole.gz").read_bytes()
