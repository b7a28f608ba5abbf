"""Real programs that nobody here wrote give their recorded outcomes behind every wall."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from azr import values
from azr.executor.pool import SandboxPool
from azr.records import CallResult, CallStatus, ExecutionRequest
from tests.executor import public_data
from tests.executor.conftest import execute_many

pytestmark = pytest.mark.asyncio(loop_scope="session")

BATCH = 50


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


async def test_mbpp_solutions_pass_their_own_assertions(walled: SandboxPool):
    rows = [row for row in public_data.rows("MbppPlus.jsonl") if row["task_id"] not in public_data.IMPURE_SOLUTIONS]
    assert len(rows) == 377
    results = await execute_many(
        walled,
        [ExecutionRequest(program=public_data.mbpp_self_test(row), inputs=("",), repeats=2) for row in rows],
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


async def run_solutions(pool: SandboxPool, inputs_of: Callable[[dict[str, Any]], Sequence[str]]) -> int:
    """Runs every solution and returns the number of calls; none may fail for a reason that is not listed."""
    asked = [
        (row, request)
        for row in public_data.rows("MbppPlus.jsonl")
        for request in solution_requests(row, inputs_of(row))
    ]
    results = await execute_many(pool, [request for _, request in asked])
    outcomes = [(row, output) for (row, _), result in zip(asked, results, strict=True) for output in result.outputs]
    assert [(row["task_id"], output) for row, output in outcomes if not explained(row, output)] == []
    return len(outcomes)


async def test_mbpp_solutions_run_on_their_inputs_within_seconds(walled: SandboxPool):
    def quick_inputs(row: dict[str, Any]) -> list[str]:
        inputs = public_data.mbpp_inputs(row)
        return inputs[: len(row["base_input"])] if row["task_id"] in public_data.SLOW_SOLUTIONS else inputs

    assert await run_solutions(walled, quick_inputs) > 39_000


@pytest.mark.long
async def test_mbpp_solutions_run_on_all_their_inputs(walled: SandboxPool):
    assert await run_solutions(walled, public_data.mbpp_inputs) == 41_015
