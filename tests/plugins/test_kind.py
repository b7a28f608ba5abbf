"""Kinds, rewards, bonuses and estimators of plug-ins: what goes wrong in them costs what it was about, and no more."""

import asyncio
import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import torch

from azr.algorithms.advantages import estimate_advantages
from azr.algorithms.batch import Batch
from azr.config import ESTIMATOR_TYPES, IntrinsicRewardConfig, RewardConfig
from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.plugins import calls, load_plugins
from azr.records import Sample, Task
from azr.runs.sample_file import JsonLines, newest_tasks
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.rewards import reward_proposal
from azr.selfplay.seeds import check_seeds, read_seeds
from azr.tasks.base import Proposal, RejectReason, Verdict
from azr.tasks.prompts import ChatFormat, CompactFormat, Section
from azr.tasks.registry import KINDS, derived_tasks
from tests import tables
from tests.tables import table

LIMITS = {"source_bytes": 1000, "induction_inputs": 3, "repeats": 2}


async def run_nothing(request: object) -> None:
    raise AssertionError("a kind without programs runs none")


async def proposed(kind: str, *sections: Section, run: object = run_nothing, references: Sequence[Task] = ()) -> object:
    proposal = Proposal(id="p1", sections=sections, references=references, step=7, **LIMITS)
    return await KINDS[kind].validate(proposal, run)


async def test_the_example_kind_is_validated_graded_and_stored() -> None:
    load_plugins(["examples.expressions"])
    kind = KINDS["expressions"]
    task = await proposed("expressions", Section("output", "3 * (17 - 2) + 8"), references=[kind.seed()])
    assert (task.inputs, task.outputs, task.program) == (("2, 3, 8, 17",), ("53",), "")
    assert (task.id, task.step, task.parents) == ("p1", 7, ("seed-expressions",))
    assert await proposed("expressions", Section("output", "3 ** 9")) is RejectReason.MALFORMED
    for text, verdict in {"8 + 3 * (17 - 2)": "right", "51 + 2": "wrong", "53": "malformed"}.items():
        assert await kind.grade(task, (Section("output", text),), run_nothing) is Verdict(verdict)

    buffer = TaskBuffer(["expressions", "deduction"])
    buffer.add(task)
    twin = await proposed("expressions", Section("output", "8 + (17 - 2) * 3"))
    assert buffer.reject_reason(replace(twin, id="p2")) is RejectReason.DUPLICATE
    assert derived_tasks(task, ["deduction", "abduction"], 5, random.Random(0)) == [], "there is no program"


OWN_LABELS, BROKEN, DERIVING, BAD = tables.programs(Path(__file__).with_name("kinds.txt"), "plug-in").values()


async def test_a_task_needs_no_program_and_has_a_payload_and_labels_of_its_own(plugin, tmp_path):
    load_plugins([plugin(OWN_LABELS)])
    kind = KINDS["sums"]
    for style in (CompactFormat(), ChatFormat(str)):
        text = style.response((Section("numbers", "3 4 5"),))
        sections = style.parse(text, kind.labels)
        assert sections == (Section("numbers", "3 4 5"),)
        assert style.parse(text) is None, "to the other kinds this is not a section"
    task = await proposed("sums", *sections)
    assert task.payload == {"numbers": [3, 4, 5]}
    assert await kind.grade(task, kind.solution(task), run_nothing) is Verdict.RIGHT
    assert await kind.grade(task, kind.proposal(task), run_nothing) is Verdict.WRONG
    log = JsonLines(tmp_path / "tasks.jsonl")
    log.write([task.record(), KINDS["deduction"].seed().record()])
    log.close()
    plain, again = newest_tasks(tmp_path / "tasks.jsonl", KINDS)
    assert again == task and plain == KINDS["deduction"].seed()
    assert "payload" not in (tmp_path / "tasks.jsonl").read_text().splitlines()[1]
    assert hash(task)


async def test_tasks_of_a_file_are_checked_as_proposals(plugin, tmp_path):
    load_plugins([plugin(OWN_LABELS)])
    plain = {"kind": "sums", "program": "", "inputs": []}
    records = [plain | {"payload": {"numbers": [3, 4]}}, plain, plain | {"payload": 3}]
    path = tmp_path / "seeds.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in records))
    lines = read_seeds(path)
    buffer = TaskBuffer(["sums"])
    passed, refused, _ = await check_seeds(lines, buffer, run_nothing, lambda task: None)
    assert [each["line"] for each in refused] == [2, 3]
    assert "not a task of kind sums (KeyError: 'numbers')" in refused[0]["detail"]
    (task,) = passed
    assert task.payload["numbers"] == [3, 4] and buffer.tasks("sums") == (task,)


@pytest.fixture
def broken(plugin: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(calls, "TIME_LIMIT_S", 0.25)
    load_plugins([name := plugin(BROKEN)])
    return name


@pytest.mark.parametrize("text, said", table(__file__, "answers and verdicts"))
async def test_a_proposal_that_a_kind_fails_over_is_lost_and_the_log_names_the_kind(broken, text, said, caplog):
    async def run(request: ExecutionRequest) -> ExecutionResult:
        return ExecutionResult(outputs=(CallResult(status=CallStatus.OK, value="1"),))

    for _ in range(2):
        assert await proposed("broken", Section("output", text), run=run) is RejectReason.LOST
    (record,) = [each for each in caplog.records if each.name == calls.__name__]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"{broken}: kind broken, validate {said}")
    assert record.getMessage().endswith("; such a response is not trained on")
    assert (f"{broken}.py" in caplog.text) == said.startswith("raised") or text.startswith("run"), "a traceback"
    assert isinstance(await proposed("broken", Section("output", "fine")), Task), "the next one is validated"


async def test_a_call_that_never_returns_is_named_while_it_goes_on(broken: str, monkeypatch, caplog) -> None:
    kind, seen = KINDS["broken"], list[str]()

    def sleep(seconds: float) -> None:
        until = time.monotonic() + 30
        while not caplog.records and time.monotonic() < until:
            pass
        seen.extend(each.getMessage() for each in caplog.records)

    monkeypatch.setattr(time, "sleep", sleep)
    await kind.grade(kind.seed(), (Section("output", "sleep"),), run_nothing)
    assert seen and "kind broken, grade takes over 0.25 s" in seen[0]


async def test_a_slow_call_is_named_once_but_time_in_the_sandbox_is_not_the_kinds(broken, caplog) -> None:
    delays = iter((0.1, 0.5, 0.5))

    async def run(request: ExecutionRequest) -> ExecutionResult:
        await asyncio.sleep(next(delays))
        return ExecutionResult(outputs=(CallResult(status=CallStatus.OK, value="1"),))

    for text in ("together", "run 1"):
        assert isinstance(await proposed("broken", Section("output", text), run=run), Task)
    assert not caplog.records
    kind = KINDS["broken"]
    for _ in range(2):
        assert isinstance(await proposed("broken", Section("output", "sleep")), Task)
        assert await kind.grade(kind.seed(), (Section("output", "sleep"),), run_nothing) is Verdict.RIGHT
    says = "takes over 0.25 s for one call; the run waits and cannot end it"
    named = [each.getMessage() for each in caplog.records]
    assert named == [f"{broken}: kind broken, {method} {says}" for method in ("validate", "grade")]


async def test_an_answer_that_a_kind_fails_over_is_ungraded_and_its_programs_run_in_the_sandbox(broken, caplog) -> None:
    kind = KINDS["broken"]
    for text in ("raise", "nonsense"):
        assert await kind.grade(kind.seed(), (Section("output", text),), run_nothing) is Verdict.UNGRADED
        assert await kind.grade(kind.seed(), (Section("output", "fine"),), run_nothing) is Verdict.RIGHT
    assert "kind broken, grade raised RuntimeError: out of patience; such a response is not trained on" in caplog.text
    assert 'case "raise": raise RuntimeError("out of patience")' in caplog.text, "the traceback"
    assert "kind broken, grade returned 'perhaps', which is not a Verdict" in caplog.text
    asked = list[ExecutionRequest]()

    async def run(request: ExecutionRequest) -> ExecutionResult:
        asked.append(request)
        return ExecutionResult(outputs=(CallResult(status=CallStatus.OK, value="ran"),))

    assert await proposed("broken", Section("output", "run 1 2"), run=run) is RejectReason.FAILED
    assert asked == [ExecutionRequest(program="def f(x): return x", inputs=("1", "2"))]

    async def gone(request: ExecutionRequest) -> ExecutionResult:
        raise ConnectionError("the executor is gone")

    with pytest.raises(ConnectionError, match="the executor is gone"):
        await proposed("broken", Section("output", "run 1"), run=gone)
    with pytest.raises(ConnectionError, match="the executor is gone"):
        await KINDS["broken"].grade(KINDS["broken"].seed(), (Section("output", "run"),), gone)


async def test_a_kind_derives_tasks_from_those_of_others_and_others_from_its(plugin, caplog):
    load_plugins([plugin(DERIVING)])
    deduction = replace(KINDS["deduction"].seed(), program="def f(a):\n    return len(a)", outputs=("11",))
    (derived,) = derived_tasks(deduction, ["lengths"], 5, random.Random(0))
    assert (derived.kind, derived.program, derived.outputs) == ("lengths", deduction.program, ("11",))
    (back,) = derived_tasks(derived, ["deduction"], 5, random.Random(0))
    assert (back.kind, back.outputs) == ("deduction", ("11",))
    assert derived_tasks(replace(deduction, message="nonsense"), ["lengths"], 5, random.Random(0)) == []
    assert "kind lengths, derive_tasks returned [], which is not a tuple of tasks" in caplog.text


TASK = replace(KINDS["deduction"].seed(), solve_rate=0.75)


@pytest.fixture
def bad(plugin: Callable[[str], str], monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(calls, "TIME_LIMIT_S", 0.25)
    monkeypatch.setattr(calls, "ESTIMATE_LIMIT_S", 0.25)
    load_plugins([name := plugin(BAD), "examples.medium"])
    return name


def pay(proposer: str = "learnability", *bonuses: str) -> dict[str, float] | None:
    """Return the parts of a proposal's reward; None if it has none."""
    config = RewardConfig(proposer=proposer, intrinsic=IntrinsicRewardConfig(bonuses=bonuses))
    proposal = Sample(role="proposer", kind=TASK.kind, problem_id=TASK.id, group="propose:x", used="recorded")
    reward_proposal(proposal, TASK, [TASK], lambda: [TASK, TASK], 0, config, 100)
    assert (proposal.used == "trained") == (proposal.reward is not None), "nothing is learned from what is not paid"
    return proposal.reward_parts if proposal.reward is not None else None


@pytest.mark.parametrize("name, said", [
    ("raises", "raised ZeroDivisionError: division by zero"),
    ("infinite", "returned nan, which is not a finite number"),
    ("nonsense", "returned 'much', which is not a finite number"),
])  # fmt: skip
def test_a_proposal_that_a_reward_or_bonus_fails_over_is_not_paid(bad, name, said, caplog):
    assert pay(name) is None
    assert f"{bad}: reward {name} {said}; such a proposal is not trained on" in caplog.text
    assert pay("medium", f"bonus_{name}:0.5") is None
    assert f"{bad}: bonus bonus_{name} {said}; such a proposal is not trained on" in caplog.text
    assert pay("medium") == {"medium": 0.5}


def test_an_own_reward_or_bonus_is_paid_and_a_slow_one_named_and_counted(bad, caplog) -> None:
    assert pay("medium") == {"medium": 0.5}
    ours = pay()
    assert ours is not None and set(ours) == {"learnability"}, "a reward of ours is paid as before"
    assert (pay("learnability", "known:0.1") or {})["known"] == pytest.approx(0.32)
    assert (pay("learnability", "known:3") or {})["known"] == 0.5, "no bonus is more than 0.5"
    assert [calls._number(each) for each in (np.float32(0.5), np.array(2), np.True_, Decimal("3"))] == [0.5, 2, 1, 3]
    assert pay("slow") == pay("slow") == {"slow": 0.25}
    assert (pay("medium", "bonus_slow:1") or {})["bonus_slow"] == 0.25
    says = "takes over 0.25 s for one call; the run waits and cannot end it"
    named = [each.getMessage() for each in caplog.records]
    assert named == [f"{bad}: {what} {says}" for what in ("reward slow", "bonus bonus_slow")]


PLAYERS = [("deduction", "solver")] * 4
BATCH = Batch(rewards=[1.0, 0.0, -1.0, 0.5], response_lengths=[2, 3, 1, 0], kind_roles=PLAYERS, groups=list("aabb"))


def test_what_an_estimator_fails_over_is_not_learned(bad: str, caplog: pytest.LogCaptureFixture) -> None:
    for name, said in (
        ("short", "returned a tensor of the shape (4,), and there are 6 response tokens"),
        ("list", "returned [1.0, 0.0, -1.0, 0.5], which is not a tensor"),
        ("limitless", "returned numbers that are not finite"), ("fails", "raised ZeroDivisionError: division by zero"),
        ("remembers", "returned advantages, and a state that JSON changes: take texts, numbers, lists and"),
    ):  # fmt: skip
        assert estimate_advantages(BATCH, ESTIMATOR_TYPES[name]()) == (None, None)
        assert f"{bad}: estimator {name} {said}" in caplog.text and "; nothing is learned in such a step" in caplog.text


def test_an_own_estimator_gets_the_batch_and_gives_advantages_per_token_and_a_slow_one_is_named(bad, caplog) -> None:
    advantages_R, _ = estimate_advantages(BATCH, ESTIMATOR_TYPES["centred"]())
    centred_N = torch.tensor([0.875, -0.125, -1.125, 0.375])
    assert torch.equal(advantages_R, centred_N[BATCH.seq_index_R])
    assert advantages_R.dtype == torch.float32
    batch = replace(BATCH, rollout_logprobs_R=torch.tensor([-0.5, -1.0, -1.5, -2.0, -2.5, -3.0]))
    advantages_R, _ = estimate_advantages(batch, ESTIMATOR_TYPES["whole"]())
    assert advantages_R.tolist() == [-0.5, 0.0, -1.5, -2.0, -2.5, -4.0] and not advantages_R.requires_grad
    assert estimate_advantages(batch, ESTIMATOR_TYPES["late"]())[0] is not None
    assert f"{bad}: estimator late takes over 0.25 s for one call" in caplog.text
