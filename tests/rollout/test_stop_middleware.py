"""Requests that do not say where they end get the ends of training; all others pass."""

import json
import time
from dataclasses import asdict
from typing import Any

import pytest

from azr.records import Stops
from azr.rollout.server import VARIABLE, StopMiddleware, with_stops

STOPS = Stops(("</answer>",), (7, 9))
OURS = {"stop": ["</answer>"], "include_stop_str_in_output": True, "stop_token_ids": [7, 9]}


@pytest.mark.parametrize(
    "request_, changed",
    [
        ({}, OURS), ({"stop": None}, OURS), ({"stop": "END"}, {"stop": "END", "stop_token_ids": [7, 9]}),
        ({"stop": []}, {"stop": [], "stop_token_ids": [7, 9]}),
        ({"include_stop_str_in_output": False}, {**OURS, "include_stop_str_in_output": False}),
        ({"stop_token_ids": [9, 4]}, {**OURS, "stop_token_ids": [9, 4, 7]}),
        ({"ignore_eos": True, "stop": "END"}, {"ignore_eos": True, "stop": "END"}),
        ({"stop_token_ids": "seven"}, {**OURS, "stop_token_ids": "seven"}),
    ],
)  # fmt: skip
def test_a_request_says_itself_where_it_ends_or_gets_the_ends_of_training(request_: dict, changed: dict):
    body = json.dumps({"prompt": "é", **request_}).encode()
    assert json.loads(with_stops(body, STOPS)) == {"prompt": "é", **changed}


async def passed(monkeypatch, method: str, path: str, pieces: list[bytes]) -> tuple[dict[str, Any], bytes]:
    """What the application behind it is given: scope and body."""
    monkeypatch.setenv(VARIABLE, json.dumps(asdict(STOPS)))
    seen: list[Any] = []

    async def application(scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message["body"], message["more_body"]
        seen.extend((scope, body, await receive()))

    last = len(pieces) - 1
    messages = [
        *({"type": "http.request", "body": piece, "more_body": at < last} for at, piece in enumerate(pieces)),
        {"type": "http.disconnect"},
    ]

    async def receive():
        return messages.pop(0)

    headers = [(b"content-length", str(sum(map(len, pieces))).encode()), (b"host", b"x")]
    scope = {"type": "http", "method": method, "path": path, "headers": headers}
    await StopMiddleware(application)(scope, receive, None)
    assert seen[2] == {"type": "http.disconnect"}, "who is gone is not waited for"
    return seen[0], seen[1]


async def test_a_body_in_pieces_is_replaced_with_its_length(monkeypatch):
    scope, body = await passed(monkeypatch, "POST", "/v1/chat/completions", [b'{"messages"', b": []}"])
    assert json.loads(body) == {"messages": [], **OURS}
    assert dict(scope["headers"]) == {b"host": b"x", b"content-length": str(len(body)).encode()}


async def test_a_body_in_many_pieces_takes_as_long_as_its_bytes_and_one_that_is_too_long_is_refused(monkeypatch):
    began = time.process_time()
    _, body = await passed(monkeypatch, "POST", "/v1/completions", [b'{"prompt": "', *[b"a" * 100] * 50_000, b'"}'])
    assert len(body) > 5_000_000 and time.process_time() - began < 5
    sent: list[Any] = []

    async def endless() -> dict[str, Any]:
        return {"type": "http.request", "body": b"a" * (1 << 20), "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    await StopMiddleware(None)({"type": "http", "method": "POST", "path": "/v1/completions"}, endless, send)
    assert [sent[0]["status"], sent[1]["body"]] == [413, b"A request has at most 33,554,432 bytes."]


async def test_other_requests_pass(monkeypatch):
    for body in (b"", b"{", b"[1]", b"\xff", b"[" * 100_000, b'{"a":' * 100_000):
        assert with_stops(body, STOPS) == body
    for method, path in (("POST", "/tokenize"), ("GET", "/v1/completions")):
        scope, body = await passed(monkeypatch, method, path, [b'{"prompt": ""}'])
        assert body == b'{"prompt": ""}' and dict(scope["headers"])[b"content-length"] == b"14"
