"""ASGI middleware of ``vllm serve``: requests without stops get the stops of the model's training.

vLLM takes end tokens from a model's folder, and stop strings only from requests.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from azr.records import Stops

VARIABLE = "AZR_SERVE_STOPS"
"""Environment variable that holds the stops, as `stops_to_text` writes them."""
PATHS = ("/v1/chat/completions", "/v1/completions")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]


def stops_to_text(stops: Stops) -> str:
    return json.dumps({"strings": stops.strings, "token_ids": stops.token_ids})


class StopMiddleware:
    """ASGI application around another one."""

    def __init__(self, app: App) -> None:
        tree = json.loads(os.environ[VARIABLE])
        self._app, self._stops = app, Stops(tuple(tree["strings"]), tuple(tree["token_ids"]))

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith(PATHS):
            await self._app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client is gone
            body, more = body + message.get("body", b""), message.get("more_body", False)
        body = with_stops(body, self._stops)
        headers = [(name, value) for name, value in scope["headers"] if name.lower() != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_changed() -> Message:
            return unread.pop() if unread else await receive()

        await self._app({**scope, "headers": headers}, receive_changed, send)


def with_stops(body: bytes, stops: Stops) -> bytes:
    """Return the request with the stops of training added.

    A request's own ``stop`` replaces the stop strings, even an empty one; ``ignore_eos`` omits the end tokens. Stop
    strings stay in the response, as in training. A body that is no JSON object stays unchanged: vLLM reports the error.
    """
    try:
        request = json.loads(body)
    except ValueError:
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
