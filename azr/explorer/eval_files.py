"""Evaluations of a folder: those within a run, and those by `azr eval`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from azr.evaluation.answer_file import ANSWERS, without_texts
from azr.explorer.record_files import ROLLOUTS, LinePlace, Problem, read_lines, read_records
from azr.explorer.site import ShownRun
from azr.records import Sample
from azr.runs.sample_file import read_sample
from azr.tasks.base import Verdict

Key = tuple[str, str]
"""Suite and id of a question."""


@dataclass(frozen=True, slots=True)
class EvalFile:
    """A file with the answers of one evaluation."""

    name: str
    """Step or folder, as part of an address."""
    title: str
    """Title within the run; empty for a folder of `azr eval`."""
    path: Path


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
        graded = [each.verdict == Verdict.RIGHT for each in self.answers.get(key, ()) if is_graded(each)]
        return sum(graded) / len(graded) if graded else None

    def whole(self, key: Key) -> list[Sample]:
        """Return all answers to a question with their texts. Raises `Problem`."""
        return read_records(self.path, self.places.get(key, ()), read_sample)


def is_graded(answer: Sample) -> bool:
    return answer.verdict != Verdict.UNGRADED


def eval_files(run: Path) -> list[EvalFile]:
    """Return the evaluations within the run by step, then those of `azr eval` by folder."""
    within = sorted(
        (int(match[1]), path)
        for path in _entries(run / "evaluations")
        if (match := ROLLOUTS.fullmatch(path.name)) is not None
    )
    folders = sorted(folder for folder in _entries(run / "eval") if (folder / ANSWERS).is_file())
    files = [EvalFile(str(step), f"step {step}", path) for step, path in within]
    files += [EvalFile(f"eval-{folder.name}", f"azr eval, {folder.name}", folder / ANSWERS) for folder in folders]
    return [*files, EvalFile("eval", "", run / ANSWERS)] if (run / ANSWERS).is_file() else files


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def known_sides(runs: Sequence[ShownRun], number: int) -> dict[str, tuple[str, Path]]:
    """Return titles and paths of the evaluations of all runs by their names in addresses, this run's first."""
    known: dict[str, tuple[str, Path]] = {}
    for place in [number, *(other for other in range(len(runs)) if other != number)]:
        for file in eval_files(runs[place].index.run):
            title = ", ".join(filter(None, [runs[place].name if len(runs) > 1 else "", file.title]))
            title = title or runs[place].name
            known[f"{place}-{file.name}"] = (title, file.path)
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
