"""Real programs that nobody here wrote give their recorded outcomes behind every wall."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from azr import values
from azr.execution import CallResult, CallStatus, ExecutionRequest
from azr.executor.pool import SandboxPool
from azr.records import Task
from azr.tasks.base import RejectReason
from azr.tasks.normalize import parse_program
from azr.tasks.prompts import PromptFacts
from azr.tasks.registry import program_rules
from benchmarks import seed_tasks
from tests.executor import public_data
from tests.executor.conftest import execute_many

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    # People and models write odd escapes and comparisons.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning"),
]

BATCH = 50


@pytest.mark.long
async def test_all_of_cruxeval_gives_the_recorded_outputs(walled: SandboxPool):
    rows = public_data.rows("cruxeval.jsonl")
    assert len(rows) == 800
    requests = []
    for row in rows:
        program, arguments = public_data.cruxeval_call(row)
        requests.append(ExecutionRequest(program=program, inputs=(arguments,), repeats=2))
    results = await execute_many(walled, requests)
    assert {row["id"]: result for row, result in zip(rows, results, strict=True) if not result.deterministic} == {}
    returned = {row["id"]: result.outputs[0].value for row, result in zip(rows, results, strict=True)}
    others = {
        row["id"]: returned[row["id"]]
        for row in rows
        if not values.equal(values.parse(returned[row["id"]]), values.parse(row["output"]))
    }
    assert others == public_data.DEVIATIONS


async def test_an_input_that_is_an_expression_is_refused_where_arguments_are_stated(walled: SandboxPool):
    rows = [row for row in public_data.rows("cruxeval.jsonl") if row["id"] in public_data.EXPRESSION_INPUTS]
    assert len(rows) == len(public_data.EXPRESSION_INPUTS)
    results = await execute_many(
        walled, [ExecutionRequest(program=row["code"], inputs=(row["input"],)) for row in rows]
    )
    assert {result.outputs[0].status for result in results} == {CallStatus.REJECTED}
    assert all(result.outputs[0].error.startswith("argument text: ") for result in results)


@pytest.mark.long
async def test_mbpp_solutions_pass_their_own_assertions(walled: SandboxPool):
    rows = [row for row in public_data.rows("MbppPlus.jsonl") if row["task_id"] not in public_data.IMPURE_SOLUTIONS]
    assert len(rows) == 377
    results = await execute_many(
        walled, [ExecutionRequest(program=public_data.mbpp_self_test(row), inputs=("",), repeats=2) for row in rows]
    )
    wrong = {
        row["task_id"]: result
        for row, result in zip(rows, results, strict=True)
        if not result.deterministic or [output.value for output in result.outputs] != ["True"]
    }
    assert wrong == {}


def solution_requests(row: dict[str, Any], inputs: Sequence[str]) -> list[ExecutionRequest]:
    program, static_check = public_data.mbpp_program(row), row["task_id"] not in public_data.IMPURE_SOLUTIONS
    return [
        ExecutionRequest(program=program, inputs=tuple(inputs[start : start + BATCH]), static_check=static_check)
        for start in range(0, len(inputs), BATCH)
    ]


def explained(row: dict[str, Any], output: CallResult) -> bool:
    """Whether a call returned plain data, or else is listed with the reason why it could not."""
    status, says = public_data.UNSTATABLE.get(row["task_id"], ("ok", ""))
    return (
        output.status is CallStatus.OK
        or (output.status == status and says in output.error)
        or (output.status is CallStatus.MEMORY and row["task_id"] in public_data.MEMORY_HUNGRY)
    )


@pytest.mark.long
async def test_mbpp_solutions_run_on_all_their_inputs(walled: SandboxPool):
    """None may fail for a reason that is not listed."""
    asked = [
        (row, request)
        for row in public_data.rows("MbppPlus.jsonl")
        for request in solution_requests(row, public_data.mbpp_inputs(row))
    ]
    results = await execute_many(walled, [request for _, request in asked])
    outcomes = [(row, output) for (row, _), result in zip(asked, results, strict=True) for output in result.outputs]
    assert [(row["task_id"], output) for row, output in outcomes if not explained(row, output)] == []
    assert len(outcomes) == 41_015


SAMPLED = slice(7, None, 16)
"""Of the seed tasks, those that every backend runs in the short form."""


def _stated(program: str, given: str) -> Task:
    return Task(id="t", kind="deduction", program=program.strip("\n"), inputs=(given,), outputs=("",), fingerprint="")


def _why(row: seed_tasks.Checked) -> str:
    if parse_program(row.stated.program) is None:
        return "`f` takes no argument"
    found = seed_tasks.refusal(row)
    return "unexplained" if found is None else found.what


def _refused(checked: Sequence[seed_tasks.Checked]) -> dict[int, str]:
    """Reasons by line."""
    return {row.line: _why(row) for row in checked if isinstance(row.outcome, RejectReason)}


async def test_each_refusal_of_a_program_as_a_proposal_has_a_reason_that_is_listed(backend: str):
    async with SandboxPool(replace(seed_tasks.EXECUTOR, backend=backend), seed=0) as pool:
        for name, programs in public_data.proposals().items():
            ids = list(programs)
            stated = [(line, _stated(*programs[each])) for line, each in enumerate(ids)]
            refused = _refused(await seed_tasks.check(stated, pool.execute))
            assert {ids[line]: why for line, why in refused.items()} == public_data.REFUSED_PROPOSALS[name]


@pytest.mark.parametrize("taken", [SAMPLED, pytest.param(slice(None), marks=pytest.mark.long)], ids=["sample", "all"])
async def test_seed_tasks_come_out_alike_behind_every_wall(backend: str, taken: slice):
    stated = seed_tasks.rows(public_data.file(seed_tasks.FILE))
    assert len(stated) == 3200
    async with SandboxPool(replace(seed_tasks.EXECUTOR, backend=backend), seed=0) as pool:
        checked = await seed_tasks.check(stated[taken], pool.execute)
    lines = {line for line, _ in stated[taken]}
    expected = {line: why for line, why in public_data.REFUSED_SEED_TASKS.items() if line in lines}
    assert len(checked) == len(lines) and len(expected) > 5
    assert _refused(checked) == expected


def _table() -> str:
    """What docs/executor.md shows: refusals by reason and data set."""
    seeds = Counter(public_data.REFUSED_SEED_TASKS.values())
    counts = {name: Counter(refused.values()) for name, refused in public_data.REFUSED_PROPOSALS.items()}
    lines = [
        "| refused, because it | CRUXEval | MBPP+ | seed tasks |",
        "|---|---|---|---|",
        "| (programs) | 800 | 378 | 3,200 |",
    ]
    reasons = sorted({*seeds, *counts["CRUXEval"], *counts["MBPP+"]}, key=lambda why: (-seeds[why], why))
    for why in reasons:
        lines.append(f"| {why} | {counts['CRUXEval'][why]} | {counts['MBPP+'][why]} | {seeds[why]} |")
    totals = [sum(each.values()) for each in (counts["CRUXEval"], counts["MBPP+"], seeds)]
    return "\n".join([*lines, "| **all** | " + " | ".join(f"**{total}**" for total in totals) + " |"])


async def test_the_docs_say_what_is_refused_of_each_data_set():
    assert _table() in Path("docs", "executor.md").read_text(), _table()


async def test_what_imports_a_package_is_refused_for_a_reason_that_the_prompt_states(pool: SandboxPool):
    rules = program_rules(PromptFacts(induction_inputs=10, modules=("math",), wall_s=1.0))
    assert re.search(r"Every other module is refused, such as [^.]*\bnumpy\b", rules)
    result = await pool.execute(ExecutionRequest(program="import numpy as np\ndef f(x): return x", inputs=("1",)))
    assert result.static_check == ("line 1: imports numpy",)
