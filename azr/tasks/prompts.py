"""How prompts are worded and responses read: one style for chat models, one for tiny models.

A kind states *what* is shown and asked as labelled sections; a style decides *how* that looks as text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, get_args

Label = Literal["program", "input", "output", "message"]
LABELS: tuple[Label, ...] = get_args(Label)


@dataclass(frozen=True, slots=True)
class Section:
    """One labelled piece of a prompt or a response."""

    label: Label
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """What a kind says to a chat model, in English."""

    propose: str
    solve: str
    propose_answer: tuple[Label, ...]
    """Labels of the sections a proposal must hold."""
    solve_answer: Label
    """Label of the section a solution must hold."""


class PromptFormat(Protocol):
    def propose(self, kind: str, instructions: Instructions, references: Sequence[Sequence[Section]]) -> str:
        """Prompt that asks for a new task, given past ones."""
        ...

    def solve(self, kind: str, instructions: Instructions, given: Sequence[Section]) -> str:
        """Prompt that asks for the hidden part of a task."""
        ...

    def response(self, sections: Sequence[Section]) -> str:
        """The text of a well-formed response that states these sections."""
        ...

    def parse(self, response: str) -> tuple[Section, ...] | None:
        """Sections of a finished response, with or without its end token; None when it does not have the asked form."""
        ...


class CompactFormat:
    """Tags that are single tokens of the project's own tokenizer; nothing else is said."""

    end = "<|end|>"
    answer = "<|answer|>"
    _tag = re.compile(r"<\|([a-z]+)\|>")
    _labels: ClassVar[dict[str, Label]] = {label: label for label in LABELS}

    @classmethod
    def special_tokens(cls, kinds: Sequence[str]) -> list[str]:
        """Every tag the style can emit, for building a tokenizer."""
        names = ["pad", "end", "answer", "propose", "solve", *LABELS, *kinds]
        return [f"<|{name}|>" for name in names]

    @staticmethod
    def _render(sections: Sequence[Section]) -> str:
        return "".join(f"<|{s.label}|>{s.text}" for s in sections)

    def propose(self, kind: str, instructions: Instructions, references: Sequence[Sequence[Section]]) -> str:
        return f"<|propose|><|{kind}|>" + "".join(map(self._render, references)) + self.answer

    def solve(self, kind: str, instructions: Instructions, given: Sequence[Section]) -> str:
        return f"<|solve|><|{kind}|>{self._render(given)}{self.answer}"

    def response(self, sections: Sequence[Section]) -> str:
        return self._render(sections) + self.end

    def parse(self, response: str) -> tuple[Section, ...] | None:
        pieces = self._tag.split(response.removesuffix(self.end))
        if pieces[0] or any(label not in self._labels for label in pieces[1::2]):
            return None
        pairs = zip(pieces[1::2], pieces[2::2], strict=True)
        return tuple(Section(self._labels[label], text) for label, text in pairs) or None
