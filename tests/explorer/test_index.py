"""Index and pages of evaluations show what the files hold, also of runs that grow, go back, or are damaged."""

import gzip
import os
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from azr.errors import UserError
from azr.explorer import overview, queries, record_files
from azr.explorer.evaluations import read_side
from azr.explorer.index import MAX_KEPT, NAME, RunIndex
from azr.explorer.record_files import Problem
from azr.records import Judgement
from azr.runs.run_dir import RunOwner
from azr.tasks.base import Verdict
from tests.evaluation.written import answers_to, write_evaluation
from tests.explorer.made_runs import HOSTILE, MadeRun, answer, proposal, small_run, task
from tests.mistakes import mistake


def opened(run: MadeRun) -> RunIndex:
    index = RunIndex(run.path)
    assert index.refresh()
    return index


def ids(index: RunIndex, **wanted: object) -> list[str]:
    return [each["id"] for each in queries.find_tasks(index, **wanted)[0]]


def count(index: RunIndex, **wanted: object) -> int:
    return queries.find_samples(index, **wanted)[1]


@pytest.fixture
def run(tmp_path: Path) -> MadeRun:
    return small_run(tmp_path / "run")


def test_filters_and_texts_give_what_the_files_hold(run: MadeRun) -> None:
    index = opened(run)
    assert count(index) == 16 and count(index, step=2) == 4
    assert count(index, verdict="wrong", step=1) == 5 and count(index, used="estimate") == 4
    (row,), _ = queries.find_samples(index, verdict="not_allowed")
    refused = row.sample
    assert refused.judgement is not None and refused.judgement.detail == "line 3: imports random"
    assert (refused.advantage, refused.mismatch, refused.weight_versions) == (-0.75, 0.01, [(3, 10)])
    assert (refused.prompt_tokens, refused.response_tokens) == (len(f"the prompt of {refused.problem_id}"), 10)
    assert count(index, verdict="refused") == 2
    assert ids(index, step_from=1, step_to=1, order="hardest") == ["000001-deduction-0001", "000001-deduction-0000"]
    assert ids(index, kind="induction") == ["seed-induction"]
    assert ids(index, rate_from=0.5, order="easiest")[0] == "000001-deduction-0000"
    assert ids(index, nodes_from=12) == ["000002-deduction-0000"]
    assert queries.kinds(index) == ["deduction", "induction"]
    assert queries.verdicts(index, 1)["deduction", "solver"] == {"wrong": 5, "right": 3}
    assert queries.problems(index) == []
    index, evil, late = opened(run), ["000001-deduction-0001"], ["000002-deduction-0000"]
    assert ids(index, text="A * 2") == ids(index, text="0002-ded") == late
    assert ids(index, text="<script>") == ids(index, text='"') == evil
    assert not any(ids(index, text=text) for text in ("a_", "%", "\\\\", "\\'\""))
    run.step(3, [], [task("000003-sums-0000", kind="sums", payload={"numbers": [3, "é"]})])
    index = opened(run)
    assert ids(index, text='{"numbers": [3, "é"]}') == ["000003-sums-0000"]


def test_texts_of_a_record_are_read_from_its_place(run: MadeRun) -> None:
    index = opened(run)
    (row,), _ = queries.find_samples(index, role="proposer", problem_id="000001-deduction-0001")
    record = queries.read_texts(index, row)
    assert (record.prompt, record.response) == (HOSTILE, f"<think>{HOSTILE}</think>")
    assert queries.find_sample(index, row.sample.step, row.line) == row
    below, total = queries.children(index, "seed-deduction")
    assert total == 2 and below[0] == "000001-deduction-0000"
    run.step(1, [answer("other", text="x" * 5000)])
    with pytest.raises(Problem, match="has changed since it was indexed"):
        queries.read_texts(index, row)


def test_records_beyond_the_first_gzip_member_are_read_too(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    run.step(1, [answer(str(i), text=f"{i} " * 20_000) for i in range(30)])
    index = opened(run)
    rows, _ = queries.find_samples(index, step=1, limit=100)
    assert len({row.place.member for row in rows}) > 3
    assert all(queries.read_texts(index, row).response.startswith(f"{row.line} ") for row in rows)


def test_what_grows_is_read_once_and_half_a_line_when_it_is_whole(run: MadeRun) -> None:
    index = opened(run)
    changes = index.changes
    assert index.refresh() and index.changes == changes
    with (run.path / "tasks.jsonl").open("a") as file:
        file.write('{"id": "half", "kind": "ded')
    run.step(3, [proposal("000003-deduction-0000")], deduction__solver__accuracy=0.75)
    (run.path / "rollouts" / ".step_000004.jsonl.gz").write_bytes(b"a draft")
    assert index.refresh() and index.changes != changes
    assert count(index) == 17 and queries.steps(index) == [1, 2, 3] and len(queries.metrics(index)) == 3
    assert ids(index, text="half") == [] and queries.problems(index) == []


def test_a_resumed_run_takes_back_what_it_plays_again(run: MadeRun) -> None:
    index = opened(run)
    before = run.path / "tasks.jsonl"
    lines = before.read_bytes().splitlines(keepends=True)
    before.write_bytes(b"".join(lines[:-1]))
    run.rollouts(2).unlink()
    (run.path / "metrics.jsonl").write_bytes((run.path / "metrics.jsonl").read_bytes().splitlines(keepends=True)[0])
    index.refresh()
    assert queries.steps(index) == [1] and "000002-deduction-0000" not in ids(index)
    run.step(2, [proposal("again")], [task("again", step=2, parents=("seed-deduction",))])
    index.refresh()
    assert count(index, step=2) == 1 and ids(index, step_from=2) == ["again"]
    assert [each["step"] for each in queries.metrics(index)] == [1, 2]
    assert queries.children(index, "seed-deduction")[1] == 3


def test_damaged_files_are_shown_as_far_as_they_go_with_a_sentence(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    for step in (1, 2, 3, 4):
        texts = os.urandom(200_000).hex()
        run.step(step, [answer(str(i), text=texts[i * 40_000 : (i + 1) * 40_000]) for i in range(10)])
    cut, damaged, alien = run.rollouts(1), run.rollouts(2), run.rollouts(3)
    whole = cut.read_bytes()
    cut.write_bytes(whole[:-20_000])
    raw = bytearray(damaged.read_bytes())
    raw[-100] ^= 0xFF
    damaged.write_bytes(raw)
    alien.write_bytes(gzip.compress(b'{"step": 3}\nno json\n\xff\n' + gzip.decompress(alien.read_bytes())))
    run.rollouts(5).write_bytes(b"no gzip at all")
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('nonsense\n{"step": 9}\n[]\n')
    index = opened(run)
    assert 0 < count(index, step=1) < 10 and 0 < count(index, step=2) <= 10
    assert count(index, step=3) == count(index, step=4) == 10 and count(index, step=5) == 0
    said = dict(queries.problems(index))
    assert said["step_000001.jsonl.gz"] == "it is cut short: what comes before is shown"
    assert said["step_000002.jsonl.gz"].startswith("it is damaged")
    assert said["step_000003.jsonl.gz"].startswith("3 of its lines cannot be read, the first because it is not a ")
    assert said["step_000005.jsonl.gz"].startswith("it is damaged")
    assert said["metrics.jsonl"].startswith("2 of its lines cannot be read")
    assert "step_000004.jsonl.gz" not in said
    assert queries.metrics(index)[-1] == {"step": 9}
    cut.write_bytes(whole)
    index.refresh()
    assert count(index, step=1) == 10 and "step_000001.jsonl.gz" not in dict(queries.problems(index))


@pytest.mark.timeout(60)
def test_pipes_and_devices_in_a_run_are_named_and_not_waited_for(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    run.step(1, [answer("1")])
    os.mkfifo(run.rollouts(2))
    run.rollouts(3).symlink_to("/dev/zero")
    for name in ("metrics.jsonl", "tasks.jsonl", "config.yaml"):
        (run.path / name).unlink(missing_ok=True)
        os.mkfifo(run.path / name)
    owner = RunOwner(run.path)  # a run that is running is shown
    index = opened(run)
    owner.release()
    assert count(index, step=1) == 1 and overview._head_of(run.path / "config.yaml") == ""
    assert dict(queries.problems(index)) == {"metrics.jsonl and 3 more": "it cannot be read: no regular file"}


def test_malformed_and_ungraded_samples_are_counted_by_reason_and_found_by_it(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")

    def judged(verdict: str, reason: str = "") -> Judgement:
        return Judgement(verdict=verdict, reason=reason)

    run.step(1, [
        *(answer("a", judgement=judged("malformed", "no_box")) for _ in range(3)),
        answer("a", judgement=judged("malformed", "cut_off")),
        answer("a", judgement=judged("ungraded", "grader_failed")), answer("a", judgement=judged("wrong")),
        proposal("b", judgement=judged("lost", "lost")), proposal("c", judgement=judged("duplicate")),
    ])  # fmt: skip
    index = opened(run)
    assert queries.reasons(index, 1) == {
        ("deduction", "proposer", "lost"): {"lost": 1},
        ("deduction", "solver", "malformed"): {"no_box": 3, "cut_off": 1},
        ("deduction", "solver", "ungraded"): {"grader_failed": 1},
    }
    assert [count(index, reason=reason) for reason in ("", "no_box", "lost")] == [8, 3, 1]
    assert queries.reasons(index, 2) == {}


def test_rows_are_the_samples_of_the_file_but_for_their_texts(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    long = "ü" * (MAX_KEPT + 1)
    run.step(1, [
        proposal("a", solve_rate=0.25, flags=[("harm", 0, 1)], reward_parts={"learnability": 0.75, "overlong": -0.5},
                 tokens=[("", -1.0, -2.0)]),
        answer("a", "wrong", long, long, trace_tokens=3, index=4, used="stale"),
        answer("b", judgement=None),
    ])  # fmt: skip
    index = opened(run)
    for row in queries.find_samples(index)[0]:
        whole = queries.read_texts(index, row)
        if whole.judgement is not None and whole.judgement.detail:
            short = long[:MAX_KEPT]
            whole.judgement = replace(whole.judgement, detail=short, answer=(("output", short),))
        assert row.sample == replace(whole, prompt="", response="", tokens=[]) and whole.response
    assert queries.verdicts(index, 1)["deduction", "solver"] == {"": 1, "wrong": 1}


def test_half_a_surrogate_pair_is_shown_as_its_escape(tmp_path: Path) -> None:
    run = MadeRun(tmp_path / "run")
    odd = task("odd", body="return '\ud800'", outputs=("'\ud800ü'",))
    run.step(1, [answer("odd", detail="returned '\ud800'", text="\ud800 is it")], [odd])
    index = opened(run)
    assert queries.find_task(index, "odd")["outputs"] == ["'\\ud800ü'"]  # type: ignore[index]
    (attempt,), _ = queries.find_samples(index)
    judgement = attempt.sample.judgement
    assert judgement is not None and judgement.detail == "returned '\\ud800'"
    assert judgement.answer == (("output", "\\ud800 is it"),)
    assert queries.read_texts(index, attempt).response == "\\ud800 is it"
    assert ids(index, text="\\ud800") == ["odd"]


def test_an_index_with_damaged_pages_makes_way_for_another(run: MadeRun) -> None:
    opened(run).close()
    path, page, num_removed = run.path / NAME, 4096, 0
    sound = path.read_bytes()
    for first in range(1, len(sound) // page):
        path.write_bytes(sound[: first * page] + b"\xff" * (len(sound) - first * page))
        try:
            count(opened(run))
        except UserError as error:
            assert "was damaged and is removed: try again" in str(error) and not path.exists()
            num_removed += 1
        assert count(opened(run)) == 16
    assert num_removed > 0


@pytest.mark.parametrize("damage", [
    lambda path: sqlite3.connect(path).execute("PRAGMA user_version = 99"),
    lambda path: path.write_bytes(b"nothing of sqlite" * 1000),
    lambda path: path.write_bytes(path.read_bytes()[:5000]),
], ids=["another version", "no database", "half a database"])  # fmt: skip
def test_an_index_that_cannot_be_used_is_made_anew(damage: Callable[[Path], object], run: MadeRun) -> None:
    opened(run).close()
    damage(run.path / NAME)
    assert count(opened(run)) == 16


def test_two_may_index_and_read_at_once(run: MadeRun) -> None:
    for step in range(3, 20):
        run.step(step, [answer(f"{step}-{i}") for i in range(50)])
    failures = list[BaseException]()

    def work() -> None:
        try:
            index = RunIndex(run.path)
            for _ in range(20):
                index.refresh(seconds=0.01)
                queries.find_samples(index, step=4)
            index.refresh()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and count(opened(run)) == 16 + 17 * 50


@pytest.mark.parametrize("name, answer", [
    ("os.access", lambda path, mode: False), ("shutil.disk_usage", lambda path: SimpleNamespace(free=0)),
], ids=["read only", "full"])  # fmt: skip
def test_a_run_that_cannot_be_written_is_indexed_elsewhere(run: MadeRun, name, answer, monkeypatch, tmp_path: Path):
    monkeypatch.setattr(name, answer)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    index = opened(run)
    assert count(index) == 16 and not (run.path / NAME).exists() and index.path.is_relative_to(tmp_path)


def test_a_disk_that_fills_up_is_one_sentence(run: MadeRun) -> None:
    index = RunIndex(run.path)
    (pages,) = index.select("PRAGMA page_count")
    index.select(f"PRAGMA max_page_count = {pages[0]}")
    with mistake(says="cannot grow (database or disk is full): make room"):
        index.refresh()


def test_a_bomb_of_gzip_is_a_problem_of_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(record_files, "_MOST_TEXT", 10**5)
    (tmp_path / "step_000001.jsonl.gz").write_bytes(gzip.compress(b"{}\n") + gzip.compress(b"x" * 10**6))
    list(record_files.read_lines(tmp_path / "step_000001.jsonl.gz", problems := []))
    assert "unpacks to over" in problems[-1]


def test_answers_come_without_texts_and_whole_when_asked_for_and_what_is_none_or_has_changed_is_named(tmp_path: Path):
    answers = answers_to("exam", "0", "deduction/short", Verdict.RIGHT, [Verdict.WRONG])
    path = write_evaluation(tmp_path / "now", answers) / "answers.jsonl.gz"
    side, key = read_side("a side", path), ("exam", "0")
    assert side.problems == [] and side.share(key) == 0.0
    greedy, sampled = side.whole(key)
    assert (greedy.index, sampled.index, greedy.response_tokens) == (None, 0, 7)
    assert greedy.prompt == "What?" and greedy.response == "It is\u2028so \\ud800."
    assert greedy.judgement.answer == (("answer", "so"),)
    assert not any(each.prompt or each.response or each.judgement.answer for each in side.answers[key])
    whole = path.read_bytes()
    path.write_bytes(whole + gzip.compress(b'{"suite": 3}\n{"kind": "exam"}\nx\n'))
    more = read_side("a side", path)
    (problem,) = more.problems
    assert list(more.answers) == [key]
    unread = "3 of its lines cannot be read, the first because it is not a Sample"
    assert problem.startswith(f"now/answers.jsonl.gz: {unread}")
    long = [replace(each, prompt=90 * "-" + f"\n1 + {id}", problem_id=str(id)) for id in (1, 2) for each in answers]
    both = read_side("a side", write_evaluation(tmp_path / "two", long) / "answers.jsonl.gz")
    assert both.prompts([("exam", "1"), ("exam", "2"), ("exam", "3")]) == {
        ("exam", "1"): "1 + 1",
        ("exam", "2"): "1 + 2",
    }
    assert both.prompts([("exam", "1")])["exam", "1"].startswith("--"), "all of a single one"
    path.write_bytes(gzip.compress(b'{"protocol": {}}\n') + gzip.compress(b'{"kind": "exam"}\n'))
    assert "has changed since it was indexed" in side.whole(key)
