"""Formats of prompts and responses: a chat format for language models, a compact one for tiny models.

A kind states *what* is shown and asked as labelled sections; a format decides *how* that looks as text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, Literal, Protocol

from azr.execution import ADMITTED_SHARE

LABELS = ("program", "input", "output", "message")
"""Labels of sections; a kind may have others, see `azr.tasks.base.TaskKind.labels`."""
ResponseFormat = Literal["strict", "answer", "thought"]


@dataclass(frozen=True, slots=True)
class Section:
    """One labelled piece of a prompt or a response."""

    label: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptFacts:
    """Facts in prompts about the checks that a response will meet."""

    induction_inputs: int = 10
    """Inputs that an induction proposal must give."""
    wall_s: float = 1.0
    """Time limit of one call, seconds."""
    modules: tuple[str, ...] = ()
    """Modules that a program may import."""
    refused_names: tuple[str, ...] = ()
    """Builtin functions that a program must not use."""

    @property
    def cpu_s(self) -> float:
        """CPU time within which a call is neither refused nor late."""
        return self.wall_s * ADMITTED_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A short thought and the answer after it, as a good response would give them."""

    shown: tuple[Section, ...] = ()
    """The question that it answers; empty for proposals."""
    thought: str
    answer: tuple[Section, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instructions:
    """Instructions of one role of a kind, in English."""

    task: str
    """The task, and the rules for the answer."""
    blocks: str
    """The fenced blocks that the answer must hold, such as "one ```output block with the returned value"."""
    example: Example


class Instructor(Protocol):
    """Part of a task kind that a format uses."""

    name: ClassVar[str]

    def proposer_instructions(self, facts: PromptFacts) -> Instructions: ...

    def solver_instructions(self, facts: PromptFacts) -> Instructions: ...


class PromptFormat(Protocol):
    stop_strings: tuple[str, ...]
    """Texts that end a response, and belong to it."""
    response_format: ResponseFormat

    def propose(self, kind: Instructor, references: Sequence[Sequence[Section]], functions: str = "") -> str:
        """Prompt that asks for a new task, given past ones; ``functions``: source of those that it must call."""
        ...

    def solve(self, kind: Instructor, shown: Sequence[Section]) -> str:
        """Prompt that asks for the hidden part of a task."""
        ...

    def response(self, sections: Sequence[Section]) -> str:
        """Return a well-formed response with these sections."""
        ...

    def parse(self, response: str, labels: Sequence[str] = LABELS) -> tuple[Section, ...] | None:
        """Sections with these labels of a finished response, with or without its end token; None when it does not have
        the asked form."""
        ...


class CompactFormat:
    """Tags that are single tokens of the project's own tokenizer."""

    stop_strings: tuple[str, ...] = ()
    end = "<|end|>"
    answer = "<|answer|>"
    _tag = re.compile(r"<\|([a-z_]+)\|>")

    def __init__(self, response_format: ResponseFormat = "strict") -> None:
        """``response_format``: ``strict`` takes nothing but tags and what they label; ``answer`` lets working stand
        before the first of them, and so does ``thought``."""
        self.response_format = response_format

    @classmethod
    def special_tokens(cls, kinds: Sequence[str]) -> list[str]:
        """Return every tag that the format can write, for building a tokenizer."""
        names = ["pad", "end", "answer", "propose", "solve", *LABELS, *kinds]
        return [f"<|{name}|>" for name in names]

    @staticmethod
    def _render(sections: Sequence[Section]) -> str:
        return "".join(f"<|{s.label}|>{s.text}" for s in sections)

    def propose(self, kind: Instructor, references: Sequence[Sequence[Section]], functions: str = "") -> str:
        """A program without an input at the end is the functions to call."""
        given = [[Section("program", functions)]] if functions else []
        return f"<|propose|><|{kind.name}|>" + "".join(map(self._render, [*references, *given])) + self.answer

    def solve(self, kind: Instructor, shown: Sequence[Section]) -> str:
        return f"<|solve|><|{kind.name}|>{self._render(shown)}{self.answer}"

    def response(self, sections: Sequence[Section]) -> str:
        return self._render(sections) + self.end

    def parse(self, response: str, labels: Sequence[str] = LABELS) -> tuple[Section, ...] | None:
        pieces = self._tag.split(response.removesuffix(self.end))
        if (pieces[0] and self.response_format == "strict") or any(label not in labels for label in pieces[1::2]):
            return None
        return tuple(map(Section, pieces[1::2], pieces[2::2])) or None


THINK, THOUGHT = "<think>", "</think>"
_ANSWER, _ANSWERED = "<answer>", "</answer>"
_PROGRAM, _PYTHON = "program", "python"
"""The label, and the word on its fence; others have their labels there."""


_CLOSING = re.compile(r"\n[ \t]*```|```(?=[ \t]*(?:\n|$))")
"""A fence that begins or ends a line, so that a program may hold one in a string."""


@cache
def _opening(labels: Sequence[str]) -> re.Pattern[str]:
    """Beginnings of blocks with these labels."""
    words = "|".join(_PYTHON if label == _PROGRAM else label for label in labels)
    return re.compile(rf"```({words})[ \t]*\n")


def _blocks(text: str, labels: Sequence[str]) -> Iterator[Section]:
    """Yield the blocks with these labels; where one is never closed, none behind it is."""
    at = 0
    while (opened := _opening(tuple(labels)).search(text, at)) and (closed := _CLOSING.search(text, opened.end())):
        label = _PROGRAM if opened[1] == _PYTHON else opened[1]
        yield Section(label, text[opened.end() : closed.start()])
        at = closed.end()


_GIVEN_FUNCTIONS = (
    "These functions stand in front of your program already. Its f must call every one of them, and the program must "
    "neither repeat them nor give their names to anything else:"
)


class ChatFormat:
    """English instructions, thinking before the answer, fenced blocks inside answer tags."""

    stop_strings: tuple[str, ...] = (_ANSWERED,)

    def __init__(
        self, render: Callable[[str], str], facts: PromptFacts | None = None, response_format: ResponseFormat = "strict"
    ) -> None:
        """``render`` makes a user's message the prompt text, which ends with the tag that opens the thinking.

        ``response_format``: ``strict`` takes an answer only right after the end of the thinking; ``thought`` anywhere
        after it; ``answer`` wherever it stands.
        """
        self._render, self._facts, self.response_format = render, facts or PromptFacts(), response_format

    def propose(self, kind: Instructor, references: Sequence[Sequence[Section]], functions: str = "") -> str:
        instructions = kind.proposer_instructions(self._facts)
        shown = [f"Reference {index}:\n{_fenced(sections)}" for index, sections in enumerate(references, start=1)]
        if functions:
            shown.append(f"{_GIVEN_FUNCTIONS}\n{_fenced([Section('program', functions)])}")
        return self._render("\n\n".join([instructions.task, _form(instructions), *shown]))

    def solve(self, kind: Instructor, shown: Sequence[Section]) -> str:
        instructions = kind.solver_instructions(self._facts)
        return self._render("\n\n".join([instructions.task, _form(instructions), f"Your question:\n{_fenced(shown)}"]))

    def response(self, sections: Sequence[Section]) -> str:
        return f"{THOUGHT}\n{_ANSWER}\n{_fenced(sections)}\n{_ANSWERED}"

    def parse(self, response: str, labels: Sequence[str] = LABELS) -> tuple[Section, ...] | None:
        """Fenced blocks of the first complete answer, whatever follows; None when there is none of the asked form."""
        before, closed, _ = response.partition(_ANSWERED)
        before, opened, answer = before.rpartition(_ANSWER)
        if not (closed and opened) or not self._is_placed(before):
            return None
        return tuple(_blocks(answer.replace("\r\n", "\n"), labels)) or None

    def _is_placed(self, before: str) -> bool:
        if self.response_format == "strict":
            return before.rstrip().endswith(THOUGHT)
        return self.response_format == "answer" or THOUGHT in before


def _fenced(sections: Sequence[Section]) -> str:
    words = [_PYTHON if section.label == _PROGRAM else section.label for section in sections]
    return "\n".join(f"```{word}\n{section.text}\n```" for word, section in zip(words, sections, strict=True))


def _form(instructions: Instructions) -> str:
    """Return the required form of a response, with an example."""
    example = instructions.example
    question = f"If the question were\n{_fenced(example.shown)}\na" if example.shown else "A"
    return (
        f"Form of your response: first think, between {THINK} and {THOUGHT}. Right after {THOUGHT} give one answer, "
        f"between {_ANSWER} and {_ANSWERED}, that holds {instructions.blocks}. Whatever stands outside of these blocks "
        f"is not read, and a response of any other form counts as a failure.\n\n"
        f"{question} whole response could be:\n"
        f"{THINK}\n{example.thought}\n{THOUGHT}\n{_ANSWER}\n{_fenced(example.answer)}\n{_ANSWERED}"
    )
