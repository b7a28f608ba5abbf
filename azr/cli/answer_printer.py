"""Prints a response while it is written; on a terminal, the thinking is dim."""

from __future__ import annotations

import re
from typing import TextIO

from azr.tasks.prompts import THINK, THOUGHT

_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that would make a terminal do something; a line's end and a tab stay."""


class AnswerPrinter:
    """Call `write` with each piece, and `end` once."""

    def __init__(self, out: TextIO, *, terminal: bool, thinking: bool) -> None:
        """`thinking`: whether the prompt has opened the thinking already; not shown where there is no terminal."""
        self._out, self._terminal = out, terminal
        self._held = ""
        """What may be the beginning of a tag."""
        self._text = ""
        if terminal and thinking:
            out.write(_DIM)

    @property
    def text(self) -> str:
        """All that was to be printed."""
        return self._text

    def write(self, piece: str) -> None:
        self._text += piece
        if not self._terminal:
            self._out.write(piece)
        else:
            self._write_styled(self._held + piece)
        self._out.flush()

    def end(self) -> None:
        """Ends the line."""
        if self._terminal:
            self._show(self._held)
            self._out.write(_PLAIN)
        self._out.write("\n")
        self._out.flush()

    def _write_styled(self, text: str) -> None:
        *pieces, rest = re.split(f"({THINK}|{THOUGHT})", text)
        for piece in pieces:
            if piece == THINK:
                self._out.write(_DIM)
            self._show(piece)
            if piece == THOUGHT:
                self._out.write(_PLAIN)
        lengths = range(len(THOUGHT) - 1, 0, -1)
        held = next((n for n in lengths if len(rest) >= n and _begins_tag(rest[-n:])), 0)
        self._held = rest[len(rest) - held :]
        self._show(rest[: len(rest) - held])

    def _show(self, text: str) -> None:
        self._out.write(_CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text))


def _begins_tag(text: str) -> bool:
    return THINK.startswith(text) or THOUGHT.startswith(text)
