"""Has texts looked at by `azr.monitoring.worker`, which is ended when it takes too long, and started again."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from azr.line_process import LineProcess
from azr.monitoring.programs import Measures
from azr.monitoring.worker import Findings

CHUNK_CHARS = 200_000
"""Of texts that are looked at together."""
CHUNK_LIMIT_S, TEXT_LIMIT_S = 20.0, 2.0
"""For the texts of a chunk, and for a text alone when its chunk took longer."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Text:
    """One response."""

    response: str
    opened: bool
    """Its prompt opens the thinking."""
    program: str | None
    """Source that was read from it."""


class TextReader:
    """``async with TextReader(patterns) as reader``: its process ends with the block."""

    def __init__(self, patterns: Path) -> None:
        """``patterns``: the screen's file, which was read once already."""
        self._process = LineProcess("azr.monitoring.worker", [str(patterns)])

    async def __aenter__(self) -> TextReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._process.end()

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
        """Of each program, in their order; None for one that cannot be measured."""
        found = list[Measures | None]()
        for start in range(0, len(programs), 256):
            chunk = programs[start : start + 256]
            answers = await self._ask((), chunk, CHUNK_LIMIT_S)
            found += [None] * len(chunk) if answers is None else answers
        return found

    async def _ask(self, texts: Sequence[Text], programs: Sequence[str], limit_s: float) -> list[Any] | None:
        """The process's answers, or None when it died or took longer."""
        asked = {
            "texts": [{"response": t.response, "opened": t.opened, "program": t.program} for t in texts],
            "programs": list(programs),
        }
        answers: list[Any] | None = await self._process.ask(asked, limit_s)
        return answers


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
