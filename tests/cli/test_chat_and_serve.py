"""``azr chat`` as it is typed; ``azr serve``: which ``vllm serve`` it becomes, and what a plain client of that gets."""

import asyncio
import io
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from azr.cli.conversation import AnswerOptions, AnswerPrinter, Conversation, talk
from azr.cli.main import dispatch
from azr.records import Completion, Stops
from azr.rollout.server import VARIABLE
from azr.runs import model_export
from azr.runs.asked_model import open_model
from azr.runs.run_dir import PromptForm, RunDirectory
from tests import chat_tokenizers
from tests.runs.factory import completion
from tests.tiny_models import save_run, save_tiny

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
        async def generate(self, ids: list[int], *, on_tokens: Callable, **how: object) -> list[Completion]:
            asked.append((ids, how))
            response = [*codec.encode("four ü"), codec.stops.token_ids[0]]
            for end in [*range(1, len(response) - 1), len(response)]:
                on_tokens(response[:end])
            return [completion(response, ids)]

    options = AnswerOptions(raw=False, max_response_tokens=20, context=512, temperature=0.5, seed=7)
    conversation: Any = Conversation(codec, Engine(), options)  # type: ignore[arg-type]
    ids, opened = conversation.prompt("2 + 2?")
    for seed in (7, 8):
        printer = AnswerPrinter(out := io.StringIO(), terminal=False, thinking=bool(opened))
        assert await conversation.answer(ids, printer) == "stop"
        assert printer.text == out.getvalue() == "four ü"
        how = {"n": 1, "max_tokens": 20, "temperature": 0.5, "seed": seed, "stop_strings": ()}
        assert asked.pop() == (ids, how)
    await conversation.answer([1] * 500, printer)
    assert asked.pop()[1]["max_tokens"] == 12


def test_an_answer_that_the_engine_breaks_off_ends_its_line(model: Path, monkeypatch, capsys):
    codec = open_model(str(model)).codec

    class Engine:
        async def generate(self, ids: list[int], *, on_tokens: Callable, **how: object) -> list[Completion]:
            on_tokens(codec.encode("four"))
            raise RuntimeError("the engine has died")

    options = AnswerOptions(raw=False, max_response_tokens=20, context=512, temperature=0.5, seed=7)
    monkeypatch.setattr("sys.stdin", io.StringIO("2 + 2?\n"))
    with pytest.raises(RuntimeError, match="has died"):
        talk(Conversation(codec, Engine(), options), asyncio.run)  # type: ignore[arg-type]
    assert capsys.readouterr().out == "four\n"


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


BRACKETS = "{% for message in messages %}[{{ message['content'] }}]{% endfor %}"
STOPS = Stops(("}",), (256, 258))


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    """Its prompts are brackets; its model's folder asks for other sampling than training does."""
    save_tiny(tmp_path / "base", "qwen2", chat_tokenizers.chatml())
    run = save_run(tmp_path, 2, form=PromptForm(BRACKETS, STOPS))
    settings = run.checkpoints / "step_000002" / "policy" / "generation_config.json"
    settings.write_text(json.dumps({"temperature": 0.01, "top_k": 1, "eos_token_id": 256}))
    return run


class Replaced(Exception):
    """Stands for the end of this program, which becomes another one."""


def served(argv: list[object], monkeypatch) -> tuple[list[str], dict[str, str]]:
    """Command line and environment of the server that this process would become."""
    taken: list[Any] = []

    def execve(path: str, command: list[str], environment: dict[str, str]) -> None:
        taken.extend((command, environment))
        raise Replaced

    monkeypatch.setattr("os.execve", execve)
    with pytest.raises(Replaced):
        dispatch(["serve", *map(str, argv)])
    return taken[0], taken[1]


def value(command: list[str], option: str) -> str:
    """The last one is what argparse takes."""
    return command[len(command) - command[::-1].index(option)]


def test_a_runs_policy_is_exported_once_and_served(run: RunDirectory, monkeypatch, capsys):
    command, environment = served([run.path, "--port", 8123, "--", "--max-model-len", "512"], monkeypatch)
    out = run.path / "exports" / "step_000002"
    assert command[:5] == [sys.executable, "-m", "azr.rollout.server", "serve", str(out)]
    assert value(command, "--port") == "8123" and command[-2:] == ["--max-model-len", "512"]
    assert "--chat-template" not in command and (out / "chat_template.jinja").read_text() == BRACKETS
    assert json.loads(environment[VARIABLE]) == {"strings": ["}"], "token_ids": [256, 258]}
    said = capsys.readouterr().out
    assert said.startswith("exporting step 2 of ")
    assert "curl http://127.0.0.1:8123/v1/chat/completions" in said and '"model": "run-step-2"' in said
    before = out.stat()
    served([run.path], monkeypatch)
    assert out.stat() == before and "exporting" not in capsys.readouterr().out
    os.utime(run.checkpoints / "step_000002" / "policy" / "config.json", (time.time() + 60,) * 2)
    assert dispatch(["serve", str(run.path)]) == 2
    assert f"{out} is older than " in capsys.readouterr().err


def test_two_processes_may_export_a_runs_policy_at_once(run: RunDirectory, monkeypatch):
    def late(source: model_export.Source, out: Path) -> None:
        for _ in ("the other's", "its own"):
            export(source, out)

    export = model_export.export
    monkeypatch.setattr(model_export, "export", late)
    assert model_export.kept_export(model_export.find_source(run.path, None)) == run.exported(2)


def test_a_model_is_served_as_it_is_with_the_template_that_is_asked_for(run: RunDirectory, monkeypatch, capsys):
    base, file = run.path.parent / "base", run.path.parent / "own.jinja"
    file.write_text(BRACKETS)
    command, _ = served([base], monkeypatch)
    assert command[4] == str(base) and "Assistant" in value(command, "--chat-template")
    command, _ = served([base, "--template", "tokenizer"], monkeypatch)
    assert "--chat-template" not in command
    command, environment = served([base, "--template", file, "--host", "0.0.0.0"], monkeypatch)
    assert value(command, "--chat-template") == str(file)
    assert json.loads(environment[VARIABLE])["strings"] == []
    assert "curl http://127.0.0.1:8000/" in capsys.readouterr().out


def test_tags_are_served_without_chat(monkeypatch, capsys):
    command, _ = served([BASE], monkeypatch)
    assert "--chat-template" not in command
    said = capsys.readouterr().out
    assert "it completes prompts, and cannot chat" in said and "/v1/completions" in said


@contextmanager
def server(*argv: object) -> Iterator[str]:
    """The address of an ``azr serve`` that is up."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "azr", "serve", *map(str, argv), "--port", str(port)])
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except (urllib.error.URLError, ConnectionError):
                assert process.poll() is None, "the server has ended"
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


@pytest.mark.long
def test_a_plain_request_is_asked_and_ended_as_in_training(run: RunDirectory):
    from openai import OpenAI

    codec = open_model(str(run.path)).codec
    question = [{"role": "user", "content": "Hi"}]
    with server(run.path, "--dtype", "float32") as address, OpenAI(base_url=address, api_key="none") as client:
        name = client.models.list().data[0].id
        assert name == "run-step-2"
        common = {"model": name, "seed": 1, "max_tokens": 300, "n": 8}
        answer = client.chat.completions.create(messages=question, **common, extra_body={"return_token_ids": True})
        assert answer.model_dump()["prompt_token_ids"] == codec.ask("Hi")
        ends = set()
        for choice in answer.choices:
            ids, text = choice.model_dump()["token_ids"], choice.message.content
            assert "}" not in text[:-1]
            if choice.finish_reason == "stop":
                assert text.endswith("}") or ids[-1] in STOPS.token_ids
                ends.add("text" if text.endswith("}") else "token")
        assert ends == {"text", "token"}
        # As in training, and not as generation_config.json says.
        assert len({choice.message.content for choice in answer.choices}) == 8
        pieces = client.chat.completions.create(messages=question, **common | {"n": 1}, stream=True)
        streamed = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
        assert streamed and "}" not in streamed[:-1]
        # A request that says where it ends is left alone.
        ended = client.chat.completions.create(messages=question, **common, stop=["\x01"])
        assert any("}" in choice.message.content for choice in ended.choices)
        completed = client.completions.create(prompt="[Hi]", **common)
        assert any(choice.text.endswith("}") for choice in completed.choices)
