"""``azr chat`` as it is typed, with a real engine."""

import io
import os
import pty
import re
import select
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from azr.cli.conversation import AnswerOptions, AnswerPrinter, Conversation
from azr.cli.main import dispatch
from azr.records import FinishReason
from azr.rollout.streaming import Piece
from azr.runs.asked_model import open_model
from tests import chat_tokenizers
from tests.tiny_models import save_tiny

ROOT = Path(__file__).parents[2]
BASE = ROOT / "data" / "azr_14m_base"
GREEDY = ("--temperature", "0", "--dtype", "float32")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat") / "tiny"
    return save_tiny(folder, "qwen2", chat_tokenizers.chatml(), max_position_embeddings=8192)


def chat(monkeypatch, argv: list[object], lines: list[str]) -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return dispatch(["chat", *map(str, argv)])


@pytest.mark.long
def test_a_conversation_from_a_file(model: Path, monkeypatch, capsys):
    lines = ["Hi", "Hi", "/reset", "Hi", "", "/rest", "x" * 600, "/help", '"""Hi', 'there"""', "/quit", "never read"]
    argv = [model, *GREEDY, "--max-response-tokens", 20, "--context", 512]
    assert chat(monkeypatch, argv, lines) == 0
    said = capsys.readouterr()
    first, second, again, block = said.out.split("\n", 3)
    assert first == again, "a conversation that was forgotten begins as the first"
    assert len({first, second, block.rstrip("\n")}) == 3
    notices = said.err.splitlines()
    assert re.fullmatch(r"loading tiny \.\.\.", notices[0]) and notices[1].startswith("ready after ")
    cut = "cut off after 20 tokens; --max-response-tokens allows more"
    too_long = r"The conversation with this message has \d+ tokens, and the model reads 512: start anew with /reset, or"
    expected = [cut, cut, "the conversation is forgotten", cut, "There is no command /rest; /help lists them."]
    assert notices[2:7] == expected
    assert re.match(too_long, notices[7])
    assert notices[8].startswith("/reset ") and notices[-1] == cut


@pytest.mark.long
def test_raw_prompts_have_no_template_and_no_history(monkeypatch, capsys):
    prompt = ['"""<|solve|><|deduction|><|program|>def f(x):', "    return x + 'nu'<|input|>'on'<|answer|>\"\"\""]
    assert chat(monkeypatch, [BASE, "--raw", *GREEDY], [*prompt, *prompt]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == second and first.startswith("<|output|>'")


async def test_an_answer_is_printed_as_it_comes_without_the_token_that_ends_it(model: Path):
    codec, asked = open_model(str(model)).codec, []

    class Engine:
        async def stream(self, ids: list[int], **how: object) -> AsyncIterator[Piece]:
            asked.append((ids, how))
            *most, last = codec.encode("four ü")
            for token in most:
                yield Piece((token,), None)
            yield Piece((last, codec.stops.token_ids[0]), FinishReason.STOP)

    options = AnswerOptions(raw=False, max_response_tokens=20, context=512, temperature=0.5, seed=7)
    conversation: Any = Conversation(codec, Engine(), options)  # type: ignore[arg-type]
    ids, opened = conversation.prompt("2 + 2?")
    for seed in (7, 8):
        printer = AnswerPrinter(out := io.StringIO(), terminal=False, thinking=bool(opened))
        assert await conversation.answer(ids, printer) is FinishReason.STOP
        assert printer.text == out.getvalue() == "four ü"
        assert asked.pop() == (ids, {"max_tokens": 20, "temperature": 0.5, "seed": seed})
    await conversation.answer([1] * 500, printer)
    assert asked.pop()[1]["max_tokens"] == 12


@pytest.mark.parametrize("size", [1, 3, 100])
def test_the_thinking_is_dim_and_control_characters_do_nothing(size: int):
    text = "I <i>see</think>\n<answer>\x1b[2J4\x07</answer><think>more</thi"
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    shown = {}
    for terminal in (True, False):
        printer = AnswerPrinter(out := io.StringIO(), terminal=terminal, thinking=True)
        for piece in pieces:
            printer.write(piece)
        printer.end()
        shown[terminal] = out.getvalue()
        assert printer.text == text
    assert shown[False] == text + "\n"
    dim, plain = "\x1b[2m", "\x1b[0m"
    expected = f"{dim}I <i>see</think>{plain}\n<answer>\\x1b[2J4\\x07</answer>{dim}<think>more</thi{plain}\n"
    assert shown[True] == expected


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, *argv: object) -> None:
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            os.execv(sys.executable, [sys.executable, "-m", "azr", *map(str, argv)])
        self.shown = ""

    def wait_for(self, pattern: str) -> str:
        """Reads until the pattern is shown; returns what was shown before it."""
        deadline = time.monotonic() + 120
        while not (match := re.search(pattern, self.shown)):
            assert time.monotonic() < deadline, f"{pattern} was not shown: {self.shown}"
            if select.select([self.descriptor], [], [], 1.0)[0]:
                self.shown += os.read(self.descriptor, 1 << 16).decode(errors="replace")
        before, self.shown = self.shown[: match.start()], self.shown[match.end() :]
        return before

    def type(self, text: str) -> None:
        os.write(self.descriptor, text.encode())

    def exit_code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.long
def test_ctrl_c_stops_an_answer_and_then_ends_the_conversation(model: Path):
    terminal = Terminal("chat", model, *GREEDY, "--max-response-tokens", 5000)
    start = terminal.wait_for("> ")
    assert re.fullmatch(r"loading tiny \.\.\.\r\nready after \d+ s; /help says more\r\n(\x1b\S*)?", start), start
    terminal.type("Hi\n")
    terminal.wait_for(r"\x1b\[2m.{20}")  # dim, and being written
    terminal.type("\x03")
    terminal.wait_for(r"\x1b\[0m\r\nstopped\r\n")
    terminal.type("Hi\n")
    terminal.wait_for(r"\x1b\[2m.{20}")  # the engine has survived
    terminal.type("\x03")
    terminal.wait_for("stopped")
    terminal.wait_for("> ")
    terminal.type("\x03")
    assert terminal.exit_code() == 0
