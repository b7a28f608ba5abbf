"""Work that outlives its step, in this process or in another, and `rollout.refill`: a step proposes until enough tasks
are learnable, the same ones whatever finishes first."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from azr.config import ClusterConfig, Config, Replay, RolloutConfig, RunConfig, SelfPlayConfig
from azr.environments import Environment
from azr.execution import CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.experiment import play_ahead
from azr.records import Completion, Sample
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.chaining import is_chained
from azr.selfplay.journal import Journal, WorkItem, write_journal
from azr.selfplay.play import SelfPlayStep, StepResult
from azr.tasks.registry import KINDS
from tests.selfplay import test_play as scripted
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

    async def generate(self, prompt_ids: list[int], *, n: int, **_: object) -> list[Completion]:
        prompt = CODEC.decode(prompt_ids)
        proposes = prompt.startswith("<|propose|>")
        text = next(self._proposals) if proposes else "<|output|>3<|end|>"
        self.asked["propose" if proposes else prompt] += n
        if self._late[1] and self._late[1] in text + prompt and proposes == (self._late[0] == "propose"):
            await self.release.wait()
        return [completion(prompt_ids, text) for _ in range(n)]


def step(
    config: Config, engine: Engine, buffer: TaskBuffer, number: int = 1, journal: Journal | None = None
) -> SelfPlayStep:
    return scripted.self_play(config, engine, Executor(), buffer, number, journal=journal)


async def test_a_refused_proposal_lets_a_stored_task_be_solved_while_others_are_still_proposed() -> None:
    engine = Engine(["<|program|>no form", proposal("a + 1")], late=("propose", "a + 1"))
    config = replace_play(CONFIG, proposer_prompts=2, solver_prompts=2)
    playing = asyncio.create_task(step(config, engine, seeded(config)).play())
    async with asyncio.timeout(5):
        while not any("a + 1" not in prompt and prompt != "propose" for prompt in engine.asked):
            await asyncio.sleep(0.01)
    engine.release.set()
    result = await playing
    solved = sorted(t.problem_id for t in scripted.trained(result) if t.group.startswith("solve:"))
    assert solved == ["000001-deduction-0001", "seed-deduction"]


@pytest.mark.parametrize(("num_refused", "num_needed", "num_at_once"), [(5, 25, 10), (20, 25, 10), (5, 9, 0)])
async def test_a_step_begins_with_the_stored_tasks_that_the_last_one_needed_and_solves_as_many_as_without(
    num_refused: int, num_needed: int, num_at_once: int
) -> None:
    config = replace_play(CONFIG, proposer_prompts=40, solver_prompts=40)
    proposals = [proposal(f"a + {n}") for n in range(40 - num_refused)] + ["<|program|>no form"] * num_refused
    results = list[StepResult]()
    for needed in (num_needed, 0):
        engine = Engine(proposals, late=("propose", "<|program|>"))
        journal = Journal(engine.generate, 1.0)
        journal.stored_solves["deduction"] = needed
        playing = asyncio.create_task(step(config, engine, seeded(config), journal=journal).play())
        while engine.asked["propose"] < 40:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        num_solved = engine.asked.total() - 40
        assert num_solved == (num_at_once if needed else 0)
        engine.release.set()
        results.append(await playing)
        assert journal.stored_solves == {"deduction": num_refused}
        journal.recorded(1, results[-1].items)
        assert journal.copy(1) == [], "what was dropped is forgotten"
    assert results[0] == results[1]
    solved = [sample for sample in results[0].samples if sample.phase == "solve"]
    assert Counter(each.problem_id == "seed-deduction" for each in solved)[True] == num_refused and len(solved) == 40


def saved(journal: Journal, step: int, folder: Path, engine: Engine) -> Journal:
    """The journal as another process reads it."""
    write_journal(folder, journal.copy(step))
    restored = Journal(engine.generate, 1.0)
    restored.read(folder, step)
    return restored


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_straggler_belongs_to_the_next_step_in_this_process_and_in_the_next(restarted, tmp_path):
    config, buffer = replace_play(PARTIAL, proposer_prompts=10, solver_prompts=10), seeded(PARTIAL)
    # The group that estimates one task takes long; its proposal has been sampled.
    engine = Engine([proposal(f"a + {n}") for n in range(10)], late=("solve", "a + 7"))
    journal = Journal(engine.generate, 1.0)
    first = await step(config, engine, buffer, journal=journal).play(is_last=False)
    assert scripted.funnel(first, "deduction").proposed == 9 and len(first.stored) == 9
    assert [(item.begins, item.index) for item in journal.left_over[1]] == [("propose", 7)]
    journal.recorded(1, first.items)
    again = Engine(["<|program|>no form"] * 10)
    if restarted:
        old, journal = journal, saved(journal, 1, tmp_path, again)
        await old.close()
    else:
        journal._generate = again.generate
    engine.release.set()
    second = await step(config, again, buffer, 2, journal).play()
    assert again.asked["propose"] == 10, "a proposal that was sampled before is not sampled again"
    assert again.asked["<|deduction|>"] == 0
    assert scripted.funnel(second, "deduction").proposed == 11 and not journal.left_over[2]
    assert [task.id for task in second.stored] == ["000001-deduction-0007"]
    both = Counter(t.problem_id for t in (*scripted.trained(first), *scripted.trained(second)) if t.role == "proposer")
    assert set(both.values()) == {1} and len(both) == 20
    solved = Counter(t.group for t in scripted.trained(second) if t.problem_id == "000001-deduction-0007")
    id = "000001-deduction-0007"
    assert solved == {f"propose:{id}": 1, f"estimate:000001:{id}": 4, f"solve:000001:{id}": 1}
    journal.recorded(2, second.items)
    assert journal.copy(2) == []


async def test_a_carried_proposal_and_its_twin_are_a_task_and_a_duplicate() -> None:
    config, buffer = replace_play(PARTIAL, proposer_prompts=10, solver_prompts=10), seeded(PARTIAL)
    engine = Engine([proposal(f"a + {n}") for n in range(10)], late=("propose", "a + 7"))
    journal = Journal(engine.generate, 1.0)
    first = await step(config, engine, buffer, journal=journal).play(is_last=False)
    journal.recorded(1, first.items)
    engine.release.set()
    await asyncio.sleep(0.05)
    journal._generate = Engine([proposal("a + 7")] + ["<|program|>no form"] * 9).generate
    second = await step(config, engine, buffer, 2, journal).play()
    assert [task.id for task in second.stored] == ["000001-deduction-0007"]
    assert scripted.funnel(second, "deduction").rejected == {"duplicate": 1, "malformed": 9}


async def test_a_step_that_ends_while_a_proposal_is_rejected_can_be_resumed(tmp_path: Path) -> None:
    config = replace_play(PARTIAL, proposer_prompts=1, solver_prompts=1)
    # The proposal is rejected once its step has ended, so nothing follows it.
    engine = Engine(["<|program|>no form<|end|>"] * 2, late=("propose", "no form"))
    journal = Journal(engine.generate, 1.0)
    playing = asyncio.create_task(step(config, engine, seeded(config), journal=journal).play(is_last=False))
    await asyncio.sleep(0.05)
    playing.cancel()
    await asyncio.gather(playing, return_exceptions=True)
    restored = saved(journal, 0, tmp_path, engine)
    engine.release.set()
    await journal.close()
    result = await step(config, engine, seeded(config), 1, restored).play()
    assert scripted.funnel(result, "deduction").rejected == {"malformed": 1}


async def test_a_step_played_ahead_finds_its_answers_after_a_restart(tmp_path: Path) -> None:
    config = replace_play(PARTIAL, proposer_prompts=4, solver_prompts=4)
    engine, buffer = Engine([proposal(f"a + {n}") for n in range(4)]), seeded(config)
    journal = Journal(engine.generate, 1.0)
    ahead = await step(config, engine, buffer, 2, journal).play()
    silent = Engine([])
    resumed = saved(journal, 1, tmp_path, silent)
    again = await step(config, silent, seeded(config), 2, resumed).play()
    assert again == ahead and not silent.asked


async def test_a_request_goes_on_when_its_work_is_cancelled_and_is_not_made_again() -> None:
    engine = Engine(["<|program|>no form"], late=("propose", "no form"))
    journal = Journal(engine.generate, 1.0)
    item = WorkItem(step=1, name="000001", kind="deduction", begins="propose")
    prompt = CODEC.encode("<|propose|>")
    asking = asyncio.create_task(journal.open(item).generate(prompt, n=1, max_tokens=9, seed=7))
    await asyncio.sleep(0.01)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    other = CODEC.encode("<|program|>")  # what a program prints that runs again may differ
    (answer,) = await journal.open(item).generate(other, n=1, max_tokens=9, seed=7)
    assert answer.prompt_ids.tolist() == other
    engine.release.set()
    (answer,) = await journal.open(item).generate(prompt, n=1, max_tokens=9, seed=7)
    assert answer.prompt_ids.tolist() == prompt and engine.asked["propose"] == 1


@pytest.mark.parametrize(
    "change", [{}, {"n": 8}, {"n": 2}, {"max_tokens": 5}, {"max_tokens": 99}, {"temperature": 0.5}]
)
async def test_an_answer_is_taken_only_for_what_is_asked_now(change: dict[str, Any], tmp_path: Path) -> None:
    item, prompt = WorkItem(step=1, name="000001", kind="deduction", begins="solve"), CODEC.encode("<|deduction|>")
    asked, engine = {"n": 4, "max_tokens": 9, "seed": 7}, Engine([])
    journal = Journal(engine.generate, 1.0)
    await journal.open(item).generate(prompt, **asked)
    write_journal(tmp_path, journal.copy(0))
    resumed = Journal(engine.generate, change.pop("temperature", 1.0))
    resumed.read(tmp_path, 0)
    answers = await resumed.open(item).generate(prompt, **asked | change)
    assert len(answers) == change.get("n", 4)
    assert (engine.asked.total() > 4) == (resumed._temperature != 1.0 or bool(change))


def test_a_journal_comes_back_as_it_was(tmp_path: Path) -> None:
    task = KINDS["deduction"].make_task("id", "def f(a):\n    return a", ("1",), ("1",))
    made = {"step": 3, "name": "000003", "kind": "deduction"}
    items = [
        WorkItem(begins="propose", index=2, references=(task,), **made), WorkItem(begins="chain", task=task, **made),
        WorkItem(begins="follow", index=1, task=task, **made), WorkItem(begins="solve", task=task, salt="new", **made),
        WorkItem(begins="solve", task=task, salt=4, **made),
    ]  # fmt: skip
    journal = Journal(Engine([]).generate, 1.0)
    journal.left_over[3] = items
    answered = [completion([1, 2], "x<|end|>"), completion([1, 2], "y")]
    journal.open(items[0]).answers["seed 7"] = answered
    restored = saved(journal, 3, tmp_path, Engine([]))
    assert restored.copy(3) == journal.copy(3) and len(restored.left_over[3]) == len(items)
    assert restored.open(items[0]).answers == {"seed 7": answered}


async def random_result(request: ExecutionRequest) -> ExecutionResult:
    """The request decides what comes of it."""
    await asyncio.sleep(random.random() * 0.002)
    rng, status = random.Random(repr(request)), CallStatus.OK
    if rng.random() > 0.95:
        status = rng.choice([CallStatus.LOST, CallStatus.RAISED, CallStatus.TIMEOUT])
    is_ok = status is CallStatus.OK
    call = CallResult(status=status, value=rng.choice("34") if is_ok else None, error=None if is_ok else "E")
    return ExecutionResult(outputs=(call,) * len(request.inputs), deterministic=True if is_ok else None)


class Dice:
    """Stands where the engine stands: the request's seed decides the texts, and other dice how long they take."""

    def __init__(self, say: Callable[[random.Random, str], str], times: Any = random, gives_up: float = 0.0) -> None:
        """``say`` writes one response to a prompt; ``gives_up``: chance that some of a request's are lacking."""
        self._say, self._times, self._gives_up, self.asked = say, times, gives_up, Counter[int]()

    async def generate(self, prompt_ids: list[int], *, n: int, seed: int, **_: object) -> list[Completion]:
        self.asked[seed] += 1
        await asyncio.sleep(self._times.random() ** 6 * 0.05)
        rng, prompt = random.Random(seed), CODEC.decode(prompt_ids)
        count = rng.randint(0, n) if rng.random() < self._gives_up else n
        return [completion(prompt_ids, self._say(rng, prompt)) for _ in range(count)]


def anything(spread: int, rng: random.Random, prompt: str) -> str:
    """Answers every kind, often badly. ``spread``: how many different proposals there are."""
    if prompt.startswith("<|propose|><|induction|>"):
        inputs = "".join(f"<|input|>{rng.randint(0, spread) * 10 + i}" for i in range(rng.randint(1, 7)))
        return f"{inputs}<|message|>hint<|end|>"
    if prompt.startswith("<|propose|>"):
        return proposal(f"a + {rng.randint(0, spread)}") if rng.random() < 0.8 else "<|program|>never"
    if "<|induction|>" in prompt:
        return rng.choice(["<|program|>def f(a):\n    return 3<|end|>", "no<|end|>"])
    if "<|abduction|>" in prompt:
        return rng.choice(["<|input|>1<|end|>", "x<|end|>"])
    return rng.choice(["<|output|>3<|end|>", "<|output|>4<|end|>", "<|output|>4"])


def random_config(rng: random.Random) -> Config:
    is_partial, is_ahead = rng.random() < 0.5, rng.random() < 0.5
    on_estimates = rng.random() < 0.7
    selfplay = SelfPlayConfig(
        kinds=("deduction", "abduction", "induction"), proposer_prompts=rng.choice([1, 5, 12]),
        solver_prompts=rng.choice([0, 3, 12, 15]), references=2, group_size=(group_size := rng.choice([1, 4])),
        train_on_estimates=on_estimates, repeated_tasks=rng.choice([0, 4]) if on_estimates else 0,
        replay=rng.choice(get_args(Replay)), chained_tasks=rng.choice([0, 3]) if on_estimates else 0,
        derived_tasks=rng.choice([0, 2]) if on_estimates else 0, induction_inputs=4,
    )  # fmt: skip
    refill = rng.choice([1, 3]) if group_size > 1 else 1
    longest = {"max_prompt_tokens": 600, "max_response_tokens": 200}
    rollout = RolloutConfig(staleness=is_partial + is_ahead, partial=is_partial, refill=refill, **longest)
    run = RunConfig(deterministic=not rollout.staleness and rng.random() < 0.5)
    return Config(run=run, selfplay=selfplay, rollout=rollout, cluster=ClusterConfig(colocate=False))


async def played_run(config: Config, folder: Path, kill_rate: float, steps: int = 5) -> list[StepResult]:
    """Play some steps. A run that is killed, in any moment, continues after the last step that it recorded."""
    # Of equal proposals, who comes first is stored, so without an order there are none to compare runs by.
    spread = 30 if config.run.deterministic or config.rollout.partial else 10**9
    engine = Dice(partial(anything, spread), gives_up=0.03)
    done, proposals, state = list[StepResult](), Counter[str](), list[dict[str, object]]()
    while len(done) < steps:
        buffer, journal = TaskBuffer(config.selfplay.kinds), Journal(engine.generate, 1.0)
        buffer.restore(
            [KINDS[kind].seed() for kind in config.selfplay.kinds] + [t for each in done for t in each.stored]
        )
        write_journal(folder, state)
        journal.read(folder, len(done))
        buffer.read_rates(folder, len(done))
        # A head start of any size changes nothing: what turns out to be too much is dropped.
        journal.stored_solves = {kind: random.randint(0, 30) for kind in config.selfplay.kinds}
        for left in folder.iterdir():
            left.unlink()

        async def play(number: int, buffer: TaskBuffer = buffer, journal: Journal = journal) -> StepResult:
            executor = SimpleNamespace(execute=random_result)
            step = scripted.self_play(config, engine, executor, buffer, number, journal=journal)
            return await step.play(is_last=number == steps)

        is_killed, permits = random.random() < kill_rate, asyncio.Semaphore(1 + config.steps_ahead)
        try:
            async with (
                aclosing(play_ahead(play, range(len(done) + 1, steps + 1), permits)) as results,
                asyncio.timeout(random.random() * 0.2 if is_killed else 100),
            ):
                while len(done) < steps:
                    result = await anext(results)
                    await asyncio.sleep(random.random() * 0.01)  # while it is learned
                    permits.release()
                    check(result, buffer, proposals)
                    done.append(result)
                    journal.recorded(len(done), result.items)
                    buffer.recorded(len(done))
                    state = journal.copy(len(done))
        except TimeoutError:
            assert is_killed, "the run hangs"
            if random.random() < 0.5:  # the last checkpoint was written late
                state = journal.copy(len(done))
        finally:
            if len(done) < steps:
                buffer.write_rates(folder, len(done))
            await journal.close()
    assert not journal.left_over[steps]
    journal.recorded(steps + 1, [])
    assert journal.copy(steps + 1) == [], "nothing is kept for good"
    total = steps * config.selfplay.proposer_prompts * len(config.selfplay.kinds)
    assert set(proposals.values()) == {1}, "every proposal belongs to one step"
    assert total <= len(proposals) <= total * config.rollout.refill
    return done


def check(result: StepResult, buffer: TaskBuffer, proposals: Counter[str]) -> None:
    proposed = [sample for sample in result.samples if sample.role == "proposer"]
    proposals.update(sample.problem_id for sample in proposed)
    valid = {sample.problem_id for sample in proposed if sample.verdict == "valid"}
    stored = [task for task in result.stored if not is_chained(task)]
    assert {task.id for task in stored} == valid, "valid proposals are stored, each once"
    for sample in result.samples:
        assert (sample.reward is None) == (sample.used in ("ungraded", "recorded"))
        assert sample.reward is None or sample.reward in (1.0, -0.5, -1.0, 0.0) or 0 < sample.reward < 1
    for kind in buffer.sizes():
        fingerprints = [task.fingerprint for task in buffer.tasks(kind)]
        assert len(set(fingerprints)) == len(fingerprints)


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(12, 212), marks=pytest.mark.long)])
def test_random_runs_with_kills_lose_and_double_nothing_and_equal_undisturbed_ones(seeds, tmp_path, monkeypatch):
    """With partial rollouts the step of a straggler is a matter of time, so those runs are not compared."""
    monkeypatch.setattr("azr.selfplay.chaining.BAND", (0.0, 1.0))  # few answers are right
    num_chained = 0
    for seed in seeds:
        random.seed(seed)
        config = random_config(random.Random(seed))
        killed = asyncio.run(played_run(config, tmp_path, 0.7))
        num_chained += sum(is_chained(task) for step in killed for task in step.stored)
        if not config.rollout.partial:
            assert killed == asyncio.run(played_run(config, tmp_path, 0.0)), seed
    assert num_chained


WANTED, ASKS = 5, 3
REFILL = replace_play(
    replace(CONFIG, rollout=replace(CONFIG.rollout, refill=ASKS)), proposer_prompts=WANTED, solver_prompts=6
)


def taught(rng: random.Random, prompt: str, valid: float = 0.8) -> str:
    """Well-formed proposals at that rate; a task is solved always, never or sometimes."""
    if prompt.startswith("<|propose|>"):
        return proposal(f"a + {rng.randrange(10**9)}") if rng.random() < valid else "<|program|>no form"
    return f"<|output|>{3 if rng.random() < random.Random(prompt).choice([0.0, 0.5, 0.5, 1.0]) else 4}<|end|>"


def played(config: Config, engine: Dice, number: int = 1, journal: Journal | None = None) -> StepResult:
    journal = journal or Journal(engine.generate, 1.0)
    return asyncio.run(scripted.self_play(config, engine, Executor(), seeded(config), number, journal=journal).play())


def learnable(result: StepResult) -> list[bool]:
    """Whether each proposal became a learnable task, in the order of their indices."""
    proposed = sorted((each for each in result.samples if each.role == "proposer"), key=lambda each: each.problem_id)
    return [each.solve_rate is not None and 0 < each.solve_rate < 1 for each in proposed]


def groups(samples: list[Sample]) -> list[list[Sample]]:
    found = defaultdict[str, list[Sample]](list)
    for sample in samples:
        if sample.phase == "estimate":
            found[sample.group].append(sample)
    return list(found.values())


@pytest.mark.parametrize("is_deterministic", [False, True])
@pytest.mark.parametrize("number", range(1, 7))
def test_as_few_are_proposed_as_hold_enough_learnable_tasks_and_the_same_ones_in_any_order(number, is_deterministic):
    config = replace(REFILL, run=replace(REFILL.run, deterministic=is_deterministic))
    first, *others = (played(config, Dice(taught, random.Random(times)), number) for times in range(3))
    assert all(other == first for other in others)
    useful = learnable(first)
    assert len(useful) == WANTED * ASKS or (sum(useful) == WANTED and useful[-1])
    assert sum(each.phase == "solve" and each.used == "trained" for each in first.samples) == 6
    assert all(each.used == "trained" for each in first.samples if each.role == "proposer")
    for group in groups(first.samples):
        differ = len({each.accuracy for each in group}) > 1
        assert {each.used for each in group} == {"trained" if differ else "unlearnable"}
        assert all(each.reward is not None for each in group)


def test_asking_ends_at_its_bound_and_answers_that_only_estimate_stay_estimates() -> None:
    assert len(learnable(played(REFILL, Dice(partial(taught, valid=0.0))))) == WANTED * ASKS
    once = replace(REFILL, rollout=replace(REFILL.rollout, refill=1))
    result = played(once, Dice(taught))
    assert len(learnable(result)) == WANTED and {each.used for each in result.samples} == {"trained"}
    more, fewer = played(REFILL, Dice(taught)), {task.id for task in result.stored}
    assert fewer < {each.problem_id for each in more.samples}, "what is asked first does not change"
    result = played(replace_play(REFILL, train_on_estimates=False), Dice(taught))
    assert sum(learnable(result)) == WANTED
    assert {each.used for group in groups(result.samples) for each in group} == {"estimate"}


@pytest.mark.parametrize("seed", range(6))
def test_a_step_that_is_killed_goes_on_as_if_it_had_not_been(seed: int, tmp_path: Path) -> None:
    """A step that was played ahead is begun again in the same way."""
    straight = played(REFILL, Dice(taught), 2)
    rng = random.Random(seed)

    async def run() -> StepResult:
        engine = Dice(taught)
        journal = Journal(engine.generate, 1.0)
        for _ in range(3):
            step = scripted.self_play(REFILL, engine, Executor(), seeded(REFILL), 2, journal=journal)
            playing = asyncio.create_task(step.play())
            await asyncio.sleep(rng.random() * 0.03)
            write_journal(tmp_path, journal.copy(1))
            playing.cancel()
            await asyncio.gather(playing, return_exceptions=True)
            await journal.close()
            journal = Journal(engine.generate, 1.0)
            journal.read(tmp_path, 1)
        known = {number for each in journal._items.values() for number in each.answers}
        engine.asked.clear()
        result = await scripted.self_play(REFILL, engine, Executor(), seeded(REFILL), 2, journal=journal).play()
        assert not known & set(engine.asked), "what was answered is not asked again"
        return result

    assert asyncio.run(run()) == straight


class Once(Environment):
    """Asks once more."""

    async def respond(self, turn: Completion) -> list[int] | None:
        self.parts["turns"] += 1
        return CODEC.encode("<|input|>again") if self.parts["turns"] == 1 else None


async def test_solvers_talk_and_a_resumed_run_asks_no_turn_again(tmp_path: Path) -> None:
    engine, journal = Engine([proposal("a + 1")]), Journal(None, 1.0)
    config = replace_play(CONFIG, proposer_prompts=1, solver_prompts=1)

    async def play(generate: Callable[..., Any]) -> list[Sample]:
        journal._generate = generate
        playing = step(config, engine, seeded(config), journal=journal)
        playing.tool = partial(Once, CODEC, 4)
        return (await playing.play()).samples

    first = await play(engine.generate)
    solved = [each for each in first if each.role == "solver"]
    assert len(solved) == 5 and all(len(each.completion.observed) == 1 for each in solved)
    assert {each.verdict for each in solved} == {"right"} and {each.judgement.parts["turns"] for each in solved} == {2}
    write_journal(tmp_path, journal.copy(1))
    journal = Journal(None, 1.0)
    journal.read(tmp_path, 1)
    assert [each.completion for each in await play(pytest.fail)] == [each.completion for each in first]
