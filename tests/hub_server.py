"""A server that answers the hub's API for one upload and one data set, as `huggingface_hub` and `datasets` ask it."""

import base64
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType
from typing import Any

_COMMIT = "1" * 40
_ROWS = "/api/datasets/me/rows"


class Hub(ThreadingHTTPServer):
    """A hub with one user, ``me``, whose token is ``secret``, and the data set ``me/rows``.

    ``refuses``: a path that it answers with 403; ``answer``: status and headers with which it answers every GET.
    """

    def __init__(self, data_set: Mapping[str, bytes]) -> None:
        """``data_set``: files by name, such as ``data/train.parquet``."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.data_set = data_set
        self.created: list[dict[str, Any]] = []
        self.cards: list[str] = []
        self.files: dict[str, bytes] = {}
        self.refuses: str | None = None
        self.answer: tuple[int, dict[str, str]] | None = None

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path, files = self.path.partition("?")[0], self.server.data_set
        if self.server.answer is not None:
            self._answer(self.server.answer[0], {}, self.server.answer[1])
        elif path == "/api/whoami-v2":
            known = self.headers["Authorization"] == "Bearer secret"
            self._answer(200 if known else 401, {"name": "me", "type": "user"})
        elif path.startswith(f"{_ROWS}/tree/{_COMMIT}"):
            folder = path.removeprefix(f"{_ROWS}/tree/{_COMMIT}").strip("/")
            inside = [{"type": "directory", "path": name.split("/")[0], "oid": _COMMIT, "size": 0} for name in files]
            if folder:
                inside = [{"type": "file", "path": name, "oid": _COMMIT, "size": len(files[name])} for name in files]
            self._answer(200, inside)
        elif path == _ROWS or path.startswith(f"{_ROWS}/revision/"):
            facts = {"id": "me/rows", "sha": _COMMIT, "private": False, "gated": False, "disabled": False, "tags": []}
            siblings = [{"rfilename": name} for name in files]
            self._answer(200, facts | {"downloads": 0, "likes": 0, "siblings": siblings})
        elif (name := path.removeprefix(f"/datasets/me/rows/resolve/{_COMMIT}/")) in files:
            self._answer(200, files[name], {"ETag": f'"{_COMMIT}"', "X-Repo-Commit": _COMMIT})
        else:
            code = "EntryNotFound" if path.startswith("/datasets/me/rows/") else "RepoNotFound"
            self._answer(404, {"error": f"no {path}"}, {"X-Error-Code": code, "X-Repo-Commit": _COMMIT})

    def do_POST(self) -> None:
        sent, hub = self.rfile.read(int(self.headers["Content-Length"])), self.server
        if self.path == hub.refuses:
            self._answer(403, {"error": "no right to write here"})
        elif self.path == "/api/repos/create":
            hub.created.append(json.loads(sent))
            self._answer(200, {"url": f"{hub.address}/me/model"})
        elif self.path == "/api/validate-yaml":
            hub.cards.append(json.loads(sent)["content"])
            self._answer(200, {"errors": [], "warnings": []})
        elif self.path == "/api/models/me/model/preupload/main":
            named = [file["path"] for file in json.loads(sent)["files"]]
            files = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in named]
            self._answer(200, {"files": files})
        elif self.path == "/api/models/me/model/commit/main":
            lines = [json.loads(line) for line in sent.splitlines()]
            files = [line["value"] for line in lines if line["key"] == "file"]
            hub.files |= {file["path"]: base64.b64decode(file["content"]) for file in files}
            self._answer(200, {"commitUrl": f"{hub.address}/me/model/commit/1", "commitOid": _COMMIT})
        else:
            self._answer(404, {"error": f"no {self.path}"})

    def _answer(self, status: int, content: object, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Tests have nothing to read here."""


@contextmanager
def open_hub(data_set: Mapping[str, bytes] = MappingProxyType({})) -> Iterator[Hub]:
    with Hub(data_set) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        yield hub
        hub.shutdown()


def azr(hub: Hub, home: Path, *command: object, token: str = "secret") -> subprocess.CompletedProcess[str]:
    """Run ``azr`` in a process of its own, which takes this server for the hub."""
    environment = os.environ | {"HF_ENDPOINT": hub.address, "HF_HOME": str(home), "XDG_CACHE_HOME": str(home)}
    environment |= {"HF_TOKEN": token, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    command = (sys.executable, "-m", "azr", *map(str, command))
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
