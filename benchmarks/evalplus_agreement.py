"""Compares our verdicts on real and broken solutions of MBPP+ and HumanEval with those of evalplus's own grader.

    pip install --target SITE evalplus==0.3.1
    python -m benchmarks.evalplus_agreement --data DIR --evalplus SITE

Broken solutions are reference solutions with one operator, number, word or statement changed. evalplus runs them on
this machine without isolation, which is why nothing else is ever given to it.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import copy
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azr.config import ExecutorConfig
from azr.evaluation.suites import SUITES
from azr.graders import make_grader
from azr.graders.plain_json import decode
from azr.graders.programs import Calls
from azr.graders.question import Question
from azr.graders.sandboxed import answer_pool, call_program, calls
from azr.tasks.base import Verdict

SLOW = frozenset({"Mbpp/255", "Mbpp/630"})
"""Their reference solutions take minutes or gigabytes."""
SUITES_HERE = ("mbpp+", "humaneval")


@dataclass
class Sample:
    question: Question
    source: str
    theirs: dict[str, bool]


def mutations(source: str) -> Iterator[str]:
    """Programs that differ from this one in one place."""
    for index, node in enumerate(ast.walk(ast.parse(source))):
        tree = ast.parse(source)
        target = list(ast.walk(tree))[index]
        match node:
            case ast.Constant(value=bool() as value):
                target.value = not value  # type: ignore[attr-defined]
            case ast.Constant(value=int() as value):
                target.value = value + 1  # type: ignore[attr-defined]
            case ast.Constant(value=float() as value):
                target.value = value * (1 + 1e-9)  # type: ignore[attr-defined]
            case ast.Constant(value=str() as value) if value and "\n" not in value:
                target.value = value[:-1]  # type: ignore[attr-defined]
            case ast.BinOp(op=ast.Add()):
                target.op = ast.Sub()  # type: ignore[attr-defined]
            case ast.BinOp(op=ast.Sub()):
                target.op = ast.Add()  # type: ignore[attr-defined]
            case ast.BinOp(op=ast.Mult()):
                target.op = ast.Add()  # type: ignore[attr-defined]
            case ast.BinOp(op=ast.Div()):
                target.op = ast.FloorDiv()  # type: ignore[attr-defined]
            case ast.Compare(ops=[ast.Lt()]):
                target.ops = [ast.LtE()]  # type: ignore[attr-defined]
            case ast.Compare(ops=[ast.Gt()]):
                target.ops = [ast.GtE()]  # type: ignore[attr-defined]
            case ast.Compare(ops=[ast.Eq()]):
                target.ops = [ast.NotEq()]  # type: ignore[attr-defined]
            case ast.Return(value=ast.expr() as value):
                target.value = ast.Tuple([value], ast.Load())  # type: ignore[attr-defined]
            case ast.Call(func=ast.Name(id="sorted" | "list" | "tuple" | "set"), args=[_], keywords=[]):
                target.func = ast.Name("list" if node.func.id != "list" else "tuple", ast.Load())  # type: ignore
            case _:
                continue
        yield ast.unparse(ast.fix_missing_locations(tree))


async def recorded(questions: list[Question]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Arguments of all calls, by question; those that tests make are recorded."""
    found = {}
    async with answer_pool(ExecutorConfig(workers=2)) as pool:
        for question in questions:
            gold: Calls = question.gold
            found[question.id] = dict(gold.cases)
            if gold.recorder:
                ran = await calls(pool.execute, call_program(gold.recorder, "record"), ("[]",))
                found[question.id] = {"base": tuple(ran.values[0])}
    return found


def judge_theirs(samples: list[Sample], cases: dict[str, dict[str, tuple[str, ...]]]) -> None:
    from evalplus.eval import PASS, untrusted_check
    from evalplus.gen.util import trusted_exec

    expected: dict[tuple[str, str], Any] = {}
    for number, sample in enumerate(samples):
        question = sample.question
        gold: Calls = question.gold
        dataset = "humaneval" if question.suite.startswith("humaneval") else "mbpp"
        for part, texts in cases[question.id].items():
            inputs = [list(decode(json.loads(text))) for text in texts]
            key = question.id, part
            if key not in expected:
                none = gold.judge == "not none"
                expected[key] = trusted_exec(
                    gold.reference, copy.deepcopy(inputs), gold.entry, record_time=True, output_not_none=none
                )
            outputs, seconds = expected[key]
            state, _ = untrusted_check(
                dataset, sample.source, inputs, gold.entry, outputs, gold.atol, seconds, fast_check=True
            )
            sample.theirs[part] = state == PASS
            if not sample.theirs[part]:
                break
        if number % 100 == 0:
            print(f"evalplus: {number} of {len(samples)}", flush=True)


async def judge_ours(samples: list[Sample]) -> list[dict[str, bool] | None]:
    async with answer_pool(ExecutorConfig(workers=2)) as pool, make_grader("calls", pool) as grader:
        turn = asyncio.Semaphore(4)

        async def one(sample: Sample) -> dict[str, bool] | None:
            async with turn:
                said = await grader.grade(sample.question, f"```python\n{sample.source}\n```")
            return None if said.verdict is Verdict.UNGRADED else dict(said.parts)

        return list(await asyncio.gather(*map(one, samples)))


def choose(questions: list[Question], count: int) -> list[Sample]:
    """Real and broken solutions, the same ones every time."""
    chance = random.Random(0)
    pool: list[Sample] = []
    for question in questions:
        reference = question.gold.reference
        pool.append(Sample(question, reference, {}))
        broken = list(dict.fromkeys(mutations(reference)))
        pool += [Sample(question, source, {}) for source in chance.sample(broken, min(3, len(broken)))]
    return chance.sample(pool, min(count, len(pool)))


def read_questions(data: Path) -> list[Question]:
    return [question for name in SUITES_HERE for question in SUITES[name].read(data) if question.id not in SLOW]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--evalplus", required=True)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--write", type=Path, help="evalplus's verdicts as JSON, for the tests")
    arguments = parser.parse_args()
    # Behind all others, so that only what is missing here is taken from there.
    sys.path.append(arguments.evalplus)
    questions = read_questions(arguments.data)
    samples = choose(questions, arguments.samples)
    started = time.monotonic()
    judge_theirs(samples, asyncio.run(recorded(questions)))
    middle = time.monotonic()
    if arguments.write:
        rows = [[sample.question.id, sample.theirs] for sample in samples]
        arguments.write.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    ours = asyncio.run(judge_ours(samples))
    end = time.monotonic()
    table: Counter[str] = Counter()
    for sample, parts in zip(samples, ours, strict=True):
        theirs = {part: sample.theirs.get(part, False) for part in parts or {}}
        agree = parts is not None and parts == theirs
        table["agree" if agree else "ungraded" if parts is None else "differ"] += 1
        table["passes" if all(sample.theirs.values()) else "fails"] += 1
        if not agree:
            print(f"{sample.question.id}: evalplus {sample.theirs}, ours {parts}\n{sample.source}\n")
    print(f"{len(samples)} solutions, of which evalplus passes {table['passes']}: {table['agree']} verdicts agree "
          f"({table['agree'] / len(samples):.2%}), {table['differ']} differ, {table['ungraded']} ungraded; evalplus "
          f"took {middle - started:.0f} s, we took {end - middle:.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()
