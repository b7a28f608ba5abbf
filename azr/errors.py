"""The one exception that is a user's mistake."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Says in one sentence what is wrong and what to do about it.

    The command line prints the sentence, without a traceback, and exits with code 2. Every other exception keeps its
    traceback and ends in code 1.
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """The known name that is most like a word that is none."""
    return difflib.get_close_matches(word, list(known), n=1, cutoff=0.0)[0]
