"""Exceptions for a user's mistake and for a run's own end, and what their sentences need."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterable


class UserError(ValueError):
    """Mistake of the user; the message is one sentence on what is wrong and what to do.

    The command line prints it without a traceback and exits with code 2; other exceptions end in code 1.
    """

    @property
    def options(self) -> tuple[str, ...]:
        """Options that it is about, as the sentence names them: ``run.steps`` of a config, ``--port`` of a command.

        They are read from the sentence, which has to name them for the user anyway: nothing is stated twice.
        """
        return tuple(dict.fromkeys(_OPTION.findall(str(self))))


SECTIONS = (
    "run", "model", "selfplay", "data", "ablation", "reward", "rollout", "executor", "algorithm", "train", "cluster",
    "timeout", "eval", "safety", "checkpoint", "tracking",
)  # fmt: skip
"""Sections of a config. Other names with dots, such as ``rows.jsonl``, are not options, nor is text in quotes."""
_OPTION = re.compile(rf"(?<![\w./'-])(--[a-z][\w.-]*\w|(?:{'|'.join(SECTIONS)})(?:\.[a-z]\w*)+)(?![\w/])")


class RunEnded(UserError):
    """End of a run by itself between two steps, since more would be of no use; it is saved as after a stop."""


def unknown(what: str, name: str, known: Iterable[str], then: str = "") -> UserError:
    """Return the error about a name that is none of ``known``; ``then`` is its next sentence."""
    return UserError(f"There is no {what} {name!r}{did_you_mean(name, known)}{then and f' {then}'}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence, ``; did you mean train?``, or only a full stop if no known name is near."""
    near = nearest(word, known)
    return f"; did you mean {near}?" if near is not None else "."


def nearest(word: str, known: Iterable[str], least: float = 0.6) -> str | None:
    """Return the known name most similar to a word, preferably one that begins with it, or that it begins with.

    None if no similarity, from 0 to 1, reaches ``least``.
    """
    names = list(known)
    whole = [name for name in names if name and word and (name.startswith(word) or word.startswith(name))]
    return next(iter(difflib.get_close_matches(word, whole or names, n=1, cutoff=least)), None)


def printable(text: str) -> str:
    """Return a text with escapes for characters that could steer a terminal or reorder its line.

    Those are all control, format and unassigned characters but line ends and tabs.
    """
    if text.isprintable():
        return text
    steering = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in steering else ascii(char)[1:-1] for char in text
    )
