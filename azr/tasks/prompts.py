"""How prompts are written and responses read: a chat format for language models, a compact one for tiny models.

A kind states *what* is shown and asked as labelled sections; a format decides *how* that looks as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
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

    def solve(self, kind: str, instructions: Instructions, shown: Sequence[Section]) -> str:
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
        """Every tag the format can write, for building a tokenizer."""
        names = ["pad", "end", "answer", "propose", "solve", *LABELS, *kinds]
        return [f"<|{name}|>" for name in names]

    @staticmethod
    def _render(sections: Sequence[Section]) -> str:
        return "".join(f"<|{s.label}|>{s.text}" for s in sections)

    def propose(self, kind: str, instructions: Instructions, references: Sequence[Sequence[Section]]) -> str:
        return f"<|propose|><|{kind}|>" + "".join(map(self._render, references)) + self.answer

    def solve(self, kind: str, instructions: Instructions, shown: Sequence[Section]) -> str:
        return f"<|solve|><|{kind}|>{self._render(shown)}{self.answer}"

    def response(self, sections: Sequence[Section]) -> str:
        return self._render(sections) + self.end

    def parse(self, response: str) -> tuple[Section, ...] | None:
        pieces = self._tag.split(response.removesuffix(self.end))
        if pieces[0] or any(label not in self._labels for label in pieces[1::2]):
            return None
        pairs = zip(pieces[1::2], pieces[2::2], strict=True)
        return tuple(Section(self._labels[label], text) for label, text in pairs) or None


_FENCE_OF: dict[Label, str] = {"program": "python", "input": "input", "output": "output", "message": "message"}
_LABEL_OF = {fence: label for label, fence in _FENCE_OF.items()}
_FENCED = re.compile(r"```(python|input|output|message)[ \t]*\n(.*?)\n?```", re.DOTALL)
_FORM = re.compile(r"\s*(?:<think>)?.*?</think>\s*<answer>(.*)</answer>\s*", re.DOTALL)

_SYSTEM = (
    "A conversation between a User and an Assistant. The Assistant first thinks the problem through, then gives the "
    "answer: the thinking stands between <think> and </think>, the answer between <answer> and </answer>."
)


def plain_conversation(question: str) -> str:
    """Prompt for models without a chat template; the assistant's turn starts inside its thinking."""
    return f"{_SYSTEM}\n\nUser: {question}\nAssistant: <think>"


def _fenced(section: Section) -> str:
    return f"```{_FENCE_OF[section.label]}\n{section.text}\n```"


class ChatFormat:
    """English instructions, thinking before the answer, fenced blocks inside answer tags."""

    def __init__(self, conversation: Callable[[str], str] = plain_conversation) -> None:
        """``conversation`` turns a user's message into the prompt text, e.g. through a chat template."""
        self._conversation = conversation

    def propose(self, kind: str, instructions: Instructions, references: Sequence[Sequence[Section]]) -> str:
        shown = "\n\n".join(
            f"Reference {number}:\n" + "\n".join(map(_fenced, sections))
            for number, sections in enumerate(references, start=1)
        )
        blocks = " and ".join(f"```{_FENCE_OF[label]}```" for label in instructions.propose_answer)
        ask = f"Put the answer into fenced blocks marked {blocks}."
        return self._conversation(f"{instructions.propose}\n\n{ask}\n\n{shown}")

    def solve(self, kind: str, instructions: Instructions, shown: Sequence[Section]) -> str:
        ask = f"Put the answer into one fenced block marked ```{_FENCE_OF[instructions.solve_answer]}```."
        return self._conversation(f"{instructions.solve}\n\n{ask}\n\n" + "\n".join(map(_fenced, shown)))

    def response(self, sections: Sequence[Section]) -> str:
        return "</think>\n<answer>\n" + "\n".join(map(_fenced, sections)) + "\n</answer>"

    def parse(self, response: str) -> tuple[Section, ...] | None:
        """Fenced blocks of the last answer; None unless thinking is closed and followed by one answer."""
        form = _FORM.fullmatch(response)
        if form is None:
            return None
        answer = form[1].rpartition("<answer>")[2]
        blocks = _FENCED.findall(answer)
        return tuple(Section(_LABEL_OF[fence], text) for fence, text in blocks) or None
