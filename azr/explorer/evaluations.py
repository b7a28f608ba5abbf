"""Evaluations of a folder, within a run or by `azr eval`, and their pages: two evaluations side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from azr.evaluation.answer_file import ANSWERS, without_texts
from azr.explorer.markup import Child, Html, el, join, table
from azr.explorer.pages import outcome
from azr.explorer.record_files import ROLLOUTS, LinePlace, Problem, read_lines, read_records
from azr.explorer.site import BadAddress, Links, ShownRun, choice, paging, select, whole
from azr.records import FinishReason, Sample
from azr.runs.sample_file import read_sample
from azr.tasks.base import Verdict

LIMIT = 100
"""Most questions on a page."""
MAX_REPORTED = 40
"""Most questions in a report."""
GREEDY = "greedy"
CHANGES = {
    "": "all questions",
    "better": "right more often on the right side",
    "worse": "right more often on the left side",
    "wrong": "never right on either side",
}
Values = Mapping[str, str]
Key = tuple[str, str]
"""Suite and id of a question."""


@dataclass(frozen=True, slots=True)
class EvalSide:
    """Answers of one evaluation by suite and question."""

    title: str
    path: Path
    answers: Mapping[Key, Sequence[Sample]]
    """Without their texts, which memory might not hold."""
    places: Mapping[Key, Sequence[LinePlace]]
    problems: Sequence[str]

    def share(self, key: Key) -> float | None:
        """Return the share of right answers to a question; None if none was graded."""
        verdicts = [each.verdict for each in self.answers.get(key, ())]
        graded = [verdict == Verdict.RIGHT for verdict in verdicts if verdict != Verdict.UNGRADED]
        return sum(graded) / len(graded) if graded else None

    def whole(self, key: Key) -> list[Sample]:
        """Return all answers to a question with their texts. Raises `Problem`."""
        return read_records(self.path, self.places.get(key, ()), read_sample)


def eval_files(run: Path) -> list[tuple[str, str, Path]]:
    """Return name in addresses, title and path of the evaluations within the run by step, then of `azr eval` by folder.

    The title of an evaluation that is the folder itself is empty.
    """
    within = sorted(
        (int(match[1]), path)
        for path in _entries(run / "evaluations")
        if (match := ROLLOUTS.fullmatch(path.name)) is not None
    )
    files = [(str(step), f"step {step}", path) for step, path in within]
    folders = sorted(folder for folder in _entries(run / "eval") if (folder / ANSWERS).is_file())
    files += [(f"eval-{folder.name}", f"azr eval, {folder.name}", folder / ANSWERS) for folder in folders]
    return [*files, ("eval", "", run / ANSWERS)] if (run / ANSWERS).is_file() else files


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def known_sides(runs: Sequence[ShownRun], number: int) -> dict[str, tuple[str, Path]]:
    """Return titles and paths of the evaluations of all runs by their names in addresses, this run's first."""
    known: dict[str, tuple[str, Path]] = {}
    for place in [number, *(other for other in range(len(runs)) if other != number)]:
        run_name = runs[place].name
        for name, title, path in eval_files(runs[place].index.run):
            full = ", ".join(filter(None, [run_name if len(runs) > 1 else "", title]))
            known[f"{place}-{name}"] = (full or run_name, path)
    return known


def read_side(title: str, path: Path) -> EvalSide:
    """Read the answers of an evaluation, and note the problems of its file."""
    try:
        stat = path.stat()
    except OSError as error:
        return EvalSide(title, path, {}, {}, [f"{path.name} cannot be read: {error.strerror}"])
    return EvalSide(title, path, *_answers(path, stat.st_size, stat.st_mtime_ns))


@lru_cache(maxsize=8)
def _answers(
    path: Path, size: int, mtime_ns: int
) -> tuple[Mapping[Key, Sequence[Sample]], Mapping[Key, Sequence[LinePlace]], Sequence[str]]:
    """Return answers, their places and problems, of a file as it was at that time.

    `azr.evaluation.answer_file` refuses a damaged file; here its readable lines are shown.
    """
    answers: dict[Key, list[Sample]] = {}
    places: dict[Key, list[LinePlace]] = {}
    problems: list[str] = []
    bad, name = 0, f"{path.parent.name}/{path.name}"
    for n, item in enumerate(read_lines(path)):
        if isinstance(item, Problem):
            problems.append(f"{name}: {item}")
            continue
        place, line = item
        if n == 0 and line.startswith(b'{"protocol"'):
            continue
        try:
            each = without_texts(read_sample(line))
        except ValueError:
            bad += 1
            continue
        key = each.kind, each.problem_id
        answers.setdefault(key, []).append(each)
        places.setdefault(key, []).append(place)
    if bad:
        problems.append(f"{name}: {bad} of its lines are no answers")
    return answers, places, problems


@dataclass(frozen=True, slots=True)
class Sides:
    """Two evaluations to compare, and their names in the address."""

    left: EvalSide
    right: EvalSide
    named: Mapping[str, str]
    choices: Sequence[tuple[str, str]]
    """Value and text of every evaluation."""

    @property
    def keys(self) -> list[Key]:
        return sorted({*self.left.answers, *self.right.answers}, key=_by_numbers)

    @property
    def shown(self) -> list[EvalSide]:
        """Both sides, or one if they are the same."""
        return [self.left] if self.named["left"] == self.named["right"] else [self.left, self.right]

    def changed(self, how: str) -> list[Key]:
        """Return the questions that changed in this way, a key of `CHANGES`."""
        return [key for key in self.keys if _is(how, self.left.share(key), self.right.share(key))]

    def group(self, key: Key) -> str:
        """Return the group of a question."""
        return next(each.group for side in (self.left, self.right) for each in side.answers.get(key, ()))


def evaluations(runs: Sequence[ShownRun], number: int, links: Links, values: Values) -> Html:
    """Return the page of questions with their outcomes on both sides."""
    sides = _sides(runs, number, values)
    if sides is None:
        return join([el("h1", "Evaluations"), el("p", "There are no answers of an evaluation here yet.", cls="note")])
    suites = sorted({suite for suite, _ in sides.keys})
    suite = choice(values, "suite", ["", *suites], "")
    change = choice(values, "change", [*CHANGES], "")
    shown = [key for key in sides.changed(change) if suite in ("", key[0])]
    offset = whole(values, "offset") or 0
    form = links.form(
        select("left side", "left", sides.choices, sides.named["left"]),
        select("right side", "right", sides.choices, sides.named["right"]),
        select("suite", "suite", [("", "all"), *((each, each) for each in suites)], suite),
        select("which", "change", [*CHANGES.items()], change),
    )
    pages = paging(links, "evaluations", values, offset, LIMIT, len(shown))
    rows = _question_table(sides, shown[offset : offset + LIMIT], links)
    return join([el("h1", "Evaluations"), _notes(sides), form, _totals(sides, shown), pages, rows, pages])


def question(runs: Sequence[ShownRun], number: int, links: Links, values: Values) -> Html:
    """Return the page of one question with all its answers on both sides."""
    sides = _sides(runs, number, values)
    key = (values.get("suite", ""), values.get("id", ""))
    if sides is None or key not in sides.keys:
        raise BadAddress(f"There is no answer to the question {key[1]!r} of the suite {key[0]!r}.")
    return join([
        el("h1", f"Question {key[1]} of {key[0]}"),
        el("p", links.link("all questions", "evaluations", **sides.named)),
        _notes(sides),
        _answered(sides, key, every_response=True),
    ])  # fmt: skip


def reported_questions(runs: Sequence[ShownRun], number: int) -> tuple[Sides, list[Key]] | None:
    """Return the first and last evaluation of a run, and the questions of a report; None without evaluations.

    The questions are those that changed, balanced between both directions; the first ones if none changed.
    """
    sides = _sides(runs, number, {})
    if sides is None:
        return None
    better, worse = sides.changed("better"), sides.changed("worse")
    of_worse = worse[: max(MAX_REPORTED // 2, MAX_REPORTED - len(better))]
    changed = better[: MAX_REPORTED - len(of_worse)] + of_worse
    return sides, sorted(changed, key=_by_numbers) or sides.keys[:MAX_REPORTED]


def reported(sides: Sides, keys: Sequence[Key], links: Links, anchors: Sequence[str | None]) -> Html:
    """Return the part of a report on two evaluations and these questions."""
    total, num_changed = len(sides.keys), len(sides.changed("better")) + len(sides.changed("worse"))
    held = f"{len(keys)} of the {num_changed} that changed" if num_changed else str(len(keys))
    held += "; none changed" if not num_changed and len(sides.shown) > 1 else ""
    sentence = (
        f"Of {total} questions this file holds {held}. The other questions, and what was said in samples, are in the "
        "run's files: azr view shows them."
    )
    shown = []
    for key, anchor in zip(keys, anchors, strict=True):
        heading = el("h2", f"Question {key[1]} of {key[0]}")
        shown.append(el("section", heading, _answered(sides, key, every_response=False), id=anchor))
    return join([
        el("h1", "Evaluations"), _notes(sides), _totals(sides, sides.keys), el("p", sentence, cls="dim"),
        _question_table(sides, keys, links), *shown,
    ])  # fmt: skip


def _question_table(sides: Sides, keys: Sequence[Key], links: Links) -> Html:
    rows: list[list[Child]] = []
    for key in keys:
        link = links.link(key[1], "question", **sides.named, suite=key[0], id=key[1])
        rows.append([link, key[0], sides.group(key), *(cell for side in sides.shown for cell in _cells(side, key))])
    measured = (f"{side.title}: {what}" for side in sides.shown for what in ("greedy", "all right"))
    heads = ["question", "suite", "group", *measured]
    return table(heads, rows)


def _answered(sides: Sides, key: Key, *, every_response: bool) -> Html:
    columns, prompt = [], ""
    for side in sides.shown:
        try:
            answers = side.whole(key)
        except Problem as problem:
            columns.append(el("section", el("h3", side.title), el("p", str(problem), cls="note")))
            continue
        shown = [_shown(each, every_response) for each in answers] or [el("p", "It was not asked.", cls="dim")]
        columns.append(el("section", el("h3", side.title), *shown))
        prompt = prompt or next((each.prompt for each in answers), "")
    shown_prompt = el("details", el("summary", "prompt"), el("pre", prompt), open=every_response and len(prompt) < 3000)
    return join([shown_prompt, el("div", *columns, cls="sides")])


def _shown(each: Sample, every_response: bool) -> Html:
    name = GREEDY if each.index is None else f"sample {each.index}"
    cut_off = "" if each.finish_reason is FinishReason.STOP else ", cut off"
    said = f"{name}, {each.response_tokens} tokens{cut_off} "
    answer = None if each.judgement is None else each.judgement.answer
    read_as = None if answer is None else el("p", "read as ", el("code", "\n".join(text for _, text in answer)))
    if each.index is not None and not every_response:
        return el("div", el("p", said, outcome(each.verdict)), read_as)
    summary = el("summary", said, outcome(each.verdict))
    return el("details", summary, read_as, el("pre", each.response), open=each.index is None)


def _by_numbers(key: Key) -> tuple[str, str]:
    """Sort key that puts sample_9 before sample_10."""
    return key[0], re.sub(r"\d+", lambda digits: digits[0].zfill(12), key[1])


def _notes(sides: Sides) -> Html:
    sentences = dict.fromkeys([*sides.left.problems, *sides.right.problems])
    return join(el("p", each, cls="note") for each in sentences)


def _totals(sides: Sides, keys: Sequence[Key]) -> Html:
    """Return the table of shares of right answers to these questions."""
    rows: list[list[Child]] = []
    for side in sides.shown:
        shares = [share for key in keys if (share := side.share(key)) is not None]
        greedy = [
            float(each.verdict == Verdict.RIGHT)
            for key in keys
            for each in side.answers.get(key, ())
            if each.index is None and each.verdict != Verdict.UNGRADED
        ]
        rows.append([side.title, len(shares), _percent(greedy), _percent(shares)])
    return table(["", "questions", "greedy right", "all answers right"], rows)


def _percent(shares: Sequence[float]) -> str:
    return f"{sum(shares) / len(shares):.1%}" if shares else "-"


def _cells(side: EvalSide, key: Key) -> tuple[Child, Child]:
    answers = side.answers.get(key, ())
    greedy = [outcome(each.verdict) for each in answers if each.index is None]
    right = sum(each.verdict == Verdict.RIGHT for each in answers)
    return join(greedy) if greedy else "-", f"{right} of {len(answers)}" if answers else "-"


def _is(change: str, left: float | None, right: float | None) -> bool:
    if change == "":
        return True
    if change == "wrong":
        return not left and not right
    if left is None or right is None:
        return False
    return right > left if change == "better" else left > right


def _sides(runs: Sequence[ShownRun], number: int, values: Values) -> Sides | None:
    """Return the evaluations that the address names as ``left`` and ``right``; by default first and last of the run.

    A run without evaluations shows those of `azr eval`; a single one is shown beside another run's last.
    """
    known = known_sides(runs, number)
    of_run = [name for name in known if name.startswith(f"{number}-")]
    if not of_run:
        return None
    candidates = [name for name in of_run if name.partition("-")[2].isdigit()] or of_run
    others = [name for name in known if name not in of_run]
    named = {
        "left": choice(values, "left", [*known], candidates[0]),
        "right": choice(values, "right", [*known], (others or of_run)[-1] if len(of_run) == 1 else candidates[-1]),
    }
    left, right = (read_side(*known[name]) for name in named.values())
    return Sides(left, right, named, [(name, title) for name, (title, _) in known.items()])
