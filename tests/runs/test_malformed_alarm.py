from __future__ import annotations

from pathlib import Path

import pytest

from azr.errors import RunEnded
from azr.records import Completion, Judgement, Reason, Role, Sample
from azr.runs.stop_signal import MalformedAlarm, shortened
from tests.runs.factory import sample

LOOK = Path("run/rollouts/step_000003.jsonl.gz")


def fine(role: Role) -> list[Sample]:
    return responses(role, ["malformed"] * 8 + ["right"] * 2)


def bad(role: Role, text: str = "raw", cut_off: int = 0) -> list[Sample]:
    samples = responses(role, ["right"] + ["malformed"] * (9 - cut_off), text)
    return samples + responses(role, ["right"] * cut_off, finish="length")


def responses(role: Role, verdicts: list[str], text: str = "raw", finish: str = "stop") -> list[Sample]:
    completion = Completion(
        prompt_ids=[1], response_ids=[*map(ord, text)], logprobs=0.0, finish_reason=finish,
        weight_versions=0,
    )  # fmt: skip
    judgements = [Judgement(verdict=each, reason=Reason.NO_BLOCK if each == "malformed" else "") for each in verdicts]
    return [sample(role, completion=completion, judgement=judgement) for judgement in judgements]


def alarm(lines: list[str], *, stop: bool = True) -> MalformedAlarm:
    return MalformedAlarm(lambda ids: "".join(map(chr, ids)), lines.append, stop=stop)


def test_one_line_shows_a_response_as_it_was_sampled_and_where_to_look() -> None:
    lines: list[str] = []
    alarm(lines).observe("step 3", bad("proposer", "a\nb<|im_end|>", cut_off=2) + fine("solver"), LOOK)
    assert lines == [
        "ALARM: 9 of 10 proposer responses of step 3 were malformed or cut off (7 no block, 2 cut off); one of them "
        f"reads 'a\\nb<|im_end|>'; all texts are in {LOOK}; what is asked is shown by azr prompts RECIPE"
    ]


def test_of_a_long_response_both_ends_are_shown_on_one_line() -> None:
    assert shortened("b" * 400) == repr("b" * 400)
    head, tail = repr("\n" * 200), repr("e" * 200)
    assert shortened("\n" * 250 + "e" * 250) == f"{head} [100 characters] {tail}"


def test_three_rounds_of_one_role_in_a_row_end_the_run() -> None:
    lines: list[str] = []
    watch = alarm(lines)
    for solver in (bad, bad, fine, bad, bad):
        watch.observe("a round", solver("solver") + fine("proposer"))
        watch.raise_if_over()
    unasked = sample("solver", finish="given_up", length=0, verdict="ungraded")
    watch.observe("a round without solvers", [unasked, *bad("proposer")])
    watch.raise_if_over()
    watch.observe("a round", bad("solver") + bad("proposer"))
    with pytest.raises(RunEnded, match=r"Over 80% of the solver responses .* in 3 rounds in a row"):
        watch.raise_if_over()
    assert len(lines) == 7


def test_the_alarm_goes_on_without_an_end_where_it_may_not_stop() -> None:
    lines: list[str] = []
    watch = alarm(lines, stop=False)
    for _ in range(5):
        watch.observe("a round", bad("solver"))
        watch.raise_if_over()
    assert len(lines) == 5
