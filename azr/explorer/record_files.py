"""Reads a run's files as far as they can be read: half-written and damaged ones too, and says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from azr.files import open_regular
from azr.records import Sample
from azr.runs.sample_file import T, read_members, read_record, read_sample

ROLLOUTS = re.compile(r"step_(\d{6,})\.jsonl\.gz")
"""Name of a step's rollout file."""
P = TypeVar("P")
_MOST_TEXT = 1 << 28
"""Longest text of a gzip member; a run writes about a megabyte."""


class Problem(Exception):
    """What cannot be read, in a sentence."""


@dataclass(frozen=True, slots=True)
class LinePlace:
    """Where a line of a rollout file is."""

    member: int
    """Byte of the file at which its gzip member begins."""
    start: int
    """Byte of the member's text at which it begins."""
    size: int
    """Bytes, without the end of the line."""


def read_samples(path: Path, problems: list[str]) -> Iterator[tuple[LinePlace, Sample]]:
    """Yield every sample of a rollout file or an evaluation. Note what cannot be read, once for all lines of a sort."""
    return _records(read_lines(path, problems), read_sample, problems)


def _records(
    lines: Iterable[tuple[P, bytes]], read: Callable[[bytes], T], problems: list[str]
) -> Iterator[tuple[P, T]]:
    """Yield place and record of every line that holds one."""
    bad, reason = 0, ""
    for place, line in lines:
        try:
            record = read(line)
        except ValueError as error:
            bad, reason = bad + 1, reason or str(error)
            continue
        yield place, record
    if bad:
        problems.append(f"{bad} of its lines cannot be read, the first because {reason}")


def read_places(path: Path, places: Sequence[LinePlace]) -> list[Sample]:
    """Return the samples of whole lines. Raises `Problem` when the file is not what it was."""
    try:
        texts = {at: next(read_members(path, at, _MOST_TEXT)).text for at in {place.member for place in places}}
        return [read_sample(texts[each.member][each.start : each.start + each.size]) for each in places]
    except (OSError, StopIteration, ValueError) as error:
        raise Problem(f"{path.name} has changed since it was indexed: load the page again ({error})") from error


def read_lines(path: Path, problems: list[str]) -> Iterator[tuple[LinePlace, bytes]]:
    """Lines of a row of gzip members, but an evaluation's first one, which is its protocol; the last one is left out
    when the file is cut short."""
    try:
        for member in read_members(path, most=_MOST_TEXT):
            start = 0
            while (end := member.text.find(b"\n", start)) >= 0:
                if member.begin or start or not member.text.startswith(b'{"protocol"'):
                    yield LinePlace(member.begin, start, end - start), member.text[start:end]
                start = end + 1
            if member.damage:
                problems.append(f"{member.damage}: what comes before is shown")
    except OSError as error:
        problems.append(f"it cannot be read: {error.strerror}")


def read_grown(path: Path, offset: int, kind: type[T], problems: list[str]) -> tuple[list[T], int]:
    """Whole lines of a growing file after an offset, as records; and where the last of them ends. A last line without
    an end is being written, and is read when it is whole."""
    try:
        with open_regular(path) as file:
            file.seek(offset)
            grown = file.read()
    except FileNotFoundError:
        return [], 0
    except OSError as error:
        problems.append(f"it cannot be read: {error.strerror}")
        return [], offset
    end = grown.rfind(b"\n") + 1
    lines = enumerate(grown[:end].split(b"\n")[:-1])
    return [each for _, each in _records(lines, partial(read_record, kind=kind), problems)], offset + end
