"""Show runs in a browser: curves, tasks, prompts, answers and why they failed. The page of a growing run grows.
Everything is local; over ssh, forward the port (ssh -L 8777:localhost:8777 HOST). The printed address holds a secret
token, without which nothing is shown."""

from __future__ import annotations

import ipaddress
import secrets
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from azr.cli.options import Parser, listen, whole
from azr.errors import UserError
from azr.explorer.index import RunIndex
from azr.files import atomic_write

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def main(argv: Sequence[str]) -> int:
    options = parser().parse(argv)
    if len(options.runs) != len({path.resolve() for path in options.runs}):
        raise UserError("A run is named twice: name each run once.")
    for path in options.runs:
        RunIndex(path).close()
    if options.out is not None:
        return _write_report(options.runs, options.out)
    return _serve(options.runs, options.host, options.port, options.token)


def parser() -> Parser:
    parser = Parser("view", __doc__)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="run directories, or folders of azr eval")
    parser.add_argument("--port", type=whole(0, 65535), default=8777, help="port; 0: any free one")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen at")
    parser.add_argument("--no-token", dest="token", action="store_false", help="show the runs to every user of this "
        "machine, without a token in the address; on loopback only")  # fmt: skip
    parser.add_argument("--out", type=Path, help="write one HTML file instead of starting a server")
    return parser


def _write_report(runs: Sequence[Path], out: Path) -> int:
    from azr.explorer.single_file import is_report, report

    if not out.parent.is_dir():
        raise UserError(f"There is no folder {out.parent}: make it, or choose another --out.")
    if not out.name:
        raise UserError(f"{str(out)!r} names no file: choose another --out.")
    try:
        if out.exists() and not is_report(out):
            raise UserError(f"{out} is there already and no report: remove it, or choose another --out.")
        with atomic_write(out) as staging:
            staging.touch()  # before what takes long
            staging.write_bytes(report(runs, lambda sentence: print(sentence, file=sys.stderr)))
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror}): choose another --out.") from error
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB; open it in a browser")
    return 0


def _serve(runs: Sequence[Path], host: str, port: int, with_token: bool) -> int:
    import uvicorn

    from azr.explorer.server import make_app

    with listen(host, port) as listener:
        is_local = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback
        if not (is_local or with_token):
            raise UserError(f"At {host} others than this machine's users could read the run: leave --no-token out.")
        token = secrets.token_urlsafe(24) if with_token else ""
        app = make_app(runs, token=token, hosts=LOOPBACK if is_local else ())
        address = listener.getsockname()
        name = socket.gethostname() if ipaddress.ip_address(address[0]).is_unspecified else address[0]
        shown = f"[{name}]" if ":" in name else name
        print(f"http://{shown}:{address[1]}/{token}{'/' * bool(token)}  (end with Ctrl-C)", flush=True)
        if not is_local:
            print("Anyone who has this address can read the run; it is not encrypted.", flush=True)
        config = uvicorn.Config(app, log_level="error", lifespan="off", server_header=False, access_log=False)
        uvicorn.Server(config).run(sockets=[listener])
    return 0
