"""Find the answer part of a response, by the rule that its prompt states and `reward.format` chooses."""

from __future__ import annotations

from azr.records import Reason
from azr.tasks.prompts import THINK, THOUGHT, ResponseFormat

ANSWER, ANSWERED = "<answer>", "</answer>"


def answer_part(response: str, prompt: str, form: ResponseFormat) -> str | Reason:
    """Return the text in which an answer counts, or why there is none.

    ``strict``: the text after the thinking, or in the one answer part right after it, as far as the prompt speaks of
    thinking and of answer tags. ``answer``: the last answer part if the prompt speaks of one, wherever it is.
    ``thought``: everything after the thinking, which must be closed whatever the prompt says.

    Example: ``answer_part("4, so</think><answer>4</answer>", "… Assistant: <think>", "strict")``
    """
    has_answer = ANSWER in prompt and ANSWERED in prompt
    if form == "answer":
        return _last_part(response) if has_answer else response.rpartition(THOUGHT)[2]
    thought, closed, rest = response.partition(THOUGHT)
    if not closed:
        if form == "thought" or THINK in thought or _asks_for_thinking(prompt):
            return Reason.UNCLOSED_THINKING
        rest = response
    if form == "thought":
        return rest
    if THINK in rest or THOUGHT in rest:
        return Reason.UNCLOSED_THINKING
    return _only_part(rest, right_away=bool(closed)) if has_answer else rest


def _asks_for_thinking(prompt: str) -> bool:
    """Whether a prompt opens the thinking or speaks of its tags. One that ends with closed thinking asks for none."""
    end = prompt.rstrip()
    return end.endswith(THINK) or (THINK in prompt and THOUGHT in prompt and not end.endswith(THOUGHT))


def _last_part(response: str) -> str | Reason:
    before, closed, _ = response.rpartition(ANSWERED)
    _, opened, part = (before if closed else response).rpartition(ANSWER)  # the end of the turn ends it, too
    return part if opened else Reason.NO_ANSWER


def _only_part(rest: str, *, right_away: bool) -> str | Reason:
    before, opened, after = rest.partition(ANSWER)
    part, closed, after = after.partition(ANSWERED)
    if not (opened and closed):
        return Reason.NO_ANSWER
    if ANSWER in part or ANSWER in after:
        return Reason.TWO_ANSWERS
    return Reason.MISPLACED_ANSWER if right_away and before.strip() else part
