"""The one exception that is a user's mistake, and the hint at what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Says in one sentence what is wrong and what to do about it.

    The command line prints the sentence, without a traceback, and exits with code 2. Every other exception keeps its
    traceback and ends in code 1.
    """


def nearest(word: str, known: Iterable[str], least: float = 0.0) -> str | None:
    """The known name that is most like a word that is none; None when none is at least so similar, from 0 to 1."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=least)), None)
