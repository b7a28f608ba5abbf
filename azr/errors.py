"""The exception that is a user's mistake or a run's own end, and the hint at what was meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Says in one sentence what is wrong and what to do about it.

    The command line prints the sentence, without a traceback, and exits with code 2. Every other exception keeps its
    traceback and ends in code 1.
    """


class RunEnded(UserError):
    """A run that ended itself between two steps, because going on would be of no use.

    What was done is sound and worth keeping: it is saved, as after a stop.
    """


def nearest(word: str, known: Iterable[str], least: float = 0.0) -> str | None:
    """The known name that is most like a word that is none, first of all one that begins with it; None when none is at
    least so similar, from 0 to 1."""
    names = list(known)
    whole = [name for name in names if word and name.startswith(word)]
    return next(iter(difflib.get_close_matches(word, whole or names, n=1, cutoff=least)), None)
