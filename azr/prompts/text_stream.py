"""The text of tokens that come one after the other: whole characters, as soon as they are sure."""

from __future__ import annotations

from collections.abc import Sequence

from azr.prompts.codec import PromptCodec

_UNKNOWN = "\ufffd"
_LONGEST_PIECE = 3
"""Most bytes, and so most tokens, of a character that is not whole yet."""
_WINDOW, _OVERLAP = 64, 16
"""Tokens that are decoded together, so that a long text takes no longer per token, and those that a new window begins
with: what a token says may depend on the few before it."""


class TextStream:
    """Pieces of a text; all together are what the tokens say as a whole.

    In vocabularies like SentencePiece's an odd byte makes those beside it unreadable too; what was told before stays.
    """

    def __init__(self, codec: PromptCodec) -> None:
        self._decode = codec.decode
        self._ids: list[int] = []
        """Those of the window."""
        self._num_told = 0
        """Characters of the window's text that were told."""
        self._num_waiting = 0
        """Latest tokens in a row that made no whole character."""

    def add(self, token_ids: Sequence[int]) -> str:
        """What is new; the bytes of a character that is not whole yet are held back."""
        told = ""
        for token_id in token_ids:
            self._ids.append(token_id)
            text = self._decode(self._ids)
            whole = len(text.rstrip(_UNKNOWN))
            self._num_waiting = 0 if whole == len(text) else self._num_waiting + 1
            told += self._tell(text, whole if self._num_waiting <= _LONGEST_PIECE else len(text) - _LONGEST_PIECE)
            if len(self._ids) >= _WINDOW and self._num_told == len(text):
                self._ids = self._ids[-_OVERLAP:]
                self._num_told = len(self._decode(self._ids))
        return told

    def end(self) -> str:
        """What was held back: bytes that became no character are U+FFFD."""
        text = self._decode(self._ids)
        return self._tell(text, len(text))

    def _tell(self, text: str, until: int) -> str:
        new = text[self._num_told : until]
        self._num_told += len(new)
        return new
