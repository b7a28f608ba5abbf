"""A kind of self-play of one's own, with programs: break a program, and mend it. docs/extending.md says more.

The proposer sees a program with known inputs and breaks it, so that it returns something else for some of the known
inputs. The solver sees the broken program and what the first half of the inputs should give, and has to mend it. What
it writes is run on all inputs. This is SSR (arXiv 2512.18552) in miniature: bugs that one model hides from itself.
"""

from dataclasses import replace

from azr.execution import ExecutionRequest
from azr.tasks.base import RejectReason, TaskKind, Verdict, grade_outputs, reject_reason, section_texts
from azr.tasks.normalize import fingerprint, is_program
from azr.tasks.prompts import Example, Instructions, Section
from azr.tasks.registry import program_rules

WHOLE = "def f(numbers):\n    return sum(numbers) - min(numbers, default=0)"
BROKEN = "def f(numbers):\n    return sum(numbers) - max(numbers, default=0)"
PAIRS = {"[1, 2]": "2", "[5, 5]": "5", "[3, 1, 2]": "5", "[]": "0"}
BREAKING = Example(
    thought="If the largest number is left out in place of the smallest, lists of equal numbers hide it.",
    answer=(Section("program", BROKEN),),
)
MENDING = Example(
    shown=(Section("program", BROKEN), Section("input", "[1, 2]"), Section("output", "2")),
    thought="It returns 1 for [1, 2], and 2 is wanted: the smallest number is to be left out, not the largest.",
    answer=(Section("program", WHOLE),),
)


def whole_of(task):
    """Return the program before it was broken."""
    return task.payload.get("whole", task.program)


class Repair(TaskKind):
    name = "repair"
    reference_kinds = ("induction", "repair")

    def task(self, id, broken, whole, inputs, outputs, references=(), step=0):
        made = self.make_task(id, broken, inputs, outputs, parents=references, step=step)
        return replace(made, payload={"whole": whole})

    def fingerprint(self, program, inputs):
        return fingerprint(program, *sorted(inputs))

    def io_pairs(self, task):
        """None: the outputs are those of the whole program."""
        return ()

    def seed(self):
        return self.task("seed-repair", BROKEN, WHOLE, tuple(PAIRS), tuple(PAIRS.values()))

    def reference(self, task):
        return (Section("program", whole_of(task)), *(Section("input", text) for text in task.inputs))

    def references_per_prompt(self, count):
        return 1

    def proposal(self, task):
        return (Section("program", task.program),)

    async def validate(self, proposal, run):
        stated, whole = section_texts(proposal.sections, "program"), proposal.references[0]
        broken = stated[0].strip("\n") if stated is not None else ""
        if not is_program(broken):
            return RejectReason.MALFORMED
        if len(broken.encode("utf-8", "surrogatepass")) > proposal.source_bytes:
            return RejectReason.TOO_LARGE
        result = await run(ExecutionRequest(program=broken, inputs=whole.inputs, repeats=proposal.repeats))
        if reason := reject_reason(result):
            return reason
        if grade_outputs(result, whole.outputs) is Verdict.RIGHT:
            return RejectReason.FAILED  # nothing is broken
        parts = (broken, whole_of(whole), whole.inputs, whole.outputs)
        return self.task(proposal.id, *parts, proposal.references, proposal.step)

    def solver_view(self, task):
        pairs = list(zip(task.inputs, task.outputs, strict=True))[: len(task.inputs) // 2]
        shown = [Section(*each) for pair in pairs for each in zip(("input", "output"), pair, strict=True)]
        return (Section("program", task.program), *shown)

    def solution(self, task):
        return (Section("program", task.payload["whole"]),)

    async def grade(self, task, answer, run):
        stated = section_texts(answer, "program")
        if stated is None or not is_program(stated[0].strip("\n")):
            return Verdict.MALFORMED
        result = await run(ExecutionRequest(program=stated[0].strip("\n"), inputs=task.inputs))
        return grade_outputs(result, task.outputs)

    def proposer_instructions(self, facts):
        goal = (
            "Break the Python program below, Reference 1: change it so that it returns something else for some of the "
            "inputs, and raises nothing. A solver will see your program and what some inputs should give, and has to "
            "mend it. Make the bug hard to find."
        )
        return Instructions(
            task=f"{goal}\n\n{program_rules(facts)}", blocks="one ```python block with the program", example=BREAKING
        )

    def solver_instructions(self, facts):
        goal = (
            "The Python program below has a bug. You see some inputs with the outputs that they should give. Write the "
            "mended program, which will also be run on inputs that you are not shown."
        )
        return Instructions(
            task=f"{goal}\n\n{program_rules(facts)}", blocks="one ```python block with the program", example=MENDING
        )


kinds = [Repair()]
