"""The chat style: English instructions, thinking before the answer, fenced blocks inside answer tags."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from azr.tasks.prompts import Instructions, Label, Section

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
    """Prompts and responses for pretrained language models."""

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

    def solve(self, kind: str, instructions: Instructions, given: Sequence[Section]) -> str:
        ask = f"Put the answer into one fenced block marked ```{_FENCE_OF[instructions.solve_answer]}```."
        return self._conversation(f"{instructions.solve}\n\n{ask}\n\n" + "\n".join(map(_fenced, given)))

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
