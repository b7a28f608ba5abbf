"""The form with most valid proposals and right answers is recommended; a real model is asked elsewhere."""

import numpy as np

from azr.answering import given_up
from azr.evaluation.form_check import SAMPLES, Cell, FormCheck, _held_out
from azr.records import VALID, Role
from azr.tasks.base import RejectReason, Verdict
from azr.tasks.registry import KINDS
from tests.runs.factory import sample


def cell(form: str, role: Role, *verdicts: str) -> Cell:
    none = given_up(np.zeros(0, np.int32))
    return Cell(form, role, "deduction", [sample(role, verdict=each, completion=none) for each in verdicts])


def check(*cells: Cell) -> FormCheck:
    return FormCheck(cells, {}, lambda completion: "text")


def of_form(form: str, proposal: str, answer: str) -> tuple[Cell, Cell]:
    proposals = cell(form, "proposer", proposal, RejectReason.MALFORMED)
    return proposals, cell(form, "solver", answer, Verdict.WRONG)


def test_shares_of_a_cell_and_of_equal_forms_the_one_that_is_followed():
    proposals = cell("tokenizer", "proposer", VALID, RejectReason.FAILED, RejectReason.MALFORMED, VALID)
    assert (proposals.well_formed, proposals.good, proposals.tokens) == (0.75, 0.5, 0)
    answers = cell("tokenizer", "solver", Verdict.RIGHT, Verdict.WRONG, Verdict.MALFORMED, Verdict.MALFORMED)
    assert (answers.well_formed, answers.good) == (0.5, 0.25)
    found = check(
        *of_form("tokenizer", RejectReason.MALFORMED, Verdict.RIGHT),
        *of_form("conversation", RejectReason.FAILED, Verdict.RIGHT),
    )
    assert found.best == "conversation"


def test_the_form_with_most_that_can_be_used_is_recommended_or_none():
    found = check(
        *of_form("conversation", VALID, Verdict.WRONG),
        *of_form("tokenizer", VALID, Verdict.RIGHT),
        *of_form("completion", RejectReason.FAILED, Verdict.RIGHT),
    )
    assert found.best == "tokenizer" and found.learns
    assert found.advice() == (
        "Take tokenizer: --model.template tokenizer --selfplay.induction-inputs 4 (50% of its proposals are valid and "
        "50% of its answers right)."
    )
    assert len(found.table().splitlines()) == 1 + 6
    for proposal, answer in ((RejectReason.FAILED, Verdict.RIGHT), (VALID, Verdict.WRONG)):
        found = check(*of_form("tokenizer", proposal, answer))
        assert not found.learns
        assert found.advice().startswith(
            "This model will learn nothing by self-play: even in its best form, tokenizer, "
        )


def test_held_out_tasks_are_of_the_kind_and_of_several_difficulties():
    for kind in ("deduction", "abduction", "induction"):
        tasks = _held_out(kind, 4)
        assert len({task.id for task in tasks}) == SAMPLES and {task.kind for task in tasks} == {kind}
        assert len({len(task.program.splitlines()) for task in tasks}) > 1
        assert all(len(task.inputs) == (4 if kind == "induction" else 1) for task in tasks)
        assert KINDS[kind].solver_view(tasks[0])
