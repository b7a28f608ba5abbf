"""A conversation of a person, or of lines from a file, with one model, whose answers are printed as they come."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TextIO

from azr.answering import Problem, answer
from azr.errors import UserError
from azr.prompts.chat_template import Turn
from azr.prompts.codec import PromptCodec
from azr.prompts.token_text import stream_text
from azr.records import Completion, FinishReason, Judgement
from azr.rollout.engine import RolloutEngine
from azr.tasks.base import Verdict
from azr.tasks.prompts import THINK, THOUGHT

_BLOCK = '"""'
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that would make a terminal do something; a line's end and a tab stay."""
_COMMAND = re.compile(r"/[a-z]+")
HELP = f"""\
/reset    forget the conversation
/quit     end, as Ctrl-D does
/help     this text
A message of several lines stands between {_BLOCK} and {_BLOCK}.
Ctrl-C stops an answer that is being written and keeps the conversation; at the prompt it ends."""


class AnswerPrinter:
    """Prints a response while it is written, at a terminal with dim thinking: `write` each piece, and `end` once."""

    def __init__(self, out: TextIO, *, terminal: bool, thinking: bool) -> None:
        """`thinking`: whether the prompt has opened the thinking already; not shown where there is no terminal."""
        self._out, self._terminal = out, terminal
        self._held = ""
        """Text that may be the beginning of a tag."""
        self.text = ""
        """All that was to be printed."""
        if terminal and thinking:
            out.write(_DIM)

    def write(self, piece: str) -> None:
        self.text += piece
        if not self._terminal:
            self._out.write(piece)
        else:
            self._write_styled(self._held + piece)
        self._out.flush()

    def end(self) -> None:
        if self._terminal:
            self._show(self._held)
            self._out.write(_PLAIN)
        self._out.write("\n")
        self._out.flush()

    def _write_styled(self, text: str) -> None:
        *pieces, rest = re.split(f"({THINK}|{THOUGHT})", text)
        for piece in pieces:
            if piece == THINK:
                self._out.write(_DIM)
            self._show(piece)
            if piece == THOUGHT:
                self._out.write(_PLAIN)
        lengths = range(min(len(rest), len(THOUGHT) - 1), 0, -1)
        held = next((n for n in lengths if THINK.startswith(rest[-n:]) or THOUGHT.startswith(rest[-n:])), 0)
        self._held = rest[len(rest) - held :]
        self._show(rest[: len(rest) - held])

    def _show(self, text: str) -> None:
        self._out.write(_CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text))


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerOptions:
    """How a model is asked."""

    raw: bool
    """A message is the prompt as it is: no template, and nothing of what was said before."""
    max_response_tokens: int
    context: int
    """Most tokens of prompt and response."""
    temperature: float
    seed: int
    """With the same one, the same messages get the same answers."""


async def unjudged(completion: Completion) -> Judgement:
    return Judgement(verdict=Verdict.UNGRADED)


@dataclass(slots=True)
class Conversation:
    """Turns so far, and how the next answer is sampled."""

    codec: PromptCodec
    engine: RolloutEngine
    options: AnswerOptions
    turns: list[Turn] = field(default_factory=list)
    num_answers: int = 0

    def prompt(self, message: str) -> tuple[list[int], str]:
        """Ids of the prompt with this message at its end, and with what it begins the response itself. Raises UserError
        when it leaves no room for a response, or the template cannot write it."""
        if self.options.raw:
            ids, opened = self.codec.encode(message), ""
        else:
            ids, opened = self.codec.converse([*self.turns, {"role": "user", "content": message}])
        if len(ids) >= self.options.context:
            what = "This prompt" if self.options.raw or not self.turns else "The conversation with this message"
            cure = "start anew with /reset, or say less" if self.turns else "shorten it"
            raise UserError(f"{what} has {len(ids)} tokens, and the model reads {self.options.context}: {cure}.")
        return ids, opened

    async def answer(self, ids: list[int], printer: AnswerPrinter) -> FinishReason:
        """Print the response as it comes, and return why it ended."""
        options = self.options
        self.num_answers += 1
        text, shown = stream_text(self.codec.decode), 0
        next(text)

        def show(tokens: Sequence[int]) -> None:
            nonlocal shown
            ended = bool(tokens) and tokens[-1] in self.codec.stops.token_ids
            printer.write(text.send(tokens[shown : len(tokens) - ended]))
            shown = len(tokens)

        (sample,) = await answer(
            Problem(id="", kind="chat", group="", prompt_ids=ids, judge=unjudged),
            1,
            generate=partial(self.engine.generate, on_tokens=show),
            max_tokens=min(options.context - len(ids), options.max_response_tokens),
            temperature=options.temperature,
            seed=options.seed + self.num_answers - 1,
        )
        printer.write(text.send(None))
        return sample.completion.finish_reason

    def keep(self, message: str, response: str) -> None:
        """Later prompts hold both; nothing is kept of a message that got no answer at all."""
        if not self.options.raw and response:
            self.turns += ({"role": "user", "content": message}, {"role": "assistant", "content": response})


def talk(conversation: Conversation, run: Callable[..., Any]) -> None:
    """Answers messages until there are none; `run` runs a coroutine, and Ctrl-C ends that with KeyboardInterrupt.
    Raises KeyboardInterrupt for Ctrl-C when standard input is no terminal."""
    terminal = sys.stdin.isatty()
    styled = terminal and sys.stdout.isatty()
    while (message := _read(terminal)) is not None:
        if not message.strip():
            continue
        if _COMMAND.fullmatch(message.strip()):
            if message.strip() == "/quit":
                return
            _obey(message.strip(), conversation)
            continue
        try:
            ids, opened = conversation.prompt(message)
        except UserError as error:
            _say(str(error))
            continue
        printer = AnswerPrinter(sys.stdout, terminal=styled, thinking=bool(opened))
        try:
            try:
                reason: FinishReason | None = run(conversation.answer(ids, printer))
            finally:  # an engine that fails leaves no dim line
                printer.end()
        except (KeyboardInterrupt, asyncio.CancelledError):
            if not terminal:
                raise KeyboardInterrupt from None
            run(asyncio.sleep(0.1))  # in which the engine hears of it
            _say("stopped")
            reason = None
        conversation.keep(message, opened + printer.text if printer.text else "")
        if reason == "length":
            _say(_why_cut(conversation.options, len(ids)))


def _why_cut(options: AnswerOptions, num_prompt: int) -> str:
    if options.context - num_prompt < options.max_response_tokens:
        more = "" if options.raw else "; /reset starts anew"
        return f"cut off: prompt and answer fill the {options.context} tokens that the model reads{more}"
    return f"cut off after {options.max_response_tokens} tokens; --max-response-tokens allows more"


def _obey(command: str, conversation: Conversation) -> None:
    if command == "/help":
        _say(HELP)
    elif command == "/reset":
        conversation.turns.clear()
        _say("the conversation is forgotten")
    else:
        _say(f"There is no command {command}; /help lists them.")


def _read(terminal: bool) -> str | None:
    """The next message; None at the end, and for Ctrl-C at a terminal."""
    try:
        line = input("> " if terminal else "")
        if not line.startswith(_BLOCK):
            return line
        lines = [line.removeprefix(_BLOCK)]
        while not lines[-1].endswith(_BLOCK):
            lines.append(input(". " if terminal else ""))
        return "\n".join(lines).removesuffix(_BLOCK).strip("\n")
    except EOFError:
        pass
    except KeyboardInterrupt:
        if not terminal:
            raise
    if terminal:
        print()
    return None


def _say(text: str) -> None:
    """Print a message to standard error, so that a file of the output holds answers only."""
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
