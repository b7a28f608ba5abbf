"""Formats of prompts and responses: chat and completion for language models, a compact one for tiny models.

A kind states *what* is shown and asked as labelled sections; a format decides *how* that looks as text.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from azr.records import CORPUS, Reason, Task
from azr.tasks.base import LABELS, Example, Instructions, PromptFacts, Section, TaskKind
from azr.tasks.blocks import PYTHON, blocks

__all__ = ["LABELS", "Example", "Instructions", "PromptFacts", "Section"]  # plug-ins find them here, too

ResponseFormat = Literal["strict", "answer", "thought"]
PromptFormatName = Literal["chat", "completion", "worked", "compact"]


class CompactFormat:
    """Tags that are single tokens of the project's own tokenizer. The other formats have methods of the same names."""

    stop_strings: tuple[str, ...] = ()
    """Texts that end a response, and belong to it."""
    end = "<|end|>"
    answer = "<|answer|>"
    name: PromptFormatName = "compact"
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

    def propose(self, kind: TaskKind, references: Sequence[Task]) -> str:
        """Return the prompt that asks for a new task, given past ones."""
        shown = "".join(self._render(kind.reference(task)) for task in references)
        return f"<|propose|><|{kind.name}|>{shown}{self.answer}"

    def solve(self, kind: TaskKind, shown: Sequence[Section]) -> str:
        """Return the prompt that asks for the hidden part of a task."""
        return f"<|solve|><|{kind.name}|>{self._render(shown)}{self.answer}"

    def response(self, sections: Sequence[Section]) -> str:
        """Return a well-formed response with these sections."""
        return self._render(sections) + self.end

    def worked(self, kind: TaskKind) -> list[tuple[Section, ...]]:
        """Return questions and answers of the worked examples that prompts of this kind may show."""
        return []

    def parse(self, response: str, labels: Sequence[str] = LABELS) -> tuple[Section, ...] | None:
        """Return the sections with these labels of a finished response, with or without its end token; None if it does
        not have the asked form."""
        pieces = self._tag.split(response.removesuffix(self.end))
        if (pieces[0] and self.response_format == "strict") or any(label not in labels for label in pieces[1::2]):
            return None
        return tuple(map(Section, pieces[1::2], pieces[2::2])) or None


PYTHON_KEEPS = {
    "python": "Nothing is kept from one program to the next.",
    "notebook": "A program goes on from the programs before it that ended without an error.",
}
"""What a prompt says of a program's names, by `selfplay.tools`."""
PYTHON_NOTE = (
    "You may run Python first: end a message with one block that begins with ```python, and the next message tells you "
    "what it prints."
)
PYTHON_REPLY = "Now answer the question in the form that it asks for, with no block of Python, or run another program."
"""Added to a question whose answers may run blocks of Python, and to what one has printed."""
THINK, THOUGHT = "<think>", "</think>"
_ANSWER, _ANSWERED = "<answer>", "</answer>"
_PROGRAM, _PYTHON = "program", "python"
"""The label, and the word on its fence; others have their labels there."""


def read_sections(text: str, labels: Sequence[str]) -> tuple[Section, ...] | None:
    """Return the complete fenced blocks with these labels; None if there is none. Every format with fences is read by
    this function, in training and in evaluation."""
    found = [block for block in blocks(text.replace("\r\n", "\n")) if block.closed]
    named = [(_PROGRAM if block.language in PYTHON else block.language, block.content) for block in found]
    return tuple(Section(label, content.removesuffix("\n")) for label, content in named if label in labels) or None


class ChatFormat:
    """English instructions, thinking before the answer, fenced blocks inside answer tags."""

    name: PromptFormatName = "chat"
    stop_strings: tuple[str, ...] = (_ANSWERED,)

    def __init__(
        self,
        render: Callable[[str], str],
        facts: PromptFacts | None = None,
        response_format: ResponseFormat = "strict",
        *,
        thinking: bool = True,
    ) -> None:
        """``render`` makes a user's message the prompt text.

        ``response_format``: ``strict`` takes an answer only between its tags, and right after the end of the thinking;
        ``thought`` complete blocks anywhere after it; ``answer`` wherever they stand. ``thinking``: whether prompts end
        with the tag that opens the thinking; if not, no thinking is asked for.
        """
        self._render, self._facts, self.response_format = render, facts or PromptFacts(), response_format
        self._thinking = thinking

    def propose(self, kind: TaskKind, references: Sequence[Task]) -> str:
        """A function of the corpus that comes first is the program that is asked about, or the source of an idea."""
        source, given, references = of_corpus(kind, references)
        instructions = kind.proposer_instructions(replace(self._facts, program_is_given=bool(given)))
        fenced = (_fenced(kind.reference(task)) for task in references)
        shown = [f"Reference {index}:\n{text}" for index, text in enumerate(fenced, start=1)]
        about = [f"The program:\n{_fenced(given)}"] if given else [f"{_IDEA}\n{source}"] if source else []
        return self._render("\n\n".join([instructions.task, self._form(instructions), *about, *shown]))

    def solve(self, kind: TaskKind, shown: Sequence[Section]) -> str:
        instructions = kind.solver_instructions(self._facts)
        question = f"Your question:\n{_fenced(shown)}"
        note = [f"{PYTHON_NOTE} {PYTHON_KEEPS[self._facts.tools]}"] if self._facts.tools in PYTHON_KEEPS else []
        return self._render("\n\n".join([instructions.task, self._form(instructions), *note, question]))

    def response(self, sections: Sequence[Section]) -> str:
        answer = f"{_ANSWER}\n{_fenced(sections)}\n{_ANSWERED}"
        return f"{THOUGHT}\n{answer}" if self._thinking else answer

    def worked(self, kind: TaskKind) -> list[tuple[Section, ...]]:
        roles = (kind.proposer_instructions(self._facts), kind.solver_instructions(self._facts))
        return [part for each in roles for part in (each.example.shown, each.example.answer)]

    def parse(self, response: str, labels: Sequence[str] = LABELS) -> tuple[Section, ...] | None:
        """Fenced blocks of the first complete answer, whatever follows; None when there is none of the asked form.

        If only blocks count, the end of the turn ends an answer that no tag ends, and one without tags is all that
        follows the thinking.
        """
        before, closed, _ = response.partition(_ANSWERED)
        before, opened, answer = before.rpartition(_ANSWER)
        if self.response_format == "strict":
            if not (closed and opened) or (self._thinking and not before.rstrip().endswith(THOUGHT)):
                return None
        elif self.response_format == "thought" and self._thinking and THOUGHT not in (before if opened else answer):
            return None
        elif not opened:
            answer = answer.rpartition(THOUGHT)[2]
        return read_sections(answer, labels)

    def _form(self, instructions: Instructions) -> str:
        """Return the required form of a response, with an example."""
        example = instructions.example
        question = f"If the question were\n{_fenced(example.shown)}\na" if example.shown else "A"
        first, then, thought = "you may reason first", "Then", example.thought
        if self._thinking:
            first, then = f"first think, between {THINK} and {THOUGHT}", f"Right after {THOUGHT}"
            thought = f"{THINK}\n{thought}\n{THOUGHT}"
        return (
            f"Form of your response: {first}. {then} give one answer, between {_ANSWER} and {_ANSWERED}, that holds "
            f"{instructions.blocks}. Whatever stands outside of these blocks is not read, and a response of any other "
            f"form counts as a failure.\n\n{question} whole response could be:\n"
            f"{thought}\n{_ANSWER}\n{_fenced(example.answer)}\n{_ANSWERED}"
        )


def answer_part(response: str, prompt: str, form: ResponseFormat) -> tuple[str, Reason]:
    """Return the text in which an answer counts and an empty reason, or an empty text and why there is none.

    ``strict``: the text after the thinking, or in the one answer part right after it, as far as the prompt speaks of
    thinking and of answer tags. ``answer``: the last answer part if the prompt speaks of one, wherever it is.
    ``thought``: everything after the thinking, which must be closed whatever the prompt says.

    Example: ``answer_part("4, so</think><answer>4</answer>", "… Assistant: <think>", "strict")``
    """
    has_answer = _ANSWER in prompt and _ANSWERED in prompt
    if form == "answer":
        if not has_answer:
            return response.rpartition(THOUGHT)[2], ""
        before, closed, _ = response.rpartition(_ANSWERED)
        _, opened, part = (before if closed else response).rpartition(_ANSWER)  # the end of the turn ends it, too
        return (part, "") if opened else ("", "no_answer")
    thought, closed, rest = response.partition(THOUGHT)
    if not closed:
        # A prompt asks for thinking that opens it or speaks of its tags; not one that ends with closed thinking.
        end = prompt.rstrip()
        asks = end.endswith(THINK) or (THINK in prompt and THOUGHT in prompt and not end.endswith(THOUGHT))
        if form == "thought" or THINK in thought or asks:
            return "", "unclosed_thinking"
        rest = response
    if form == "thought":
        return rest, ""
    if THINK in rest or THOUGHT in rest:
        return "", "unclosed_thinking"
    if not has_answer:
        return rest, ""
    before, opened, after = rest.partition(_ANSWER)
    part, ended, after = after.partition(_ANSWERED)
    if not (opened and ended):
        return "", "no_answer"
    if _ANSWER in part or _ANSWER in after:
        return "", "two_answers"
    return ("", "misplaced_answer") if closed and before.strip() else (part, "")


class CompletionFormat:
    """Numbered examples, of which the model continues the last: neither instructions nor tags. The prompt ends inside
    the answer, after the fence that begins its first block. In the worked form, the examples of a solver prompt work
    their answers out in a block before them, which is not read."""

    head = "Exercise"
    stop_strings: tuple[str, ...] = ("```\n\n", f"\n{head} ")
    """The end of an example, where some models continue in prose, and the head of the next one."""
    fewest_shown: ClassVar[int] = 3
    """Examples of a proposal prompt: worked ones are added to fewer references."""
    worked_shown: ClassVar[int] = 2
    """Worked examples of a solver prompt, and of a proposal that brings no program; one if the prompt would be long."""
    proposal_tokens: ClassVar[int] = 500
    """Tokens of a proposal prompt above which it is long. With over four references it may be longer in proportion."""
    solver_tokens: ClassVar[int] = 350
    """Tokens of a solver prompt above which it is long; in the worked form `working_tokens` more."""
    working_tokens: ClassVar[int] = 150
    response_format: ResponseFormat = "answer"

    def __init__(
        self, encode: Callable[[str], Sequence[int]], facts: PromptFacts | None = None, *, works: bool = False
    ) -> None:
        """``encode``: from a text to the model's tokens, which are counted. ``works``: in the worked form."""
        self._encode, self._facts, self._works = encode, facts or PromptFacts(), works
        self.name: PromptFormatName = "worked" if works else "completion"

    def propose(self, kind: TaskKind, references: Sequence[Task]) -> str:
        """References are the examples; for a kind that proposes no programs, the one reference is asked about. A
        function of the corpus that comes first is asked about, too, or stands above the examples."""
        source, given, references = of_corpus(kind, references)
        heading = kind.proposer_instructions(self._facts).heading
        if source:
            heading = f"{heading} {_FROM}\n{source}"
        worked = kind.examples(self._facts.induction_inputs)
        key, asked = " ".join(task.fingerprint for task in references), len(given)  # a program that is given is one
        if kind.proposes_programs:
            tasks = [*_drawn(worked, self.fewest_shown - len(references), key), *references]
            examples = [kind.proposal(task) for task in tasks]
        else:
            tasks = _drawn(worked, self.worked_shown, key)
            examples = [(*kind.reference(task), *kind.proposal(task)) for task in tasks]
            given = [section for task in references for section in kind.reference(task)]
        return self._prompt(self.proposal_tokens, heading, examples, given, kind.proposal(worked[0])[asked])

    def solve(self, kind: TaskKind, shown: Sequence[Section]) -> str:
        """Answers of a group have the same examples, one of as many sets as there are worked examples."""
        heading = kind.solver_instructions(self._facts).heading
        worked = kind.examples(_SHORT)
        tasks, most = _drawn(worked, self.worked_shown, _fenced(shown)), self.solver_tokens
        working = [kind.working(task) if self._works else () for task in tasks]
        if working[0]:
            heading, most = f"{heading} {_WORKING}", most + self.working_tokens
        answers = [(*before, *kind.solution(task)) for before, task in zip(working, tasks, strict=True)]
        examples = [(*kind.solver_view(task), *answer) for task, answer in zip(tasks, answers, strict=True)]
        return self._prompt(most, heading, examples, shown, answers[0][0])

    def _prompt(
        self, most: int, heading: str, examples: Sequence[Sequence[Section]], given: Sequence[Section], first: Section
    ) -> str:
        """Return a prompt; if something is given and over ``most`` tokens come of it, one example stands in front.
        ``first``: section with the label of the answer's first block."""
        written = [*map(_fenced, examples), "\n".join([*([_fenced(given)] if given else []), _fence(first) + "\n"])]
        numbered = (f"{self.head} {number}\n{text}" for number, text in enumerate(written, 1))
        prompt = "\n\n".join([heading, *numbered])
        if given and len(examples) > 1 and len(self._encode(prompt)) > most:
            return self._prompt(most, heading, examples[:1], given, first)
        return prompt

    def response(self, sections: Sequence[Section]) -> str:
        return f"{_fenced(sections)}\n".partition("\n")[2]

    def worked(self, kind: TaskKind) -> list[tuple[Section, ...]]:
        tasks = kind.examples(self._facts.induction_inputs)
        return [part for task in tasks for part in (kind.reference(task), kind.proposal(task))]

    def parse(self, response: str, labels: Sequence[str] = LABELS) -> tuple[Section, ...] | None:
        """``response``: with the fence at the end of its prompt, see `opened_block`."""
        ended, fence, _ = response.partition(self.stop_strings[0])
        return read_sections((ended + fence).partition(self.stop_strings[1])[0], labels)


PromptFormat = CompactFormat | ChatFormat | CompletionFormat
_WORKING = "Before its answer each has a trace of the values."
_FROM = "The last is made from an idea of this code:"
_IDEA = """Take an idea from this code for your program, but copy nothing of it:"""
_SHORT = 4
"""Inputs of an induction that solvers see as an example, half of them hidden."""
_OPENED = re.compile(r"```[a-z_]+\n\Z")


def of_corpus(kind: TaskKind, references: Sequence[Task]) -> tuple[str, list[Section], Sequence[Task]]:
    """Return the source that a proposal prompt shows, if any, the program that it gives, if any, and other references.
    A kind that proposes no programs is given one as its reference."""
    if not references or references[0].kind != CORPUS or not kind.proposes_programs:
        return "", [], references
    first = references[0]
    shown = _fenced([Section(_PROGRAM, first.message)]) if first.message else ""
    return shown, [] if first.message else [Section(_PROGRAM, first.program)], references[1:]


def opened_block(prompt: str) -> str:
    """Return the fence at the end of a prompt that begins the answer's first block; empty if there is none."""
    found = _OPENED.search(prompt)
    return found[0] if found else ""


def _drawn(tasks: Sequence[Task], count: int, key: str) -> list[Task]:
    """Return ``count`` tasks in a row, from a place that the key decides: prompts share one of a few beginnings."""
    start = zlib.crc32(key.encode("utf-8", "surrogatepass"))
    return [tasks[(start + i) % len(tasks)] for i in range(count)]


def _fence(section: Section) -> str:
    return f"```{_PYTHON if section.label == _PROGRAM else section.label}"


def _fenced(sections: Sequence[Section]) -> str:
    return "\n".join(f"{_fence(section)}\n{section.text}\n```" for section in sections)
