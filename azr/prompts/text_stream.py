"""Decode a stream of tokens into whole characters."""

from __future__ import annotations

from collections.abc import Sequence

from azr.prompts.codec import PromptCodec

_UNKNOWN = "\ufffd"
_LONGEST_PIECE = 3
"""Maximal number of bytes, and so of tokens, of an incomplete character."""
_WINDOW, _OVERLAP = 64, 16
"""Tokens that are decoded together, so that the cost per token does not grow with the text; and the overlap of two
windows, since the text of a token may depend on the few before it."""


class TextStream:
    """Decoder whose outputs, joined, are the text of all tokens.

    In vocabularies like SentencePiece's an invalid byte changes the text of its neighbours; text that was returned
    before stays.
    """

    def __init__(self, codec: PromptCodec) -> None:
        self._decode = codec.decode
        self._ids: list[int] = []
        """Tokens of the window."""
        self._num_told = 0
        """Characters of the window's text that were returned."""
        self._num_waiting = 0
        """Latest tokens in a row without a whole character."""

    def add(self, token_ids: Sequence[int]) -> str:
        """Return the new text; bytes of an incomplete character are held back."""
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
        """Return the text that was held back; bytes that became no character are U+FFFD."""
        text = self._decode(self._ids)
        return self._tell(text, len(text))

    def _tell(self, text: str, until: int) -> str:
        new = text[self._num_told : until]
        self._num_told += len(new)
        return new
