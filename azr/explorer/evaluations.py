"""Pages about a run's evaluations: what was answered, after two steps or in two runs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from azr.explorer.markup import Child, Html, el, join, table
from azr.explorer.pages import outcome
from azr.explorer.record_files import ROLLOUTS, Problem, decode, read_lines
from azr.explorer.site import BadAddress, Links, ShownRun, choice, paging, select, whole

LIMIT = 100
"""Questions of a page."""
GREEDY = "greedy"
CHANGES = {
    "": "all questions",
    "better": "right more often on the right side",
    "worse": "right more often on the left side",
    "wrong": "never right on either side",
}
RIGHT = "right"
Values = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalAnswer:
    """One answer as `azr.evaluation.answer_file` writes it."""

    suite: str
    question: str
    group: str
    sample: int | None
    """None for the greedy answer."""
    prompt: str
    response: str
    tokens: int
    truncated: bool
    verdict: str
    answer: str | None = None

    @property
    def name(self) -> str:
        return GREEDY if self.sample is None else f"sample {self.sample}"


@dataclass(frozen=True, slots=True)
class EvalSide:
    """The answers after one step of one run, by suite and question."""

    title: str
    answers: Mapping[tuple[str, str], Sequence[EvalAnswer]]
    problems: Sequence[str]

    def share(self, key: tuple[str, str]) -> float | None:
        """Of right answers to a question; None where there is none."""
        graded = [each.verdict == RIGHT for each in self.answers.get(key, ()) if each.verdict != "ungraded"]
        return sum(graded) / len(graded) if graded else None


@dataclass(frozen=True, slots=True)
class Sides:
    """Two evaluations that are compared, and the values of the address that name them."""

    left: EvalSide
    right: EvalSide
    named: Mapping[str, str]
    choices: Sequence[tuple[str, str]]
    """Value and text of every evaluation there is."""


def evaluations(runs: Sequence[ShownRun], number: int, links: Links, values: Values) -> Html:
    """Questions with what became of them on both sides."""
    sides = _sides(runs, number, values)
    if sides is None:
        return join([el("h1", "Evaluations"), el("p", "This run holds no answers of an evaluation yet.", cls="note")])
    keys = sorted({*sides.left.answers, *sides.right.answers})
    suites = sorted({suite for suite, _ in keys})
    suite = choice(values, "suite", ["", *suites], "")
    change = choice(values, "change", [*CHANGES], "")
    shown = [
        key for key in keys if suite in ("", key[0]) and _is(change, sides.left.share(key), sides.right.share(key))
    ]
    offset = whole(values, "offset") or 0
    rows: list[list[Child]] = []
    for key in shown[offset : offset + LIMIT]:
        group = next(each.group for side in (sides.left, sides.right) for each in side.answers.get(key, ()))
        link = links.link(key[1], "question", **sides.named, suite=key[0], id=key[1])
        rows.append([link, key[0], group, *_cells(sides.left, key), *_cells(sides.right, key)])
    form = links.form(
        select("left side", "left", sides.choices, sides.named["left"]),
        select("right side", "right", sides.choices, sides.named["right"]),
        select("suite", "suite", [("", "all"), *((each, each) for each in suites)], suite),
        select("which", "change", [*CHANGES.items()], change),
    )
    pages = paging(links, "evaluations", values, offset, LIMIT, len(shown))
    names = [sides.left.title, sides.right.title]
    heads = ["question", "suite", "group", *(f"{name}: {what}" for name in names for what in ("greedy", "all right"))]
    return join([el("h1", "Evaluations"), _notes(sides), form, _totals(sides, shown), pages, table(heads, rows), pages])


def question(runs: Sequence[ShownRun], number: int, links: Links, values: Values) -> Html:
    """One question with all its answers on both sides."""
    sides = _sides(runs, number, values)
    key = (values.get("suite", ""), values.get("id", ""))
    if sides is None or not (key in sides.left.answers or key in sides.right.answers):
        raise BadAddress(f"There is no answer to the question {key[1]!r} of the suite {key[0]!r}.")
    prompt = next(each.prompt for side in (sides.left, sides.right) for each in side.answers.get(key, ()))
    columns = []
    for side in (sides.left, sides.right):
        answers = [_shown(each) for each in side.answers.get(key, ())] or [el("p", "It was not asked.", cls="dim")]
        columns.append(el("section", el("h2", side.title), *answers))
    return join([
        el("h1", f"Question {key[1]} of {key[0]}"),
        el("p", links.link("all questions", "evaluations", **sides.named)),
        _notes(sides),
        el("details", el("summary", "prompt"), el("pre", prompt), open=len(prompt) < 3000),
        el("div", *columns, cls="sides"),
    ])  # fmt: skip


def _shown(each: EvalAnswer) -> Html:
    said = f"{each.name}, {each.tokens} tokens{', cut off' if each.truncated else ''} "
    return el(
        "details",
        el("summary", said, outcome(each.verdict)),
        el("p", "read as ", el("code", each.answer)) if each.answer is not None else None,
        el("pre", each.response),
        open=each.sample is None,
    )


def _notes(sides: Sides) -> Html:
    sentences = dict.fromkeys([*sides.left.problems, *sides.right.problems])
    return join(el("p", each, cls="note") for each in sentences)


def _totals(sides: Sides, keys: Sequence[tuple[str, str]]) -> Html:
    """Shares of right answers over the questions shown, and how many changed."""
    rows: list[list[Child]] = []
    for side in (sides.left, sides.right):
        shares = [share for key in keys if (share := side.share(key)) is not None]
        greedy = [each.verdict == RIGHT for key in keys for each in side.answers.get(key, ()) if each.sample is None]
        rows.append([side.title, len(shares), _percent(greedy), _percent(shares)])
    return table(["", "questions", "greedy right", "all answers right"], rows)


def _percent(shares: Sequence[float]) -> str:
    return f"{sum(shares) / len(shares):.1%}" if shares else "-"


def _cells(side: EvalSide, key: tuple[str, str]) -> tuple[Child, Child]:
    answers = side.answers.get(key, ())
    greedy = [outcome(each.verdict) for each in answers if each.sample is None]
    return greedy or "-", f"{sum(each.verdict == RIGHT for each in answers)} of {len(answers)}" if answers else "-"


def _is(change: str, left: float | None, right: float | None) -> bool:
    if change == "":
        return True
    if change == "wrong":
        return not left and not right
    if left is None or right is None:
        return False
    return right > left if change == "better" else left > right


def _sides(runs: Sequence[ShownRun], number: int, values: Values) -> Sides | None:
    """The two that an address names as ``left`` and ``right``; else the first and the last of the run."""
    known: dict[str, tuple[str, Path]] = {}
    for place in [number, *(other for other in range(len(runs)) if other != number)]:
        for step, path in _files(runs[place].index.run):
            title = f"step {step}" if len(runs) == 1 else f"{runs[place].name}, step {step}"
            known[f"{place}-{step}"] = (title, path)
    own = [name for name in known if name.startswith(f"{number}-")]
    if not own:
        return None
    named = {
        "left": choice(values, "left", [*known], own[0]),
        "right": choice(values, "right", [*known], own[-1]),
    }
    left, right = (_read(*known[name]) for name in named.values())
    return Sides(left, right, named, [(name, title) for name, (title, _) in known.items()])


def _files(run: Path) -> list[tuple[int, Path]]:
    folder = run / "evaluations"
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((int(match[1]), path) for path in paths if (match := ROLLOUTS.fullmatch(path.name)))


def _read(title: str, path: Path) -> EvalSide:
    try:
        stat = path.stat()
    except OSError as error:
        return EvalSide(title, {}, [f"{path.name} cannot be read: {error.strerror}"])
    answers, problems = _answers(path, stat.st_size, stat.st_mtime_ns)
    return EvalSide(title, answers, problems)


@lru_cache(maxsize=8)
def _answers(
    path: Path, size: int, mtime_ns: int
) -> tuple[Mapping[tuple[str, str], Sequence[EvalAnswer]], Sequence[str]]:
    """By suite and question, and what could not be read; of a file as it was at that time."""
    answers: dict[tuple[str, str], list[EvalAnswer]] = {}
    problems: list[str] = []
    bad = 0
    for place, item in enumerate(read_lines(path)):
        if isinstance(item, Problem):
            problems.append(f"evaluations/{path.name}: {item}")
            continue
        if place == 0 and item[1].startswith(b'{"protocol"'):
            continue
        try:
            each = decode(item[1], EvalAnswer)
        except Problem:
            bad += 1
            continue
        answers.setdefault((each.suite, each.question), []).append(each)
    if bad:
        problems.append(f"evaluations/{path.name}: {bad} of its lines are no answers")
    return answers, problems
