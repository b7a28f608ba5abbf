"""Evaluations of a folder, within a run or by `azr eval`, and their pages: two evaluations side by side."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from statistics import fmean, stdev

from markupsafe import Markup

from azr.evaluation.answer_file import ANSWERS, without_texts
from azr.explorer.record_files import ROLLOUTS, LinePlace, Problem, read_places, read_samples
from azr.explorer.site import BadAddress, Links, ShownRun, Values, choice, render, whole
from azr.records import Sample
from azr.tasks.base import Verdict

LIMIT = 100
"""Most questions on a page."""
CHANGES = {
    "": "all questions, those that changed first",
    "better": "right more often on the right side",
    "worse": "right more often on the left side",
    "wrong": "never right on either side",
}
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

    def share(self, key: Key, only_greedy: bool = False) -> float | None:
        """Return the share of right answers to a question; None if none was graded."""
        verdicts = [each.verdict for each in self.answers.get(key, ()) if each.index is None or not only_greedy]
        graded = [verdict == Verdict.RIGHT for verdict in verdicts if verdict != Verdict.UNGRADED]
        return sum(graded) / len(graded) if graded else None

    def whole(self, key: Key) -> list[Sample]:
        """Return all answers to a question with their texts. Raises `Problem`."""
        return read_places(self.path, self.places.get(key, ()))


def eval_files(run: Path) -> list[tuple[str, str, Path]]:
    """Return name in addresses, title and path of the evaluations within the run by step, then of `azr eval` by folder.
    The title of an evaluation that is the folder itself is empty."""
    there = ((ROLLOUTS.fullmatch(path.name), path) for path in run.glob("evaluations/*"))
    within = sorted((int(match[1]), path) for match, path in there if match is not None)
    files = [(str(step), f"step {step}", path) for step, path in within]
    for path in sorted(run.glob(f"eval/*/{ANSWERS}")):
        files.append((f"eval-{path.parent.name}", f"azr eval, {path.parent.name}", path))
    return [*files, ("eval", "", run / ANSWERS)] if (run / ANSWERS).is_file() else files


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
        return _read(title, path, path.stat().st_mtime_ns)
    except OSError as error:
        return EvalSide(title, path, {}, {}, [f"{path.name} cannot be read: {error.strerror}"])


@lru_cache(maxsize=8)
def _read(title: str, path: Path, mtime_ns: int) -> EvalSide:
    """Read a file as it was at that time; unlike `azr.evaluation.answer_file`, a damaged one as far as it goes."""
    answers: dict[Key, list[Sample]] = {}
    places: dict[Key, list[LinePlace]] = {}
    problems: list[str] = []
    for place, each in read_samples(path, problems):
        key = each.kind, each.problem_id
        answers.setdefault(key, []).append(without_texts(each))
        places.setdefault(key, []).append(place)
    return EvalSide(title, path, answers, places, [f"{path.parent.name}/{path.name}: {each}" for each in problems])


@dataclass(frozen=True)
class Sides:
    """Two evaluations to compare, and their names in the address."""

    left: EvalSide
    right: EvalSide
    named: Mapping[str, str]
    titles: Mapping[str, str]
    """Titles of all evaluations by their names in the address."""

    @cached_property
    def keys(self) -> list[Key]:
        """All questions, those first whose share of right answers changed most."""

        def change(key: Key) -> float:
            left, right = self.left.share(key), self.right.share(key)
            return 0.0 if left is None or right is None else -abs(right - left)

        return sorted({*self.left.answers, *self.right.answers}, key=lambda key: (change(key), *_by_numbers(key)))

    @property
    def shown(self) -> list[EvalSide]:
        """Both sides, or one if they are the same."""
        return [self.left] if self.named["left"] == self.named["right"] else [self.left, self.right]

    @property
    def heads(self) -> list[str]:
        return [f"{side.title}: {what}" for side in self.shown for what in ("greedy", "right answers")]

    @property
    def problems(self) -> list[str]:
        return [*dict.fromkeys([*self.left.problems, *self.right.problems])]

    def changed(self, how: str, suite: str = "") -> list[Key]:
        """Return the questions of a suite, or of all, that changed in this way, a key of `CHANGES`."""
        of_suite = [key for key in self.keys if suite in ("", key[0])]
        return [key for key in of_suite if _is(how, self.left.share(key), self.right.share(key))]

    def group(self, key: Key) -> str:
        """Return the group of a question."""
        return next(each.group for side in (self.left, self.right) for each in side.answers.get(key, ()))


def evaluations(runs: Sequence[ShownRun], number: int, links: Links, values: Values) -> Markup:
    """Return the page of questions with their outcomes on both sides."""
    sides = _sides(runs, number, values)
    if sides is None:
        return render("empty", title="Evaluations", sentence="There are no answers of an evaluation here yet.")
    suites = ["", *sorted({suite for suite, _ in sides.keys})]
    suite = choice(values, "suite", suites, "")
    change = choice(values, "change", [*CHANGES], "")
    keys = sides.changed(change, suite)
    offset = whole(values, "offset") or 0
    return render(
        "evaluations", links=links, sides=sides, suites=suites, suite=suite, changes=CHANGES, change=change,
        totals=_totals(sides, keys), keys=keys[offset : offset + LIMIT], asked={"change": change, "of": suite},
        pages=("evaluations", values, offset, LIMIT, len(keys)),
    )  # fmt: skip


def question(runs: Sequence[ShownRun], number: int, links: Links, values: Values) -> Markup:
    """Return the page of one question with all its answers on both sides."""
    sides = _sides(runs, number, values)
    suite, id = key = (values.get("suite", ""), values.get("id", ""))
    if sides is None or key not in sides.keys:
        raise BadAddress(f"There is no answer to the question {id!r} of the suite {suite!r}.")
    asked = {"change": choice(values, "change", [*CHANGES], ""), "of": values.get("of", "")}
    listed = sides.changed(asked["change"], asked["of"])
    before, after = [None, *listed], [*listed[1:], None]
    beside = []
    if key in listed:
        at = listed.index(key)
        beside = [(name, *other) for name, other in (("previous", before[at]), ("next", after[at])) if other]
    prompt, columns = "", list[tuple[str, list[Sample] | str]]()
    for side in sides.shown:
        try:
            answers = side.whole(key)
        except Problem as problem:
            columns.append((side.title, str(problem)))
            continue
        columns.append((side.title, answers))
        prompt = prompt or next((each.prompt for each in answers), "")
    return render(
        "question", links=links, sides=sides, suite=suite, id=id, prompt=prompt, columns=columns, asked=asked,
        beside=beside,
    )  # fmt: skip


def _by_numbers(key: Key) -> tuple[str, str]:
    """Sort key that puts sample_9 before sample_10."""
    return key[0], re.sub(r"\d+", lambda digits: digits[0].zfill(12), key[1])


def _totals(sides: Sides, keys: Sequence[Key]) -> list[tuple[str, int, str, str]]:
    """Return title, questions, and shares of right greedy and of all answers, of each side to these questions. The last
    row is of two sides that share questions: the mean difference, right side less left, on those."""
    rows, columns = list[tuple[str, int, str, str]](), list[list[dict[Key, float]]]()
    for side in sides.shown:
        shares = [
            {key: share for key in keys if (share := side.share(key, only_greedy)) is not None}
            for only_greedy in (True, False)
        ]
        greedy, mean = (_mean([*each.values()]) for each in shares)
        rows.append((side.title, len(shares[1]), greedy, mean))
        columns.append(shares)
    if len(columns) == 2 and (paired := columns[0][1].keys() & columns[1][1].keys()):
        greedy, mean = (
            _mean([new[key] - old[key] for key in old.keys() & new.keys()], points=True)
            for old, new in zip(*columns, strict=True)
        )
        rows.append(("difference on the same questions", len(paired), greedy, mean))
    return rows


def _mean(values: Sequence[float], *, points: bool = False) -> str:
    """Return a mean over questions in percent, or in points, with its 95% interval by the normal approximation."""
    if not values:
        return "-"
    sign, unit = ("+", " points") if points else ("", "%")
    half = f" ± {196 * stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{100 * fmean(values):{sign}.1f}{half}{unit}"


def _is(change: str, left: float | None, right: float | None) -> bool:
    if change == "":
        return True
    if change == "wrong":
        return not left and not right
    if left is None or right is None:
        return False
    return right > left if change == "better" else left > right


def _sides(runs: Sequence[ShownRun], number: int, values: Values) -> Sides | None:
    """Return the evaluations that the address names as ``left`` and ``right``; by default first and last of the run. A
    run without evaluations shows those of `azr eval`; a single one is shown beside another run's last."""
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
    return Sides(left, right, named, {name: title for name, (title, _) in known.items()})
