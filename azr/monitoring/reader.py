"""Looks at texts in a process of its own, ``python -m azr.monitoring.reader PATTERNS``: a pattern that takes for ever
costs that process and not the run, see `azr.isolated`."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypedDict

from azr.isolated import Ask, Trouble, Workers, serve
from azr.monitoring.texts import Flag, Measures, Screen, is_comment_heavy, is_mixed, measure

CHUNK_CHARS = 200_000
"""Characters of the responses that are looked at together."""
CHUNK_LIMIT_S, TEXT_LIMIT_S = 20.0, 2.0
"""Limits for a chunk, and for each text alone when its chunk took longer."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Text:
    """One response."""

    response: str
    opened: bool
    """Its prompt opens the thinking."""
    program: str | None
    """Source that was read from it."""


class Findings(TypedDict):
    """Properties of one response."""

    flags: list[Flag]
    mixed: bool
    comment_heavy: bool | None
    """None without a program."""


class TextReader:
    """``async with TextReader(patterns) as reader``: its process ends with the block."""

    def __init__(self, patterns: Path) -> None:
        """``patterns``: the screen's file, which was read once already."""
        self._workers = Workers("azr.monitoring.reader", [str(patterns)])

    async def __aenter__(self) -> TextReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._workers.end()

    async def look_at(self, texts: Sequence[Text]) -> list[Findings | None]:
        """Return what each text shows, in their order; None where that took longer than `TEXT_LIMIT_S`."""
        findings = list[Findings | None]()
        for chunk in _chunks(texts):
            answers = await self._ask(chunk, (), CHUNK_LIMIT_S)
            if answers is None:
                log.warning("a chunk of %d responses could not be looked at; now they are one by one", len(chunk))
                for text in chunk:
                    one = await self._ask([text], (), TEXT_LIMIT_S)
                    findings.append(None if one is None else one[0])
            else:
                findings += answers
        return findings

    async def measure(self, programs: Sequence[str]) -> list[Measures | None]:
        """Return the measures of each program, in their order; None for one that cannot be measured."""
        found = list[Measures | None]()
        for start in range(0, len(programs), 256):
            chunk = programs[start : start + 256]
            answers = await self._ask((), chunk, CHUNK_LIMIT_S)
            found += [None] * len(chunk) if answers is None else answers
        return found

    async def _ask(self, texts: Sequence[Text], programs: Sequence[str], limit_s: float) -> list[Any] | None:
        """Return the process's answers, or None when it died, failed or took longer."""
        asked = {"texts": [asdict(text) for text in texts], "programs": list(programs), "max_answer_bytes": 1 << 30}
        try:
            answers: list[Any] = await self._workers.ask(asked, limit_s)
            return answers
        except Trouble:
            return None


def _chunks(texts: Sequence[Text]) -> Iterator[list[Text]]:
    chunk, size = list[Text](), 0
    for text in texts:
        if chunk and size + len(text.response) > CHUNK_CHARS:
            yield chunk
            chunk, size = [], 0
        chunk.append(text)
        size += len(text.response)
    if chunk:
        yield chunk


def look_at(screen: Screen, text: dict[str, Any]) -> Findings:
    """Return what one response shows; ``text["program"]`` is None when it holds none."""
    program = text["program"]
    return Findings(
        flags=screen.flags(text["response"], text["opened"]),
        mixed=is_mixed(text["response"]),
        comment_heavy=None if program is None else is_comment_heavy(program),
    )


def load(arguments: Sequence[str]) -> Callable[[Any, Ask], list[Any]]:
    os.nice(10)  # what the run waits for comes first
    screen = Screen.read(Path(arguments[0]))
    return lambda asked, ask: [*(look_at(screen, text) for text in asked["texts"]), *map(measure, asked["programs"])]


if __name__ == "__main__":
    serve(load)
