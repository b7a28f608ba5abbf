"""Steps that leave something over: it goes on in the next one, or in another process with the answers that it had."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

from azr.config import Config
from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.records import Completion, Role
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.in_flight import InFlight, Journal, Leftover, Origin
from azr.selfplay.play import SelfPlayStep
from azr.selfplay.roles import Proposer, Shown, Solver
from azr.tasks.composites import give_functions
from azr.tasks.registry import KINDS
from tests.selfplay.test_play import CODEC, CONFIG, completion, proposal, replace_play, seeded

PARTIAL = replace(CONFIG, rollout=replace(CONFIG.rollout, staleness=1, partial=True))


class Executor:
    """Every program gives 3."""

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        output = CallResult(status=CallStatus.OK, value="3")
        return ExecutionResult(outputs=(output,) * len(request.inputs), deterministic=True)


class Engine:
    """Proposes from a list; a proposal, or the answers to a task, with a text of `late` wait until `release` is set."""

    def __init__(self, proposals: list[str], *, late: tuple[str, str] = ("", "")) -> None:
        self._proposals, self._late = iter(proposals), late
        self.release = asyncio.Event()
        self.asked: Counter[str] = Counter()

    async def generate(
        self, prompt_ids: list[int], *, n: int, max_tokens: int, seed: int | None = None
    ) -> list[Completion]:
        prompt = CODEC.decode(prompt_ids)
        proposes = prompt.startswith("<|propose|>")
        text = next(self._proposals) if proposes else "<|output|>3<|end|>"
        self.asked["propose" if proposes else prompt] += n
        if self._late[1] and self._late[1] in text + prompt and proposes == (self._late[0] == "propose"):
            await self.release.wait()
        return [completion(prompt_ids, text) for _ in range(n)]


def step(config: Config, engine: Engine, buffer: TaskBuffer, number: int = 1) -> SelfPlayStep:
    parts = (config, CODEC, Journal(engine), Executor())
    name = f"{number:06d}"
    return SelfPlayStep(config, number, name, buffer, Proposer(*parts), Solver(*parts), lambda name: nullcontext())


def test_a_refused_proposal_lets_a_stored_task_be_solved_while_others_are_still_proposed() -> None:
    async def run() -> None:
        engine = Engine(["<|program|>no form", proposal("a + 1")], late=("propose", "a + 1"))
        config = replace_play(CONFIG, proposer_prompts=2, solver_prompts=2)
        playing = asyncio.create_task(step(config, engine, seeded(config)).play())
        async with asyncio.timeout(5):
            while not any("a + 1" not in prompt and prompt != "propose" for prompt in engine.asked):
                await asyncio.sleep(0.01)
        engine.release.set()
        result = await playing
        solved = sorted(t.problem_id for t in result.trajectories if t.group.startswith("solve:"))
        assert solved == ["000001-deduction-0001", "seed-deduction"]

    asyncio.run(run())


def test_refusals_do_not_change_how_many_stored_tasks_are_solved() -> None:
    async def run() -> None:
        proposals = ["<|program|>no form"] * 4 + [proposal("a + 1"), proposal("a + 2")]
        config = replace_play(CONFIG, proposer_prompts=6, solver_prompts=5, train_on_estimates=False)
        result = await step(config, Engine(proposals), seeded(config)).play()
        solved = Counter(t.problem_id for t in result.trajectories if t.role is Role.SOLVER)
        assert solved == {"seed-deduction": 3, "000001-deduction-0004": 1, "000001-deduction-0005": 1}

    asyncio.run(run())


def test_a_straggler_belongs_to_the_next_step_in_this_process_and_in_the_next(tmp_path: Path) -> None:
    async def run() -> None:
        config, buffer = replace_play(PARTIAL, proposer_prompts=10, solver_prompts=10), seeded(PARTIAL)
        # The group that estimates one task takes long; its proposal has been sampled.
        engine = Engine([proposal(f"a + {n}") for n in range(10)], late=("solve", "a + 7"))
        first = await step(config, engine, buffer).play(is_last=False)
        assert first.proposal_stats["deduction"].proposed == 9 and len(first.stored) == 9
        assert [piece.origin.begins for piece in first.carried if piece.origin.index == 7] == ["propose", "follow"]
        InFlight([piece.leftover for piece in first.carried]).copy().write(tmp_path)
        engine.release.set()
        second = step(config, Engine(["<|program|>no form"] * 10), buffer, 2)
        here = await second.play(first.carried)

        again, refilled = Engine([]), seeded(PARTIAL)
        refilled.refill(first.stored)
        carried = step(config, again, refilled).begin_again(InFlight.read(tmp_path).leftovers)
        second = step(config, Engine(["<|program|>no form"] * 10), refilled, 2)
        there = await second.play(carried)
        assert again.asked["propose"] == 0, "a proposal that was sampled before is not sampled again"
        for result in (here, there):
            assert result.proposal_stats["deduction"].proposed == 11
            assert [task.id for task in result.stored] == ["000001-deduction-0007"] and not result.carried
        assert here.trajectories == there.trajectories
        both = Counter(t.problem_id for t in (*first.trajectories, *there.trajectories) if t.role is Role.PROPOSER)
        assert set(both.values()) == {1} and len(both) == 20

    asyncio.run(run())


def test_what_is_left_over_comes_back_as_it_was(tmp_path: Path) -> None:
    task = KINDS["deduction"].make_task("id", "def f(a):\n    return a", ("1",), ("1",))
    shown = Shown((task,), give_functions([task], 1))
    answered = {7: [completion([1, 2], "x<|end|>"), completion([1, 2], "y")]}
    made = {"step": 3, "name": "000003", "kind": "deduction"}
    leftovers = [
        Leftover(origin=Origin(begins="propose", index=2, shown=shown, **made), answered=answered),
        Leftover(origin=Origin(begins="follow", index=2, **made), answered={}),
        Leftover(origin=Origin(begins="solve", task=task, salt="new", **made), answered={}),
        Leftover(origin=Origin(begins="solve", task=task, salt=4, **made), answered={}),
    ]
    assert shown.functions is not None
    InFlight(leftovers).write(tmp_path)
    assert InFlight.read(tmp_path).leftovers == leftovers
    assert InFlight.read(tmp_path / "none").leftovers == ()
