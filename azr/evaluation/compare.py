"""Compare two evaluations question by question: the difference with its interval, and which questions changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from azr.errors import UserError
from azr.evaluation.answer_file import read_answers
from azr.evaluation.estimates import Estimate, estimate
from azr.evaluation.report import ANSWERS, aligned
from azr.evaluation.scores import GREEDY, greedy_share, sampled_share
from azr.evaluation.suites import SUITES
from azr.evaluation.suites.loading import top
from azr.records import Sample

SAMPLED = "samples"
"""Measure: the share of right samples."""
_MAY_DIFFER = ("model",)
_SUITES, _MESSAGES = "suites", "messages_sha256"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Difference between two evaluations on the questions of a suite that both have graded."""

    suite: str
    measure: str
    questions: int
    before: float
    after: float
    gain: Estimate
    """``after`` - ``before``, with a bootstrap interval over paired questions."""
    won: tuple[str, ...]
    """Ids of questions on which ``after`` is better."""
    lost: tuple[str, ...]


def load(folder: Path) -> tuple[dict[str, Any], dict[tuple[str, str], list[Sample]]]:
    """Return the protocol, and the answers by suite and question. Raises UserError as `read_answers`."""
    protocol, answers = read_answers(folder / ANSWERS if folder.is_dir() else folder, texts=False)
    by_question: dict[tuple[str, str], list[Sample]] = {}
    for answer in answers:
        by_question.setdefault((answer.kind, answer.problem_id), []).append(answer)
    return protocol, by_question


def compare(before: Path, after: Path) -> tuple[list[Difference], list[str]]:
    """Return the differences by suite, and the names of settings other than the model that differ.

    Raises UserError when one is not an evaluation, they share no question, or a suite's files differ.
    """
    (first, answers_before), (second, answers_after) = load(before), load(after)
    shared = [key for key in answers_before if key in answers_after]
    if not shared:
        raise UserError(f"{before} and {after} have no question in common: evaluate both on the same suites.")
    for suite in dict.fromkeys(suite for suite, _ in shared):
        files = [protocol[_SUITES][suite]["sha256"] for protocol in (first, second)]
        if files[0] != files[1]:
            raise UserError(f"{before} and {after} read {suite} from different files: evaluate both on the same ones.")
    differences = []
    for suite in dict.fromkeys(suite for suite, _ in shared):
        pairs = [(answers_before[key], answers_after[key]) for key in shared if key[0] == suite]
        for measure, share in ((GREEDY, greedy_share), (SAMPLED, sampled_share)):
            found = _difference(suite, measure, share, pairs)
            if found is not None:
                differences.append(found)
    return differences, _others(first, second)


def _difference(
    suite: str,
    measure: str,
    share: Callable[[Sequence[Sample]], float | None],
    pairs: Sequence[tuple[Sequence[Sample], Sequence[Sample]]],
) -> Difference | None:
    alike = suite in SUITES and SUITES[suite].groups_alike
    groups: dict[str, list[tuple[float, float]]] = {}
    won: list[str] = []
    lost: list[str] = []
    for before, after in pairs:
        start, end = share(before), share(after)
        if start is None or end is None:
            continue
        groups.setdefault(top(before[0].group) if alike else "", []).append((start, end))
        if start != end:
            (won if end > start else lost).append(before[0].problem_id)
    if not groups:
        return None
    return Difference(
        suite=suite,
        measure=measure,
        questions=sum(map(len, groups.values())),
        before=fmean(fmean(start for start, _ in group) for group in groups.values()),
        after=fmean(fmean(end for _, end in group) for group in groups.values()),
        gain=estimate([[end - start for start, end in group] for group in groups.values()]),
        won=tuple(won),
        lost=tuple(lost),
    )


def _others(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the names of settings that differ, except the model and the selection of questions."""
    names = [name for name in dict.fromkeys([*first, *second]) if name not in (*_MAY_DIFFER, _SUITES)]
    found = [name for name in names if first.get(name) != second.get(name)]
    for suite, asked in first[_SUITES].items():
        messages = {each.get(_MESSAGES) for each in (asked, second[_SUITES].get(suite, {}))}
        if len(messages - {None}) > 1:
            found.append(f"what {suite} asks")
    return found


def table(differences: Sequence[Difference]) -> str:
    """Return a Markdown table in percent."""
    lines = [("suite", "measure", "questions", "A", "B", "B - A", "better", "worse")]
    for each in differences:
        low, high = (100 * bound for bound in (each.gain.low, each.gain.high))
        gain = f"{100 * each.gain.value:+.1f} [{low:+.1f}, {high:+.1f}]"
        shares = (f"{100 * each.before:.1f}", f"{100 * each.after:.1f}", gain)
        lines.append((each.suite, each.measure, str(each.questions), *shares, str(len(each.won)), str(len(each.lost))))
    return aligned(lines, left=2)
