"""The kind kind_name: the proposer writes whole numbers, and the solver puts them in ascending order."""

import hashlib

from azr.records import Task
from azr.tasks.base import RejectReason, TaskKind, Verdict, section_texts
from azr.tasks.prompts import Example, Instructions, Section

FEWEST, MOST, LARGEST = 2, 12, 999
RULES = f"There are {FEWEST} to {MOST} whole numbers from 0 to {LARGEST}, with spaces between them."
PROPOSED = Example(
    thought="Numbers that lie close together are easily mixed up.", answer=(Section("numbers", "17 7 71 1"),)
)
SOLVED = Example(
    shown=(Section("numbers", "17 7 71 1"),),
    thought="1 is the least, then 7, then 17, and 71 comes last.",
    answer=(Section("ascending", "1 7 17 71"),),
)


def read(text):
    """The numbers of a text that a model wrote, which may be anything; None when it is not of the asked form."""
    words = text.split()
    if not FEWEST <= len(words) <= MOST or not all(word.isascii() and word.isdigit() for word in words):
        return None
    numbers = [int(word) for word in words if len(word) <= 3]
    return numbers if len(numbers) == len(words) else None


class KindName(TaskKind):
    name = "kind_name"
    reference_kinds = ("kind_name",)  # kinds whose tasks a proposer may be shown
    labels = ("numbers", "ascending")  # of the sections that prompts and responses are made of

    def task(self, id, numbers, references=(), step=0):
        """A task holds what it is about in its payload, as JSON has it: there is no program here."""
        return Task(
            id=id,
            kind=self.name,
            program="",
            inputs=(),
            outputs=(),
            payload={"numbers": numbers},
            fingerprint=hashlib.sha256(str(sorted(numbers)).encode()).hexdigest(),  # equal for what counts as the same
            parents=tuple(reference.id for reference in references),
            step=step,
        )

    def seed(self):
        """The first task."""
        return self.task("seed-kind_name", [2, 1])

    async def validate(self, proposal, run):
        """The task that a proposal becomes, or why it becomes none. ``await run(request)`` executes a program."""
        stated = section_texts(proposal.sections, "numbers")
        numbers = read(stated[0]) if stated else None
        if numbers is None:
            return RejectReason.MALFORMED
        return self.task(proposal.id, numbers, proposal.references, proposal.step)

    async def grade(self, task, answer, run):
        """The verdict on an answer."""
        stated = section_texts(answer, "ascending")
        numbers = read(stated[0]) if stated else None
        if numbers is None:
            return Verdict.MALFORMED
        return Verdict.RIGHT if numbers == sorted(task.payload["numbers"]) else Verdict.WRONG

    def proposal(self, task):
        """What a proposer would have written for this task."""
        return (Section("numbers", " ".join(map(str, task.payload["numbers"]))),)

    reference = proposal  # a past task as proposers see it
    solver_view = proposal  # what the solver sees of a task

    def solution(self, task):
        """A right answer."""
        return (Section("ascending", " ".join(map(str, sorted(task.payload["numbers"])))),)

    def proposer_instructions(self, facts):
        goal = (
            "Invent whole numbers that are hard to sort without a computer. A solver will put them in ascending order."
        )
        return Instructions(task=f"{goal} {RULES}", blocks="one ```numbers block", example=PROPOSED)

    def solver_instructions(self, facts):
        goal = "Put the given numbers in ascending order, each as often as it is given."
        return Instructions(task=f"{goal} {RULES}", blocks="one ```ascending block with all of them", example=SOLVED)
