"""Run vllm serve on a model: a run's policy with the chat template and the ends of its training, which is exported to
RUN/exports once, or any Hugging Face model. Options of vllm serve may follow after --."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azr.cli.options import Parser, listen, whole
from azr.runs.model_folder import check_place

if TYPE_CHECKING:
    from azr.runs.asked_model import AskedModel


def main(argv: Sequence[str]) -> int:
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    options = parser().parse(words[:at])
    check_place(options.model)
    listen(options.host, options.port).close()
    # Only now, because these take seconds to load.
    from azr.hardware import compute_type
    from azr.rollout.server import Server, program
    from azr.runs.asked_model import open_model

    model = open_model(options.model, options.step, options.template)
    folder = _folder(model)
    server = Server(
        folder=folder,
        name=model.label.replace(" ", "-"),
        template=_template(model, folder),
        stops=model.codec.stops,
        dtype=compute_type(options.dtype),
        host=options.host,
        port=options.port,
        max_model_len=model.context,
    )
    command = server.command(words[at + 1 :])
    chats = model.codec.template is not None
    if not chats:
        print(f"{options.model} is asked by tags of the compact format: it completes prompts, and cannot chat.")
    print(f"serving {server.name} from {folder}; to ask it, once it is up:")
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)
    url = f"http://{f'[{here}]' if ':' in here else here}:{options.port}/v1"
    print(_curl(server.name, url, chats=chats))
    if chats:
        print(f"{shlex.join([*program(), 'chat', '--url', url])}   # a conversation")
    sys.stdout.flush()
    os.execve(command[0], command, server.environment())


def parser() -> Parser:
    parser = Parser("serve", __doc__, usage="azr serve MODEL|RUN [options] [-- options of vllm serve]")
    parser.add_model()
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for other machines")
    parser.add_argument("--port", type=whole(1, 65535), default=8000, help="port to listen on")
    return parser


def _folder(model: AskedModel) -> Path:
    from azr.runs.model_export import find_source, kept_export

    if model.step is None:
        return model.folder
    source = find_source(Path(model.place), model.step)
    assert source.run is not None
    if not source.run.exported(model.step).is_dir():
        print(f"exporting step {model.step} of {model.place} ...", flush=True)
    return kept_export(source)


def _template(model: AskedModel, folder: Path) -> str | None:
    """Return the template for vLLM: None if the folder holds it, else a file's name or its text."""
    from azr.prompts.chat_template import CHOSEN  # only now, since this loads the tokenizer's library

    text = model.codec.template
    text = None if text is None else text.removeprefix(CHOSEN)
    for file in (folder / "chat_template.jinja", Path(model.template)):
        if text is not None and file.is_file() and file.read_text(encoding="utf-8").removeprefix(CHOSEN) == text:
            return None if file.parent == folder else str(file.resolve())
    return text


def _curl(name: str, url: str, *, chats: bool) -> str:
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "What is 6 times 7?"}]}
    if not chats:
        prompt = "<|solve|><|deduction|><|program|>def f(x):\n    return x + 1<|input|>2<|answer|>"
        asked = {"prompt": prompt, "temperature": 0, "skip_special_tokens": False}
    path = "chat/completions" if chats else "completions"
    body = json.dumps({"model": name, **asked})
    return f"curl {url}/{path} -H 'Content-Type: application/json' -d {shlex.quote(body)}"
