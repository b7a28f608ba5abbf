"""The world outside the walls, prepared so that anything that gets through is noticed."""

import itertools
import os
import secrets
import select
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any, Self

_REPOSITORY = Path(__file__).resolve().parents[3]
_PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/", str(_REPOSITORY), str(Path.home()))
_KEPT = "kept"
_PAST = 1_000_000_000


class World:
    """Canary folders, a secret and listening sockets, for as long as the context lasts.

    Whatever attacks create bears ``mark`` in its name or content, so it is found wherever it turns up, also when others
    use the machine at the same time. The secret may not be read, the listeners may hear nothing, and what honest
    programs said (``sentinel``) may not be known to anyone else.
    """

    def __init__(self) -> None:
        token = secrets.token_hex(6)
        self.mark = f"azr_mark_{token}"
        self.sentinel = f"HEIR{'LOOM'}-{token}"
        self._secret = f"secret-{secrets.token_hex(12)}"
        self._key = 0x5A000000 | secrets.randbits(16) << 8
        self.home = Path(tempfile.mkdtemp(prefix="azr-outside-"))
        self.repository = Path(tempfile.mkdtemp(prefix=".azr-outside-", dir=_REPOSITORY))
        for folder in (self.home, self.repository):
            _furnish(folder, self._secret)
        os.environ["AZR_OUTSIDE_SECRET"] = self._secret
        self._listeners = {
            "TCP": _listener(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "UDP": _listener(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "Unix socket": _listener(socket.AF_UNIX, socket.SOCK_STREAM, str(self.home / "listener")),
            "abstract Unix socket": _listener(socket.AF_UNIX, socket.SOCK_STREAM, f"\0{self.mark}"),
        }
        os.chmod(self.home / "listener", 0o666)
        self._log_reader, self.log_writer = os.pipe()
        self._log = b""
        self._marks = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for listener in self._listeners.values():
            listener.close()
        os.close(self._log_reader)
        os.close(self.log_writer)
        del os.environ["AZR_OUTSIDE_SECRET"]
        shutil.rmtree(self.home)
        shutil.rmtree(self.repository)

    def new_mark(self) -> str:
        """For one attack; contains ``mark``."""
        return f"{self.mark}_{next(self._marks)}_"

    def fill(self, program: str, mark: str) -> str:
        """The program with this world's paths and ports, and its own mark, in the places named ``@so@``."""
        values = {
            "secret": self.home / "secret", "home": self.home, "repo": self.repository,
            "tcp": self._listeners["TCP"].getsockname()[1], "udp": self._listeners["UDP"].getsockname()[1],
            "socket": self.home / "listener", "abstract": self.mark, "mark": mark, "key": self._key, "pid": os.getpid(),
        }  # fmt: skip
        for name, value in values.items():
            program = program.replace(f"@{name}@", str(value))
        return program

    def breaches(self, mark: str) -> list[str]:
        """What has got through so far, of what bears a mark only ``mark``."""
        heard, _, _ = select.select(list(self._listeners.values()), [], [], 0)
        found = [f"the {name} listener heard something" for name, one in self._listeners.items() if one in heard]
        found += [
            f"{folder} was changed" for folder in (self.home, self.repository) if not _untouched(folder, self._secret)
        ]
        found += [f"created {place}/{name}" for place in _PLACES for name in _names(place) if mark in name]
        found += [f"made {kind} {self._key:x}" for kind in ("shm", "sem", "msg") if self._has_key(kind)]
        while select.select([self._log_reader], [], [], 0)[0]:
            self._log += os.read(self._log_reader, 2**16)
        if mark.encode() in self._log:
            found.append("wrote to the log of the trainer")
        return found

    def reveals(self, text: str) -> bool:
        """Whether an outcome says what could not have been known."""
        return self._secret in text or self.sentinel in text or "root:x:0" in text

    def _has_key(self, kind: str) -> bool:
        lines = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]
        return any(0 <= int(line.split()[0]) - self._key < 256 for line in lines)


def _furnish(folder: Path, secret: str) -> None:
    """World-readable and world-writable: file modes are not to be what protects it."""
    os.chmod(folder, 0o777)
    (folder / "folder").mkdir(mode=0o777)
    for name, text in (("secret", secret), ("keep", _KEPT)):
        (folder / name).write_text(text)
        os.chmod(folder / name, 0o666)
        os.utime(folder / name, (_PAST, _PAST))


def _untouched(folder: Path, secret: str) -> bool:
    names = {"folder", "secret", "keep"}
    if set(_names(str(folder))) - {"listener"} != names or _names(str(folder / "folder")):
        return False
    paths = [folder / name for name in ("secret", "keep")]
    states = [path.stat() for path in paths]
    same = all(state.st_mtime == _PAST and state.st_mode & 0o777 == 0o666 for state in states)
    return same and [path.read_text() for path in paths] == [secret, _KEPT]


def _names(folder: str) -> list[str]:
    return os.listdir(folder) if os.path.isdir(folder) else []


def _listener(family: int, kind: int, address: Any) -> socket.socket:
    one = socket.socket(family, kind)
    one.bind(address)
    if kind == socket.SOCK_STREAM:
        one.listen()
    return one
