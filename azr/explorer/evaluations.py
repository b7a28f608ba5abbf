"""Evaluations of a folder, within a run or by `azr eval`, and their pages: two evaluations side by side."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from markupsafe import Markup

from azr.evaluation.answer_file import ANSWERS, without_texts
from azr.evaluation.scores import Estimate, Measure, estimate, greedy_share, sampled_share
from azr.evaluation.suites import SUITES, top
from azr.explorer.record_files import ROLLOUTS, LinePlace, Problem, read_places, read_samples
from azr.explorer.site import BadAddress, Links, ShownRun, Values, choice, render, whole
from azr.records import Sample, grouped

LIMIT = 100
"""Most questions on a page."""
CHANGES = {
    "": "all questions, those that changed first",
    "better": "right more often on the right side",
    "worse": "right more often on the left side",
    "wrong": "wrong on both sides",
}
Key = tuple[str, str]
"""Suite and id of a question."""
Result = tuple[str, str, list[tuple[str, int, Estimate | None]]]
"""Suite, how its answers were sampled, and `means`."""
MEASURES: dict[str, Measure] = {"at temperature 1": sampled_share, "greedily": greedy_share}
"""By how the answers were sampled."""
_DIFFERENCE = "difference on the same questions"
SHORT_PREFIX = 80
"""Characters that all prompts may begin with and still be shown whole."""


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
        """Return the share of right samples, or of greedy answers if none was sampled; None if none was graded."""
        answers = self.answers.get(key, ())
        sampled = sampled_share(answers)
        return greedy_share(answers) if sampled is None else sampled

    def prompts(self, keys: Sequence[Key]) -> dict[Key, str]:
        """Return the prompts of these questions without the lines that all of them begin with. Raises `Problem`."""
        asked = [key for key in keys if key in self.places]
        prompts = [each.prompt for each in read_places(self.path, [self.places[key][0] for key in asked])]
        first, last = min(prompts, default=""), max(prompts, default="")
        shared = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), 0)
        start = first.rfind("\n", 0, shared) + 1 if shared > SHORT_PREFIX else 0
        return {key: prompt[start:] for key, prompt in zip(asked, prompts, strict=True)}

    def whole(self, key: Key) -> list[Sample] | str:
        """Return all answers to a question with their texts, or why they cannot be read."""
        try:
            return read_places(self.path, self.places.get(key, ()))
        except Problem as problem:
            return str(problem)


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
    problems: list[str] = []
    read = [((each.kind, each.problem_id), place, without_texts(each)) for place, each in read_samples(path, problems)]
    answers, places = grouped((key, each) for key, _, each in read), grouped((key, place) for key, place, _ in read)
    return EvalSide(title, path, answers, places, [f"{path.parent.name}/{path.name}: {each}" for each in problems])


@dataclass(frozen=True)
class Sides:
    """Two evaluations to compare, and their names in the address."""

    left: EvalSide
    right: EvalSide
    named: Mapping[str, str]
    titles: Mapping[str, str]
    """Titles of all evaluations by their names in the address."""

    def gain(self, key: Key) -> float:
        """Return the difference of the shares of right answers; 0 if a side lacks the question."""
        left, right = self.left.share(key), self.right.share(key)
        return 0.0 if left is None or right is None else right - left

    @cached_property
    def keys(self) -> list[Key]:
        """All questions, those first whose share of right answers changed most."""
        keys = {*self.left.answers, *self.right.answers}
        # sample_9 comes before sample_10.
        numbered = {key: re.sub(r"\d+", lambda digits: digits[0].zfill(12), key[1]) for key in keys}
        return sorted(keys, key=lambda key: (-abs(self.gain(key)), key[0], numbered[key]))

    @property
    def shown(self) -> list[EvalSide]:
        """Both sides, or one if they are the same."""
        return [self.left] if self.named["left"] == self.named["right"] else [self.left, self.right]

    @cached_property
    def problems(self) -> list[str]:
        return [*dict.fromkeys([*self.left.problems, *self.right.problems])]

    def changed(self, how: str, suite: str = "") -> list[Key]:
        """Return the questions of a suite, or of all, that changed in this way, a key of `CHANGES`."""
        test = {
            "": lambda key: True, "better": lambda key: self.gain(key) > 0, "worse": lambda key: self.gain(key) < 0,
            "wrong": lambda key: not self.left.share(key) and not self.right.share(key),
        }[how]  # fmt: skip
        return [key for key in self.keys if suite in ("", key[0]) and test(key)]

    def group(self, key: Key) -> str:
        """Return the group of a question."""
        return next(each.group for side in (self.left, self.right) for each in side.answers.get(key, ()))


def evaluations(runs: Sequence[ShownRun], number: int, links: Links, values: Values) -> Markup:
    """Return the page of questions with their outcomes on both sides."""
    sides = _sides(runs, number, values)
    if sides is None:
        return render("empty", title="Evaluations", sentence="No evaluation has been made yet.", links=links)
    suites = ["", *sorted({suite for suite, _ in sides.keys})]
    suite = choice(values, "suite", suites, "")
    change = choice(values, "change", [*CHANGES], "")
    keys = sides.changed(change, suite)
    offset = whole(values, "offset") or 0
    shown, prompts = keys[offset : offset + LIMIT], dict[Key, str]()
    for side in sides.shown:
        try:
            prompts = prompts if prompts.keys() >= {*shown} else side.prompts(shown) | prompts
        except Problem as problem:
            sides.problems.append(str(problem))
    return render(
        "evaluations", links=links, sides=sides, suites=suites, suite=suite, changes=CHANGES, change=change,
        totals=[means(sides, keys, share) for share in MEASURES.values()], keys=shown, prompts=prompts,
        asked={"change": change, "of": suite}, pages=("evaluations", values, offset, LIMIT, len(keys)),
    )  # fmt: skip


def question(runs: Sequence[ShownRun], number: int, links: Links, values: Values) -> Markup:
    """Return the page of one question with all its answers on both sides."""
    sides = _sides(runs, number, values)
    suite, id = key = (values.get("suite", ""), values.get("id", ""))
    if sides is None or key not in sides.keys:
        raise BadAddress(f"There is no answer to the question {id!r} of the suite {suite!r}.")
    asked = {"change": choice(values, "change", [*CHANGES], ""), "of": values.get("of", "")}
    listed = sides.changed(asked["change"], asked["of"])
    at = listed.index(key) if key in listed else len(listed) + 1
    near = {"previous": listed[max(at - 1, 0) : at], "next": listed[at + 1 : at + 2]}
    return render(
        "question", links=links, sides=sides, suite=suite, id=id, asked=asked,
        columns=[(side.title, side.whole(key)) for side in sides.shown],
        beside=[(name, *other) for name, others in near.items() for other in others],
    )  # fmt: skip


def results(run: Path) -> list[Result]:
    """Compare the run's first evaluation with its last one, by suite."""
    files = [(title, path) for name, title, path in eval_files(run) if name.isdigit() and path.is_file()]
    return _results(files[0], files[-1], files[-1][1].stat().st_mtime_ns) if files else []


@lru_cache(maxsize=256)
def _results(first: tuple[str, Path], last: tuple[str, Path], mtime_ns: int) -> list[Result]:
    sides, rows = Sides(read_side(*first), read_side(*last), {"left": first[0], "right": last[0]}, {}), []
    for suite in sorted({suite for suite, _ in sides.keys}):
        found = [(suite, how, means(sides, sides.changed("", suite), share)) for how, share in MEASURES.items()]
        rows += [each for each in found if all(mean is not None for *_, mean in each[-1])][:1]
    return rows


def means(sides: Sides, keys: Collection[Key], share: Measure) -> list[tuple[str, int, Estimate | None]]:
    """Return title, graded questions and mean share of each side to these questions. The last row is of two sides that
    share questions: the mean difference, right side less left, on those."""
    shares = {side.title: {key: share(side.answers.get(key, ())) for key in keys} for side in sides.shown}
    columns = {title: {key: each for key, each in of.items() if each is not None} for title, of in shares.items()}
    if len(columns) == 2:
        left, right = columns.values()
        paired = {key: right[key] - left[key] for key in left if key in right}
        columns |= {_DIFFERENCE: paired} if paired else {}
    # Groups count alike in suites for which that is said.
    alike = {name for name, suite in SUITES.items() if suite.groups_alike}
    named = {key: top(sides.group(key)) if key[0] in alike else "" for key in keys}
    groups = {title: grouped((named[key], value) for key, value in of.items()) for title, of in columns.items()}
    return [
        (title, len(columns[title]), estimate([*of.values()], signed=title == _DIFFERENCE) if of else None)
        for title, of in groups.items()
    ]


def _sides(runs: Sequence[ShownRun], number: int, values: Values) -> Sides | None:
    """Return the evaluations that the address names as ``left`` and ``right``; by default first and last of the run. A
    run without evaluations shows those of `azr eval`; a single one is shown beside another run's last."""
    known = known_sides(runs, number)
    of_run = [name for name in known if name.startswith(f"{number}-")]
    if not of_run:
        return None
    candidates = [name for name in of_run if name.partition("-")[2].isdigit()] or of_run
    others = [name for name in known if name not in of_run]
    last = (others or of_run)[-1] if len(of_run) == 1 else candidates[-1]
    named = {side: choice(values, side, [*known], of) for side, of in (("left", candidates[0]), ("right", last))}
    left, right = (read_side(*known[name]) for name in named.values())
    return Sides(left, right, named, {name: title for name, (title, _) in known.items()})
