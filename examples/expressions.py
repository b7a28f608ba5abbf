"""A kind of self-play of one's own, without programs: make a target of given numbers. docs/extending.md says more.

The proposer writes an expression such as ``3 * (7 - 2)``; its numbers and its value become a task. The solver sees
both, and has to find an expression of the same numbers with this value. Both are read here, so nothing is executed.
"""

import ast
import hashlib
import operator

from azr.records import Task
from azr.tasks.base import RejectReason, TaskKind, Verdict, section_texts
from azr.tasks.prompts import Example, Instructions, Section

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
FEWEST, MOST, LARGEST = 2, 6, 99
RULES = "It holds whole numbers from 1 to 99, the operators +, - and *, and parentheses."
EXAMPLE = Example(thought="Two steps are too easy, so take three.", answer=(Section("output", "3 * (17 - 2) + 8"),))
SOLVED = Example(
    shown=(Section("input", "numbers 2, 3, 8, 17; target 53"),),
    thought="53 is 45 and 8, and 45 is 3 times 15, which is 17 - 2.",
    answer=(Section("output", "3 * (17 - 2) + 8"),),
)


def read(text: str) -> tuple[list[int], int] | None:
    """The numbers of an expression, sorted, and its value; None for anything else."""
    if len(text) > 100:
        return None
    try:
        numbers = list[int]()
        value = _value(ast.parse(text.strip(), mode="eval").body, numbers)
    except (SyntaxError, ValueError):
        return None
    return (sorted(numbers), value) if FEWEST <= len(numbers) <= MOST else None


def _value(node: ast.expr, numbers: list[int]) -> int:
    match node:
        case ast.BinOp(left, sign, right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](_value(left, numbers), _value(right, numbers))
        case ast.Constant(int(value)) if type(value) is int and 1 <= value <= LARGEST:
            numbers.append(value)
            return value
    raise ValueError("no arithmetic of small whole numbers")


class Expressions(TaskKind):
    name = "expressions"
    reference_kinds = ("expressions",)

    def task(self, id, expression, references=(), step=0):
        numbers, target = read(expression)
        given = ", ".join(map(str, numbers))
        return Task(
            id=id,
            kind=self.name,
            program="",
            inputs=(given,),
            outputs=(str(target),),
            message=expression.strip(),
            fingerprint=hashlib.sha256(f"{given} = {target}".encode()).hexdigest(),
            parents=tuple(reference.id for reference in references),
            step=step,
        )

    def seed(self):
        return self.task("seed-expressions", "1 + 2")

    def reference(self, task):
        return self.proposal(task)

    def proposal(self, task):
        return (Section("output", task.message),)

    async def validate(self, proposal, run):
        stated = section_texts(proposal.sections, "output")
        if stated is None or read(stated[0]) is None:
            return RejectReason.MALFORMED
        return self.task(proposal.id, stated[0], proposal.references, proposal.step)

    def solver_view(self, task):
        return (Section("input", f"numbers {task.inputs[0]}; target {task.outputs[0]}"),)

    def solution(self, task):
        return (Section("output", task.message),)

    async def grade(self, task, answer, run):
        stated = section_texts(answer, "output")
        found = None if stated is None else read(stated[0])
        if found is None:
            return Verdict.MALFORMED
        numbers, value = found
        right = ", ".join(map(str, numbers)) == task.inputs[0] and str(value) == task.outputs[0]
        return Verdict.RIGHT if right else Verdict.WRONG

    def proposer_instructions(self, facts):
        goal = "Invent an arithmetic expression. A solver will see its numbers and its value, and has to find one."
        return Instructions(task=f"{goal} {RULES}", blocks="one ```output block with the expression", example=EXAMPLE)

    def solver_instructions(self, facts):
        goal = "Find an arithmetic expression that holds exactly the given numbers, each as often, and has this value."
        return Instructions(task=f"{goal} {RULES}", blocks="one ```output block with the expression", example=SOLVED)


kinds = [Expressions()]
