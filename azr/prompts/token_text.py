"""Encode shared beginnings of prompts once, decode tokens by a table, and decode a stream of tokens.

The first two give exactly what the tokenizer gives, and leave a tokenizer to itself where that cannot be known.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

TokenArray = npt.NDArray[np.int32]
_OVERLAP = 128
"""Characters at the end of the shared beginning that are encoded again with the rest, at least. No pattern by which
tokenizers split text looks so far ahead."""
_TRIES = 64
_UNKNOWN = "\ufffd"
_LONGEST_PIECE = 3
"""Maximal number of bytes, and so of tokens, of an incomplete character."""
_WINDOW, _KEPT = 64, 16
"""Tokens that are decoded together, so that the cost per token does not grow with the text; and the overlap of two
windows, since the text of a token may depend on the few before it."""


@dataclass(frozen=True, slots=True)
class _Head:
    """Shared beginning of the prompts of one family."""

    text: str
    cut: int
    """Position of a token boundary that no following text moves; 0 if none is known."""
    ids: TokenArray
    """Ids of the text before the cut."""


class SharedHeads:
    """Encodes prompts in families with the same beginning, such as the proposals of one kind."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, whole: Callable[[str], list[int]], rest: Callable[[str], list[int]]
    ) -> None:
        """``whole`` encodes a prompt, ``rest`` a text inside a prompt."""
        self._whole, self._rest = whole, rest
        self._cuts = _splits_text(tokenizer)
        self._first: dict[str, tuple[str, TokenArray]] = {}
        """First text of each family, and its ids."""
        self._heads: dict[str, _Head] = {}
        """Shared beginnings, known from the second text of a family on."""

    def encode(self, family: str, text: str) -> TokenArray:
        """Return ids of a prompt of this family, as a read-only array."""
        ids = self._encode(family, text)
        ids.flags.writeable = False
        return ids

    def _encode(self, family: str, text: str) -> TokenArray:
        if not self._cuts:
            return np.array(self._whole(text), np.int32)
        if family not in self._first:
            self._first[family] = text, np.array(self._whole(text), np.int32)
        first, ids = self._first[family]
        if text == first:
            return ids
        head = self._heads.get(family)
        if head is None or not text.startswith(head.text):
            head = self._heads[family] = self._head(_common(first if head is None else head.text, text))
        if not head.cut:
            return np.array(self._whole(text), np.int32)
        return np.concatenate([head.ids, np.array(self._rest(text[head.cut :]), np.int32)])

    def _head(self, text: str) -> _Head:
        ids = self._whole(text)
        for cut in range(len(text) - _OVERLAP, max(len(text) - _OVERLAP - _TRIES, 0), -1):
            before = self._whole(text[:cut])
            if before + self._rest(text[cut:]) == ids:
                return _Head(text, cut, np.array(before, np.int32))
        return _Head(text, 0, np.array(ids, np.int32))


def _common(first: str, second: str) -> str:
    """Return the longest common prefix."""
    return first[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))]


def _splits_text(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer first splits a text by a pattern into parts that it encodes separately."""
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or tokenizer.backend_tokenizer.pre_tokenizer is None:
        return False
    normalizer = tokenizer.backend_tokenizer.normalizer
    if normalizer is not None and type(normalizer).__name__ != "NFC":
        return False
    try:
        steps = json.loads(tokenizer.backend_tokenizer.pre_tokenizer.__getstate__())
    except (AttributeError, TypeError, ValueError):  # one that is written in Python
        return False
    parts = steps["pretokenizers"] if steps["type"] == "Sequence" else [steps]
    by_pattern = [
        (part["type"] == "ByteLevel" and part["use_regex"]) or (part["type"] == "Split" and "Regex" in part["pattern"])
        for part in parts
    ]
    return any(by_pattern) and all(part["type"] in ("ByteLevel", "Split", "Digits") for part in parts)


class TokenTable(dict[int, bytes]):
    """Bytes of the tokens of a byte-level tokenizer, filled in on demand."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self._token_of = tokenizer.backend_tokenizer.id_to_token

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> TokenTable | None:
        """Return the table; None for a tokenizer whose text is not the concatenation of its tokens' bytes."""
        plain = isinstance(tokenizer, PreTrainedTokenizerFast) and (
            type(tokenizer)._decode is PreTrainedTokenizerFast._decode
            and type(tokenizer).decode is PreTrainedTokenizerFast.decode
            and type(tokenizer.backend_tokenizer.decoder).__name__ == "ByteLevel"
        )
        return cls(tokenizer) if plain else None

    def __missing__(self, token_id: int) -> bytes:
        token = self._token_of(token_id) or ""
        # Control tokens may hold what stands for no byte; all of it is text then.
        is_bytes = all(char in _BYTE_OF for char in token)
        self[token_id] = held = bytes(_BYTE_OF[char] for char in token) if is_bytes else token.encode()
        return held

    def text(self, token_ids: Sequence[int]) -> str:
        """Return the text; bytes that are no UTF-8 become U+FFFD."""
        return b"".join(map(self.__getitem__, token_ids)).decode("utf-8", "replace")


def _byte_chars() -> Iterator[tuple[str, int]]:
    """Yield the character that stands for each byte: printable Latin-1 for itself, the others from U+0100 on."""
    written_otherwise = 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte <= 255:
            yield chr(byte), byte
        else:
            yield chr(256 + written_otherwise), byte
            written_otherwise += 1


_BYTE_OF = dict(_byte_chars())


class TextStream:
    """Decoder whose outputs, joined, are the text of all tokens. In vocabularies like SentencePiece's an invalid byte
    changes the text of its neighbours; text that was returned before stays."""

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
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
                self._ids = self._ids[-_KEPT:]
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
