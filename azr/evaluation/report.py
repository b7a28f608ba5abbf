"""Results of an evaluation as JSON and Markdown table; two evaluations compared question by question."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from azr.errors import UserError
from azr.evaluation.answer_file import ANSWERS, read_answers
from azr.evaluation.scores import GREEDY, Estimate, Measure, Row, estimate, greedy_share, sampled_share, weighed
from azr.files import atomic_write
from azr.records import Sample, grouped

RESULTS, TABLE = "results.json", "table.md"
FORMAT = 1
"""Version of the results file."""
SAMPLED = "samples"
"""Measure: the share of right samples."""


def markdown(table: Sequence[Row]) -> str:
    """Return a table of shares in percent with 95% intervals; one line per row."""
    measures = list(dict.fromkeys(measure for row in table for measure in row.estimates))
    lines = [("suite", "questions", *measures, "truncated", "malformed", "ungraded", "tokens")]
    for row in table:
        found = [row.estimates.get(measure) for measure in measures]
        shares = (f"{100 * e.value:.1f} [{100 * e.low:.1f}, {100 * e.high:.1f}]" if e else "-" for e in found)
        failures = (f"{share:.1%}" for share in (row.truncated, row.malformed, row.ungraded))
        lines.append((row.name, str(row.questions), *shares, *failures, f"{row.tokens:.0f}"))
    return aligned(lines, left=1)


def aligned(lines: Sequence[Sequence[str]], left: int) -> str:
    """Return a Markdown table. The first line is its head; the first ``left`` columns are left-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def line(cells: Sequence[str]) -> str:
        pairs = enumerate(zip(cells, widths, strict=True))
        sides = (cell.ljust(width) if i < left else cell.rjust(width) for i, (cell, width) in pairs)
        return f"| {' | '.join(sides)} |"

    rule = ["-" * width if i < left else f"{'-' * (width - 1)}:" for i, width in enumerate(widths)]
    return "\n".join([line(lines[0]), line(rule), *map(line, lines[1:])])


def write_results(folder: Path, about: Mapping[str, Any] | None, table: Sequence[Row]) -> None:
    """Write results and table, each by rename. ``about`` None: only the rows of existing results change."""
    path = folder / RESULTS
    try:
        stated = json.loads(path.read_text(encoding="utf-8", errors="surrogatepass")) if about is None else about
        tree = {"format": FORMAT, **stated, "rows": [asdict(row) for row in table]}
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} holds no results: remove it, and --resume writes it again.") from error
    texts = {path: json.dumps(tree, indent=1, ensure_ascii=False), folder / TABLE: markdown(table)}
    for path, text in texts.items():
        try:
            with atomic_write(path) as staging:
                staging.write_text(f"{text}\n", encoding="utf-8", errors="surrogatepass")
        except OSError as error:
            raise UserError(f"{path} cannot be written ({error.strerror}): make room, then --resume.") from error


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
    return protocol, grouped(((answer.kind, answer.problem_id), answer) for answer in answers)


def compare(before: Path, after: Path) -> tuple[list[Difference], list[str]]:
    """Return the differences by suite, and the names of settings other than the model that differ. Raises UserError
    when one is not an evaluation, they share no question, or a suite's files differ."""
    (first, answers_before), (second, answers_after) = load(before), load(after)
    shared = [key for key in answers_before if key in answers_after]
    if not shared:
        raise UserError(f"{before} and {after} have no question in common: evaluate both on the same suites.")
    differences = []
    for suite in dict.fromkeys(suite for suite, _ in shared):
        if first["suites"][suite]["sha256"] != second["suites"][suite]["sha256"]:
            raise UserError(f"{before} and {after} read {suite} from different files: evaluate both on the same ones.")
        pairs = [(answers_before[key], answers_after[key]) for key in shared if key[0] == suite]
        for measure, share in ((GREEDY, greedy_share), (SAMPLED, sampled_share)):
            if (found := _difference(suite, measure, share, pairs)) is not None:
                differences.append(found)
    return differences, _others(first, second)


def gains(folder: Path) -> list[str]:
    """Return a sentence per suite on a run's last evaluation against its first; none for fewer than two."""
    try:
        differences = differences_of_run(folder)
    except UserError as error:  # of a run with other questions
        return [str(error)]
    sentences = []
    for each in differences:
        how = "greedily" if each.measure == GREEDY else "at temperature 1"
        told = f"{each.suite}: {100 * each.before:.1f}% to {100 * each.after:.1f}% of {each.questions} questions {how}"
        meaning = "a gain beyond" if each.gain.low > 0 else "a loss beyond" if each.gain.high < 0 else "within"
        sentences.append(f"{told}, {signed(each.gain, ' points')}: {meaning} chance")
    return sentences


def differences_of_run(folder: Path) -> list[Difference]:
    """Return how a run's last evaluation differs from its first, by suite; none for fewer than two. Raises UserError as
    `compare`."""
    paths = sorted(folder.glob("step_*.jsonl.gz"))
    if len(paths) < 2:
        return []
    differences, _ = compare(paths[0], paths[-1])
    return list({each.suite: each for each in differences}.values())  # of two measures the samples, which come last


def signed(gain: Estimate, unit: str = "") -> str:
    """Return a difference in points as text, such as ``+6.0 [+3.7, +8.4]``."""
    low, high = (100 * bound for bound in (gain.low, gain.high))
    return f"{100 * gain.value:+.1f}{unit} [{low:+.1f}, {high:+.1f}]"


def _difference(
    suite: str, measure: str, share: Measure, pairs: Sequence[tuple[Sequence[Sample], Sequence[Sample]]]
) -> Difference | None:
    shares = [(before[0], share(before), share(after)) for before, after in pairs]
    both = [(asked, start, end) for asked, start, end in shares if start is not None and end is not None]
    if not both:
        return None
    groups = weighed(suite, ((asked.group, (start, end)) for asked, start, end in both))
    return Difference(
        suite=suite,
        measure=measure,
        questions=len(both),
        before=fmean(fmean(start for start, _ in group) for group in groups),
        after=fmean(fmean(end for _, end in group) for group in groups),
        gain=estimate([[end - start for start, end in group] for group in groups], signed=True),
        won=tuple(asked.problem_id for asked, start, end in both if end > start),
        lost=tuple(asked.problem_id for asked, start, end in both if end < start),
    )


def _others(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return the names of settings that differ, except the model and the selection of questions."""
    names = [name for name in dict.fromkeys([*first, *second]) if name not in ("model", "suites")]
    found = [name for name in names if first.get(name) != second.get(name)]
    for suite, asked in first["suites"].items():
        messages = {each.get("messages_sha256") for each in (asked, second["suites"].get(suite, {}))}
        if len(messages - {None}) > 1:
            found.append(f"what {suite} asks")
    return found


def differences_table(differences: Sequence[Difference]) -> str:
    """Return a Markdown table in percent."""
    lines = [("suite", "measure", "questions", "A", "B", "B - A", "better", "worse")]
    for each in differences:
        shares = (f"{100 * each.before:.1f}", f"{100 * each.after:.1f}", signed(each.gain))
        lines.append((each.suite, each.measure, str(each.questions), *shares, str(len(each.won)), str(len(each.lost))))
    return aligned(lines, left=2)
