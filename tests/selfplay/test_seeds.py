"""Seed files: what is read, what is refused and why, and what a run then starts from, with the real sandbox."""

import asyncio
import gzip
import json
from collections import Counter
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import pytest_asyncio

from azr.config import Config, ExecutorConfig, RolloutConfig, SelfPlayConfig
from azr.errors import UserError
from azr.executor.pool import SandboxPool
from azr.prompts.codec import PromptCodec
from azr.records import Sample, Task
from azr.selfplay import seeds
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.seeding import fill_buffer
from azr.selfplay.seeds import read_seeds
from azr.tasks.normalize import fingerprint, held_out_keys
from azr.tasks.prompts import CompactFormat
from azr.tasks.registry import IDENTITY, KINDS
from tests.conftest import byte_tokenizer
from tests.selfplay.test_play import Script, half_right, proposal
from tests.tables import table

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = Config(
    selfplay=SelfPlayConfig(kinds=("deduction", "induction"), proposer_prompts=2, references=1, seed_tasks=1),
    rollout=RolloutConfig(max_prompt_tokens=400, max_response_tokens=200),
    executor=ExecutorConfig(workers=2, wall_s=5.0),
)
CODEC = PromptCodec(byte_tokenizer(), CompactFormat())
EXAM = "def f(a):\n    return a * 1000"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool():
    async with SandboxPool(CONFIG.executor) as pool:
        yield pool


def line(program: str, *inputs: str, kind: str = "deduction", outputs: tuple[str, ...] = (), **more) -> str:
    task = Task(id="t", kind=kind, program=program, inputs=inputs, outputs=outputs, fingerprint="", **more)
    return json.dumps(asdict(task))


def body(expression: str) -> str:
    return f"def f(a):\n    return {expression}"


LINES = [
    line(body("a + 1"), "1", outputs=("7",), step=9, solve_rate=0.5, parents=("x",)), '{"kind": "deduction", ', "",
    line(body("a + 2"), "1", outputs=("3",)), '{"kind": "deduction", "inputs": ["1"]}',
    line(body("a + 3"), "1", kind="deductions"), '{"kind": "deduction", "program": 3, "inputs": ["1"]}', "[1]",
    line("def f(b):  # the same\n    return b + 1", "2"), line("import random\n" + body("random.random()"), "1"),
    line(body("[id(object()), a]"), "1"), line(body("a // 0"), "1"), line(EXAM, "1"),
    line(body("a"), "1", kind="abduction"), line("g = 3", "1"), line(body("a") + "\n" + "#" * 400, "1"),
    line(body("a * 2"), "1", "2", "'x'", kind="induction", outputs=("2", "4.0", "'xx'"), message="Twice."),
    line(body("a * 3"), "1", "2"), line(body("a * 4")),
    line(body("a * 5"), "1", "1.0", kind="induction", message="Repeats."),
    '{"kind": "deduction", "program": "\\ud800", "inputs": ["1"]}', "\udcff",
    line(body("a + 4"), "1", "2", kind="induction", message="\ud800"),
    line(body("-" * 150 + "a"), "1", "2", kind="induction", message="Deep."),
    line(body("a + 0x" + "f" * 4000), "1", "2", kind="induction", message="Long."),
    line("f = lambda a: a", "1", "2", kind="induction", message="No function."),
]  # fmt: skip


def seeding(path, pool, config: Config = CONFIG, proposals: tuple[str, ...] = (), record=None):
    """A seeding with its buffer and file, the tasks that it stores and the lines that it prints."""
    buffer = TaskBuffer(config.selfplay.kinds, benchmark={fingerprint(EXAM): "question 1"})
    stored: list[Task] = []
    said: list[str] = []

    refused = path.with_name("seeds_rejected.jsonl")
    proposed: list[Sample] = []
    fill = partial(
        fill_buffer, buffer, replace(config, selfplay=replace(config.selfplay, seeds=str(path))),
        read_seeds(path) if path.exists() else None, codec=CODEC, generate=Script(list(proposals), half_right).generate,
        execute=pool.execute, phase=lambda name: nullcontext(), log=said.append, refused=refused,
    )  # fmt: skip

    async def run() -> None:
        async for _, grown in fill():
            stored.extend(grown.stored)
            proposed.extend(grown.samples)
            if record is not None and grown.samples:
                record(list(proposed))

    return SimpleNamespace(run=run, buffer=buffer, refused=refused), stored, said


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "seeds.jsonl"
    path.write_bytes("\n".join(LINES).encode("utf-8", "surrogateescape"))
    return path


async def test_every_task_is_checked_anew_and_every_refusal_has_its_line_and_reason(path, pool):
    work, stored, said = seeding(path, pool)
    await work.run()
    refused = {each["line"]: each for each in map(json.loads, work.refused.read_text().splitlines())}
    assert list(refused) == sorted(refused)
    assert {number: each["reason"] for number, each in refused.items()} == dict(table(__file__, "refused seeds"))
    details = dict(table(__file__, "details of refused seeds"))
    assert {number: word for number, word in details.items() if word not in refused[number]["detail"]} == {}
    assert [task.id for task in stored] == ["seed-000001", "seed-000004", "seed-000017"]
    assert [task.outputs for task in stored] == [("2",), ("3",), ("2", "4", "'xx'")]
    assert {(task.step, task.solve_rate, task.parents) for task in stored} == {(0, None, ())}
    assert stored == [task for kind in CONFIG.selfplay.kinds for task in work.buffer.tasks(kind)]
    assert said[0].startswith("seeds: 3 of 25 tasks of ") and "1 with another output than stated" in said[0]
    assert "refused 9 broken, 6 malformed, " in said[0] and said[0].endswith(f"see {work.refused}")
    assert said[1] == "tasks to start from: 2 deduction, 1 induction"


AUTHORS = table(__file__, "records of the authors")
"""Records as the Absolute Zero authors' code writes them."""


async def test_records_of_the_authors_are_tasks_beside_those_of_ours(path, pool):
    path.write_text("".join(f"{json.dumps(record)}\n" for record in AUTHORS) + line(body("a + 1"), "1"))
    config = replace(CONFIG, selfplay=replace(CONFIG.selfplay, kinds=("deduction", "abduction", "induction")))
    work, stored, said = seeding(path, pool, config)
    await work.run()
    assert [(task.id, task.outputs) for task in stored] == [
        ("seed-000001-deduction", ("2.0",)), ("seed-000001-abduction", ("2.0",)),
        ("seed-000002-deduction", ("False",)), ("seed-000002-abduction", ("False",)),
        ("seed-000003-induction", ("1", "'x'")), ("seed-000006", ("2",)),
    ]  # fmt: skip
    assert stored[0].program == "import math\ndef f(a):\n    return math.sqrt(a)"
    assert stored[2].program.count("import math") == 1 and stored[4].message == "Same."
    refused = [json.loads(text) for text in work.refused.read_text().splitlines()]
    assert [(each["line"], each["reason"]) for each in refused] == [
        (4, "broken"), (5, "not_allowed"), (5, "not_allowed"),
    ]  # fmt: skip
    assert "`input`" in refused[0]["detail"] and "2 with another output than stated" in said[0]


async def test_a_record_of_one_call_may_be_of_another_kind(path, pool):
    """As of the authors' error tasks: a run that plays neither deduction nor abduction reads its own kinds."""
    path.write_text(json.dumps({"snippet": body("a // 0"), "input": "1", "output": "ZeroDivisionError"}))
    ((_, task),) = read_seeds(path, ["error"])
    assert (task.kind, task.inputs, task.id) == ("error", ("1",), "seed-000001-error")


async def test_only_what_is_too_few_grows_and_a_kind_without_seeds_starts_from_the_identity(tmp_path, pool):
    path = tmp_path / "seeds.jsonl.gz"
    path.write_bytes(gzip.compress(f"{line(body('a + 1'), '1')}\n{line(body('a + 2'), '1')}\n".encode()))
    kinds = replace(CONFIG, selfplay=replace(CONFIG.selfplay, kinds=("deduction", "abduction"), seed_tasks=2))
    work, stored, _ = seeding(path, pool, kinds, (proposal("a + 8"), proposal("a + 9")))
    await work.run()
    assert work.buffer.sizes() == {"deduction": 2, "abduction": 3}
    assert [task.id for task in stored] == [
        "seed-000001", "seed-000002", "seed-abduction", "seed0-abduction-0000", "seed0-abduction-0001",
    ]  # fmt: skip
    enough = replace(kinds, selfplay=replace(kinds.selfplay, seed_tasks=0))
    work, _, _ = seeding(path, pool, enough)
    await work.run()
    assert work.buffer.sizes() == {"deduction": 2, "abduction": 1}


async def test_without_a_file_all_kinds_grow_from_the_identity_until_the_smallest_has_enough(tmp_path, pool):
    kinds = replace(CONFIG, selfplay=replace(CONFIG.selfplay, kinds=("deduction", "abduction"), seed_tasks=2))
    config = replace(kinds, selfplay=replace(kinds.selfplay, proposer_prompts=1))
    # Of the first round one proposal fails, so both kinds have another.
    proposals = (proposal("a + 1"), proposal("a // 0"), proposal("a + 3"), proposal("a + 4"))
    recorded: list[list[Sample]] = []

    work, stored, _ = seeding(tmp_path / "none", pool, config, proposals, recorded.append)
    await work.run()
    assert work.buffer.sizes() == {"deduction": 3, "abduction": 2} and len(stored) == 5
    assert [len(each) for each in recorded] == [2, 4]
    assert Counter(each.judgement.verdict for each in recorded[-1]) == {"valid": 3, "failed": 1}
    assert not any(each.reward_parts for each in recorded[-1]), "nothing of it is rewarded"
    assert [task.id for task in stored[:2]] == ["seed-deduction", "seed-abduction"]


async def test_a_file_without_any_task_that_passes_is_a_users_mistake_and_says_where_to_look(path, pool):
    path.write_text(line(body("a // 0"), "1"))
    work, stored, _ = seeding(path, pool)
    with pytest.raises(UserError, match=r"None of the 1 lines of .* became a task \(1 failed\): read .*rejected.jsonl"):
        await work.run()
    assert json.loads(work.refused.read_text())["line"] == 1 and not stored


@pytest.mark.parametrize("data, said", [
    (None, "No such file or directory"), (b"", r"holds no task \(it is empty\)"), (b"\n\n", "it is empty"),
    (b"\n{", r"holds no task \(line 2: it is not JSON"), (b"{}", "line 1: the line is not a task"),
    (b"[" * 100_000, "line 1: its JSON is nested too deep"),
])  # fmt: skip
async def test_a_file_without_any_task_is_refused_in_one_sentence(tmp_path, data, said):
    path = tmp_path / "seeds.jsonl"
    if data is not None:
        path.write_bytes(data)
    with pytest.raises(UserError, match=said) as raised:
        read_seeds(path)
    assert "\n" not in str(raised.value) and str(path) in str(raised.value)


async def test_a_first_task_that_is_held_out_is_named(tmp_path, pool):
    work, _, _ = seeding(tmp_path / "none", pool)
    work.buffer._benchmark = {key: "question 3 of mine" for key in held_out_keys(IDENTITY)}
    with pytest.raises(UserError, match="kind deduction cannot be stored, for it equals question 3 of mine: leave"):
        await work.run()


async def test_what_seeding_asks_for_ends_with_it() -> None:
    asked = asyncio.Event()
    ended: list[int] = []

    async def generate(prompt_ids, *, seed, **_):
        asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(seed)

    async def seed() -> None:
        config = replace(CONFIG, selfplay=replace(CONFIG.selfplay, seeds=None, seed_tasks=2))
        rounds = fill_buffer(
            TaskBuffer(config.selfplay.kinds), config, None, codec=CODEC, generate=generate, execute=None,
            phase=lambda name: nullcontext(), log=print, refused=Path("none"),
        )  # fmt: skip
        async for _ in rounds:
            pass

    seeding = asyncio.create_task(seed())
    await asked.wait()
    seeding.cancel()
    await asyncio.gather(seeding, return_exceptions=True)
    assert ended


async def test_a_file_may_begin_with_a_byte_order_mark_and_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "seeds.jsonl"
    path.write_text(line(body("a + 1"), "1"), encoding="utf-8-sig")
    assert [task.program for _, task in read_seeds(path)] == [body("a + 1")]
    (tmp_path / "seeds.jsonl.gz").write_bytes(gzip.compress(b"{}\n" * 1000)[:-9])
    with pytest.raises(UserError, match="cannot be read"):
        read_seeds(tmp_path / "seeds.jsonl.gz")


async def test_every_kinds_own_seed_is_a_line_that_passes(path, pool):
    config = replace(CONFIG, selfplay=replace(CONFIG.selfplay, kinds=tuple(KINDS)))
    path.write_text("".join(json.dumps(asdict(kind.seed())) + "\n" for kind in KINDS.values()))
    work, stored, _ = seeding(path, pool, config)
    await work.run()
    wanted = [kind.seed() for kind in KINDS.values()]
    assert [replace(task, id="") for task in stored] == [replace(task, id="") for task in wanted]


async def test_inputs_may_be_written_as_expressions_and_repeats_of_an_induction_are_dropped(path, pool):
    inputs = ("'x' * 2", "a = 3", "'xx'", "list(range(2))", "3.0", "a=4")
    path.write_text(
        line(body("a * 2"), *inputs, kind="induction", message="Twice.") + "\n" + line(body("a"), "lambda: 1")
    )
    work, stored, _ = seeding(path, pool)
    await work.run()
    assert [task.inputs for task in stored if task.kind == "induction"] == [("'xx'", "3", "[0, 1]", "4")]
    (refused,) = map(json.loads, work.refused.read_text().splitlines())
    assert refused["line"] == 2 and refused["reason"] == "malformed"


@pytest.mark.parametrize("content", [b"0" * 10**6, b"{}\n" * 10**6], ids=["one line", "many lines"])
def test_a_bomb_of_gzip_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    (tmp_path / "seeds.jsonl.gz").write_bytes(gzip.compress(content))
    monkeypatch.setattr(seeds, "MOST_BYTES", 10**5)
    with pytest.raises(UserError, match="holds over 0 GiB of text: split it"):
        read_seeds(tmp_path / "seeds.jsonl.gz")
