"""``azr serve``: which ``vllm serve`` it becomes, and what plain clients of that get."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from azr.cli.main import dispatch
from azr.records import Stops
from azr.rollout.server import VARIABLE, program
from azr.runs import model_export
from azr.runs.asked_model import open_model
from azr.runs.run_dir import PromptForm, RunDirectory
from tests import chat_tokenizers
from tests.tiny_models import save_run, save_tiny

ROOT = Path(__file__).parents[2]
BASE = ROOT / "data" / "azr_14m_base"
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
    assert f"{sys.executable} -m azr.rollout.server chat --url http://127.0.0.1:8123/v1 " in said
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


def test_a_model_is_served_as_it_is_with_the_template_that_is_asked_for_and_tags_without_chat(run, monkeypatch, capsys):
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
    command, _ = served([BASE], monkeypatch)
    assert "--chat-template" not in command
    said = capsys.readouterr().out
    assert "it completes prompts, and cannot chat" in said and "/v1/completions" in said and " chat " not in said


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
        chat = [*program(), "chat", "--url", address, "--quick", "Hi"]
        said = subprocess.run(chat, capture_output=True, text=True, check=True).stdout
        assert said.startswith("Using model: run-step-2\n") and "}" not in said.rstrip("\n")[:-1]
