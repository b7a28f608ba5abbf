"""Which results make a task and which are remembered: nothing that a busy machine or other calls decided."""

import asyncio
import marshal
import time
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio

from azr.execution import CallStatus, ExecutionRequest, ExecutionResult
from azr.executor import protocol
from azr.executor.pool import SandboxPool
from azr.records import Task
from azr.tasks.base import Proposal, RejectReason, Verdict
from azr.tasks.prompts import Section
from azr.tasks.registry import KINDS
from tests.executor.conftest import CONFIG, execute_many

pytestmark = pytest.mark.asyncio(loop_scope="session")

WALL_S = 1.0
_TRIES = 6
"""On a busy machine a third of the limit may take all of it."""
LIMITS = {"source_bytes": 16_384, "induction_inputs": 6, "repeats": 4}


def _turns_per_s() -> float:
    """Turns of an empty loop in a second of CPU time here, by the fastest of a few measurements."""
    turns, taken = 1_000_000, []
    for _ in range(5):
        began = time.process_time()
        for _ in range(turns):
            pass
        taken.append(time.process_time() - began)
    return turns / min(taken)


BURN = f"""
def f(seconds):
    for _ in range(int({_turns_per_s()} * seconds)): pass
    return seconds
"""
"""Takes CPU time by turns of a loop: nothing tells a proposal the time."""
HANGS = "def f(x):\n    while True: x += 1"
TIMES_OUT = "def f(x):\n    while x == 2: pass\n    return x // 100"
"""An admitted task's program that hangs on one input only."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def timed():
    """A pool with a limit that a program can be measured against."""
    async with SandboxPool(replace(CONFIG, workers=2, wall_s=WALL_S, backend="namespace")) as pool:
        yield pool


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def walled_timed(backend):
    """The same behind each backend."""
    async with SandboxPool(replace(CONFIG, workers=2, wall_s=WALL_S, backend=backend)) as pool:
        yield pool


class Unchecked:
    """Runs requests of the kinds with the static check off; keeps them and their results."""

    def __init__(self, pool: SandboxPool) -> None:
        self._pool = pool
        self.ran: list[tuple[ExecutionRequest, ExecutionResult]] = []

    async def __call__(self, request: ExecutionRequest) -> ExecutionResult:
        request = replace(request, static_check=False)
        self.ran.append((request, await self._pool.execute(request)))
        return self.ran[-1][1]


async def _validate(run, kind: str, program: str, given: str) -> Task | RejectReason:
    sections = (Section("program", program), Section("input", given))
    return await KINDS[kind].validate(Proposal(id="t", sections=sections, **LIMITS), run)


NO_CLOCKS = "import time\ntime.process_time = time.monotonic = time.clock_gettime = lambda *a: 0.0\n"
"""A program that has replaced the clocks is measured all the same."""


@pytest.mark.parametrize("before", ["", NO_CLOCKS], ids=["honest", "no clocks"])
async def test_a_program_that_needs_over_half_of_the_limit_makes_no_task(timed: SandboxPool, before: str):
    run = Unchecked(timed)
    made = await _validate(run, "deduction", before + BURN, str(0.7 * WALL_S))
    ((_, result),) = run.ran
    assert made is RejectReason.FAILED and result.deterministic is None and not result.ok, (made, result)


async def test_a_program_that_needs_less_than_half_of_the_limit_makes_one():
    wall_s = 3 * WALL_S
    sections = (Section("program", BURN), Section("input", str(0.3 * wall_s)))
    async with SandboxPool(replace(CONFIG, workers=2, wall_s=wall_s, backend="namespace"), repeats=2) as pool:
        for _ in range(_TRIES):
            proposal = Proposal(id="t", sections=sections, **(LIMITS | {"repeats": 2}))
            made = await KINDS["deduction"].validate(proposal, Unchecked(pool))
            if isinstance(made, Task):
                break
    assert isinstance(made, Task), made


async def _admitted(timed: SandboxPool, kind: str, program: str, given: str) -> Task:
    task = await _validate(Unchecked(timed), kind, program, given)
    assert isinstance(task, Task), task
    return task


def starve(pool: SandboxPool, patch: pytest.MonkeyPatch, number: int) -> list[Any]:
    """Let a program that hangs run in place of this job, counted from 1; its timeout is honest.

    Return the jobs that are run alone, which are added as they come.
    """
    hangs = protocol.request_frames(protocol.Kind.CODE, marshal.dumps(compile(HANGS, "program", "exec")), ["1"])
    submit = pool._scheduler.submit
    submitted, ran_alone = [], []

    def replaced(job, *, alone: bool):
        (ran_alone if alone else submitted).append(job)
        submit(replace(job, request=hangs) if not alone and len(submitted) == number else job, alone=alone)

    patch.setattr(pool._scheduler, "submit", replaced)
    return ran_alone


async def test_an_admitted_task_that_times_out_under_load_is_run_again_alone(timed: SandboxPool, monkeypatch):
    """The first verification meets a machine without time to give; the second has its sandbox to itself."""
    task = await _admitted(timed, "abduction", "def f(x): return x * 3", "1")
    alone = starve(timed, monkeypatch, 1)
    assert await KINDS["abduction"].grade(task, (Section("input", "1.0"),), Unchecked(timed)) is Verdict.RIGHT
    assert len(alone) == 1


@pytest.mark.parametrize("starved", [1, 3], ids=["first run", "repeat"])
async def test_a_proposal_that_runs_out_of_time_once_is_run_again_alone(timed: SandboxPool, monkeypatch, starved: int):
    alone = starve(timed, monkeypatch, starved)
    program = f"def f(x): return x * 3 + {starved}"
    result = await timed.execute(ExecutionRequest(program=program, inputs=("1",), repeats=4))
    assert result.ok and result.deterministic and len(alone) == 1, result


@pytest.mark.parametrize("repeats", [1, 4])
async def test_honest_programs_beside_endless_loops_are_in_time(walled_timed: SandboxPool, repeats: int):
    """Each takes 0.2 s of CPU time at a limit of 1 s, however little of the machine it is given."""
    pool = walled_timed
    loops = [
        asyncio.create_task(pool.execute(ExecutionRequest(program=f"{HANGS} + {n}", inputs=("1",)))) for n in range(8)
    ]
    honest = BURN.replace("* seconds", "* 0.2 * seconds")
    texts = [honest.replace("return seconds", f"return {n} + seconds") for n in range(20 // repeats)]
    requests = [ExecutionRequest(program=text, inputs=("1",), repeats=repeats, static_check=False) for text in texts]
    results = await asyncio.gather(*map(pool.execute, requests))
    assert [output.status for result in results for output in result.outputs] == [CallStatus.OK] * len(requests)
    assert {output.status for loop in loops for output in (await loop).outputs} == {CallStatus.TIMEOUT}


async def test_a_call_that_sleeps_is_given_no_more_than_its_limit():
    program = "import time\ndef f(x):\n    for _ in range(1000): time.sleep(x)"
    config = replace(CONFIG, workers=2, wall_s=0.25, backend="namespace")
    async with SandboxPool(config, repeats=1, answers=True) as pool:
        requests = [ExecutionRequest(program=program, inputs=(nap,), static_check=False) for nap in ("100", "0.05")]
        for result in await execute_many(pool, requests):
            (output,) = result.outputs
            assert output.status is CallStatus.TIMEOUT, result
            assert config.wall_s < output.wall_s < protocol.PATIENCE * config.wall_s + 2, result


async def test_an_answer_that_hangs_is_wrong_unless_the_recorded_input_hangs_too(timed: SandboxPool):
    task = await _admitted(timed, "abduction", TIMES_OUT, "1")
    run = Unchecked(timed)
    assert await KINDS["abduction"].grade(task, (Section("input", "2"),), run) is Verdict.WRONG
    assert await KINDS["abduction"].grade(task, (Section("input", "3"),), run) is Verdict.RIGHT
    assert await KINDS["abduction"].grade(task, (Section("input", "300"),), run) is Verdict.WRONG
    hopeless = replace(task, program=HANGS)
    assert await KINDS["abduction"].grade(hopeless, (Section("input", "2"),), run) is Verdict.UNGRADED
    solution = (Section("program", HANGS),)  # which was never admitted, so it is its own fault
    assert await KINDS["induction"].grade(KINDS["induction"].seed(), solution, timed.execute) is Verdict.WRONG


NOT_REMEMBERED = {
    "a timeout": ("def f(x):\n    while True: pass", CallStatus.TIMEOUT),
    "a crash": ("import posix\ndef f(x): posix._exit(3)", CallStatus.CRASHED),
    "memory": ("def f(x): return len(bytearray(2**40))", CallStatus.MEMORY),
    "over half of the limit": (BURN.replace("* seconds", f"* {0.7 * WALL_S}"), CallStatus.TIMEOUT),
}
"""Programs whose end a busy or small machine may have brought about."""


@pytest.mark.parametrize(
    ("name", "repeats"), [*((name, 4) for name in NOT_REMEMBERED), ("a crash", 1), ("a timeout", 1), ("memory", 1)]
)
async def test_what_a_machine_may_be_to_blame_for_is_run_again(timed: SandboxPool, name: str, repeats: int):
    program, status = NOT_REMEMBERED[name]
    request = ExecutionRequest(program=f"{program}  # {repeats}", inputs=("1",), repeats=repeats, static_check=False)
    for _ in range(2):
        result = await timed.execute(request)
        assert result.outputs[0].status is status, result
        assert result.deterministic is None and not result.cached


async def test_values_that_are_too_long_only_together_are_remembered_for_none_of_them(timed: SandboxPool):
    program = "def f(x): return 'a' * 60_000"
    together = await timed.execute(ExecutionRequest(program=program, inputs=tuple("123456789"), repeats=4))
    ends = [output.status for output in together.outputs]
    assert ends.count(CallStatus.OUTPUT_TOO_LARGE) > 0 and together.deterministic is None
    for text, end in zip("123456789", ends, strict=True):
        for repeats in (4, 1):
            alone = await timed.execute(ExecutionRequest(program=program, inputs=(text,), repeats=repeats))
            assert alone.outputs[0].status is CallStatus.OK, (text, end)
            assert alone.deterministic is (True if repeats > 1 else None)


async def test_a_request_inherits_nothing_from_one_that_runs_at_the_same_time(timed: SandboxPool):
    """Its call is the same, but it has no company."""
    program = "def f(x): return 'b' * 60_000"
    many, one = (ExecutionRequest(program=program, inputs=tuple(texts), repeats=4) for texts in ("123456789", "9"))
    together, alone, again = await asyncio.gather(*map(timed.execute, (many, one, one)))
    assert together.outputs[8].status is CallStatus.OUTPUT_TOO_LARGE
    assert alone.ok and again.outputs == alone.outputs and (alone.cached, again.cached) == (False, True)


async def test_calls_that_disagree_in_company_are_judged_anew_alone(timed: SandboxPool, monkeypatch):
    """Here no suspicion keeps them apart."""
    honest = protocol.read_loaded
    monkeypatch.setattr(protocol, "read_loaded", lambda part: (0, honest(part)[1]))
    program = "import keyword\ndef f(x):\n    keyword.kwlist.append(x)\n    return len(keyword.kwlist)"
    together = ExecutionRequest(program=program, inputs=("1", "2"), repeats=4)
    assert (await timed.execute(together)).deterministic is False
    alone = await timed.execute(replace(together, inputs=("2",)))
    assert alone.deterministic is True and not alone.cached


async def test_a_call_that_another_kept_from_being_repeated_or_that_ran_once_is_not_remembered_as_checked(timed):
    program = "def f(x):\n    while x == 2: pass\n    return x"
    both = ExecutionRequest(program=program, inputs=("1", "2"), repeats=4, static_check=False)
    assert (await timed.execute(both)).deterministic is None
    alone = await timed.execute(replace(both, inputs=("1",)))
    assert alone.deterministic is True and not alone.cached
    request = ExecutionRequest(program="def f(x): return hash('once')", inputs=("1",))
    await timed.execute(request)
    repeated = await timed.execute(replace(request, repeats=4))
    assert repeated.deterministic is False and not repeated.cached


async def test_identical_calls_that_wait_for_one_that_fails_all_hear_of_it(timed: SandboxPool):
    request = ExecutionRequest(program="def f(x):\n    while True: x += 1", inputs=("1",), repeats=4)
    results = await asyncio.gather(*(timed.execute(request) for _ in range(4)))
    assert {result.outputs[0].status for result in results} == {CallStatus.TIMEOUT}
    assert {result.deterministic for result in results} == {None}


@pytest.mark.parametrize("kind", KINDS)
async def test_determinism_that_was_not_established_makes_no_task(timed: SandboxPool, kind: str):
    """Whatever the executor says of the calls, and whatever the kind."""
    seed = KINDS[kind].seed()

    async def undetermined(request: ExecutionRequest) -> ExecutionResult:
        return replace(await timed.execute(replace(request, repeats=1)), deterministic=None)

    proposal = Proposal(id="t", sections=KINDS[kind].proposal(seed), references=(seed,), **LIMITS)
    assert isinstance(await KINDS[kind].validate(proposal, timed.execute), Task)
    assert await KINDS[kind].validate(proposal, undetermined) is RejectReason.NON_DETERMINISTIC
