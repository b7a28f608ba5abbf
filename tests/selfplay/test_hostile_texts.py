"""Nothing that a model writes raises past the task layer: fuzzed for a stated time, guarded where it still would."""

import logging
import random
import threading
import time

import pytest

from azr.answering import task_problem
from azr.config import Config, IntrinsicRewardConfig
from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.prompts.codec import PromptCodec
from azr.records import Completion, Judgement, Task
from azr.selfplay import rewards
from azr.selfplay.proposer import validate
from azr.selfplay.rewards import BONUSES, intrinsic_bonuses
from azr.tasks.base import RejectReason, Verdict
from azr.tasks.normalize import fingerprint, parse_program
from azr.tasks.prompts import ChatFormat, Section
from azr.tasks.registry import KINDS
from tests import chat_tokenizers
from tests.runs import factory
from tests.tables import table
from tools.pretrain.generator import random_sample

SECONDS, ROUNDS = 4.0, 500
STYLE = ChatFormat(lambda question: question + "<think>")
CODEC = PromptCodec(chat_tokenizers.plain(), STYLE)
BONUS_CONFIG = IntrinsicRewardConfig(bonuses=tuple(f"{name}:1" for name in BONUSES))
HOSTILE = [
    *table(__file__, "hostile texts"), "0x" + "f" * 5000, "-0x" + "f" * 5000, "0b" + "1" * 20000, "0o" + "7" * 9000,
    "9" * 5000, "[" * 300 + "]" * 300, "~" * 500 + "1", "-" * 500 + "1", "1 " + "+ 1" * 400, "x" * 9000,
]  # fmt: skip
PROGRAMS = table(__file__, "programs around a hostile text")


class Echo:
    """Stands where the sandbox stands: what programs return is not what is tested here."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        values = ["1", "'a'", "[(1, 2)]", "nan", "{1: {2}}", "-0.0", "'\\x00`'"]
        calls = tuple(CallResult(status=CallStatus.OK, value=self._rng.choice(values)) for _ in request.inputs)
        return ExecutionResult(outputs=calls, deterministic=True)


def random_text(rng: random.Random) -> str:
    sample = random_sample(rng, 1)
    text = rng.choice([sample.program, sample.program, sample.inputs[0], rng.choice(HOSTILE), rng.choice(PROGRAMS)])
    if "{}" in text and rng.random() < 0.9:
        text = text.replace("{}", rng.choice(HOSTILE))
    for _ in range(rng.choice([0, 0, 0, 0, 1, 3])):
        at, to = sorted(rng.randrange(len(text) + 1) for _ in range(2))
        piece = rng.choice(
            ["", text[at:to] * 2, rng.choice(HOSTILE), rng.choice("()[]{}:,'\"\\\n #=*"), chr(rng.randrange(0xD7FF))]
        )
        text = text[:at] + piece + text[min(to, at + rng.choice([0, 1, 5])) :]
    return text


def completion(text: str) -> Completion:
    return factory.completion(CODEC.encode(text))


async def judge(task: Task, text: str, executor: Echo) -> Judgement:
    return await task_problem(task, "group", CODEC, executor.execute).judge(completion(text))


def said(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What was logged, but for what a library's thread says that another test has left."""
    here = threading.get_ident()
    return [record for record in caplog.records if record.thread == here or record.name.startswith("azr.")]


async def test_whatever_is_written_is_refused_or_graded(caplog: pytest.LogCaptureFixture):
    """For `SECONDS`, and `ROUNDS` at least, from another beginning each day: proposals, prompts, fingerprints, bonuses,
    answers."""
    day = int(time.time() // 86400)
    deadline, rounds, accepted = time.monotonic() + SECONDS, 0, 0
    while time.monotonic() < deadline or rounds < ROUNDS:
        rng = random.Random(f"{day}/{rounds}")
        rounds += 1
        name = rng.choice(list(KINDS))
        kind, config = KINDS[name], Config()
        executor = Echo(rng)
        labels = [section.label for section in kind.proposal(kind.seed())]
        text = "</think>\n<answer>" + STYLE.response([Section(label, random_text(rng)) for label in labels])
        asked = {"config": config, "codec": CODEC, "execute": executor.execute, "id": "t", "step": 1}
        outcome, _ = await validate(name, completion(text), (kind.seed(),), **asked)
        if isinstance(outcome, Task):
            accepted += 1
            intrinsic_bonuses(outcome, [kind.seed()], lambda: [each.seed() for each in KINDS.values()], BONUS_CONFIG)
            CODEC.solver_prompt(kind, outcome)
            answers = [random_text(rng), outcome.program, *outcome.inputs, *outcome.outputs]
            for answer in answers:
                stated = [Section(section.label, answer) for section in kind.solution(outcome)]
                judgement = await judge(outcome, STYLE.response(stated), executor)
                assert Verdict(judgement.verdict)
        assert not said(caplog), f"day {day}, round {rounds - 1}: {text[:500]!r}"
    assert accepted > rounds / 50, "some of it must come through, or little is tested"


@pytest.mark.parametrize("literal", HOSTILE)
def test_a_program_that_is_parsed_has_a_fingerprint(literal):
    for program in PROGRAMS:
        text = program.replace("{}", literal)
        if parse_program(text) is not None:
            assert fingerprint(text)


def test_an_integer_that_cannot_be_written_is_no_program():
    assert parse_program(f"def f(a):\n    return 0x{'f' * 5000}") is None
    assert parse_program(f"def f(a):\n    return 0x{'f' * 3000}") is not None


async def test_what_still_raises_is_a_refusal_with_the_id_in_the_log(monkeypatch, caplog: pytest.LogCaptureFixture):
    kind, task = KINDS["deduction"], KINDS["deduction"].seed()
    executor = Echo(random.Random(1))

    def fails(*args: object, **kwargs: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(type(kind), "grade", fails)
    assert (await judge(task, STYLE.response(kind.solution(task)), executor)).verdict == Verdict.MALFORMED
    monkeypatch.setattr(type(kind), "validate", fails)
    proposal = completion(STYLE.response(kind.proposal(task)))
    asked = {"config": Config(), "codec": CODEC, "execute": executor.execute, "id": "000001-x", "step": 1}
    outcome, _ = await validate("deduction", proposal, (), **asked)
    assert outcome is RejectReason.MALFORMED
    monkeypatch.setitem(rewards.BONUSES, "halstead", fails)
    config = IntrinsicRewardConfig(bonuses=("halstead:1",))
    assert intrinsic_bonuses(task, [], lambda: [], config) == {"halstead": 0.0}
    assert [record.levelno for record in said(caplog)] == [logging.ERROR] * 3
    assert all(name in caplog.text for name in ("000001-x", task.id, "halstead", "RecursionError: too deep"))


async def test_a_failure_of_the_executor_is_not_the_texts(caplog: pytest.LogCaptureFixture):
    class Gone:
        async def execute(self, request: ExecutionRequest) -> ExecutionResult:
            raise ValueError("the executor is gone")

    kind = KINDS["deduction"]
    proposal = completion(STYLE.response(kind.proposal(kind.seed())))
    asked = {"config": Config(), "codec": CODEC, "execute": Gone().execute, "id": "t", "step": 1}
    with pytest.raises(ValueError, match="the executor is gone"):
        await validate("deduction", proposal, (), **asked)
    assert not said(caplog)
