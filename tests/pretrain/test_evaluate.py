from __future__ import annotations

import random

import pytest

from azr.config import ExecutorConfig
from azr.executor.pool import SandboxPool
from azr.pretrain.corpus import make_task
from azr.pretrain.evaluate import EvaluationConfig, evaluate, grade
from azr.pretrain.loop import Progress, ShapeConfig, new_model, save
from azr.tasks.base import Verdict
from azr.tasks.prompts import CompactStyle
from azr.tasks.registry import KINDS


@pytest.mark.parametrize("name", KINDS)
async def test_right_wrong_and_malformed_solutions_are_told_apart(name):
    rng, kind, style = random.Random(8), KINDS[name], CompactStyle()
    task, other = make_task(rng, name, 6), make_task(rng, name, 6)
    while other.outputs == task.outputs:
        other = make_task(rng, name, 6)
    right = style.response(kind.solution(task))
    responses = [right, "2" + right, "<|program|><|input|>"]
    async with SandboxPool(ExecutorConfig(workers=1)) as pool:
        verdicts = await grade(kind, [task] * 3, responses, pool.execute_many)
        (crossed,) = await grade(kind, [task], [style.response(kind.solution(other))], pool.execute_many)
    assert verdicts == [Verdict.RIGHT, Verdict.MALFORMED, Verdict.MALFORMED]
    assert crossed is not Verdict.RIGHT


async def test_an_untrained_model_solves_and_proposes_nothing(compact_tokenizer, tmp_path):
    tiny = ShapeConfig(hidden_size=32, layers=1, heads=1, kv_heads=1, intermediate_size=32)
    save(new_model(tiny, compact_tokenizer, seed=0), compact_tokenizer, tmp_path, Progress())
    config = EvaluationConfig(tasks=2, samples=2, proposals=2, max_new_tokens=8)
    async with SandboxPool(ExecutorConfig(workers=1)) as pool:
        report = await evaluate(tmp_path, config, pool.execute_many)
    assert set(report["solve"]) == set(report["propose"]) == set(KINDS)
    assert all(found["solve_rate"] == 0 and found["never"] == 1 for found in report["solve"].values())
    assert all(found["valid"] == 0 and found["refusals"] == {"malformed": 2} for found in report["propose"].values())
    assert (tmp_path / "evaluation.json").exists()
