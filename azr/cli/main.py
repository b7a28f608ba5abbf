"""The ``azr`` command: finds the subcommand and loads that one only, so that light ones start at once."""

from __future__ import annotations

import contextlib
import errno
import importlib
import importlib.util
import os
import re
import select
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NoReturn

from azr.errors import UserError, did_you_mean, printable
from azr.own_data import code_version
from azr.processes import raise_or_end
from azr.text import clipped

COMMANDS = {
    "run": "train: a recipe by name, a YAML file that builds on one, or a run's config again",
    "recipes": "list the recipes, the GPUs they need, and which have been tested",
    "execute": "run programs from a JSON-lines file in the sandbox",
    "plan": "estimate a recipe's GPU memory and seconds per step",
    "eval": "evaluate a model on benchmarks",
    "view": "show runs in a browser: curves, tasks, responses and verdicts",
    "runs": "list the runs of a folder by what differs, with the gain of each",
    "show": "print tasks and responses of a run",
    "data": "leave out the rows that evaluation suites hold",
    "new": "write a package for your own kind of self-play, with tests",
    "prompts": "print the exact prompts of a recipe, and its stop strings",
    "check-model": "compare a model in transformers, the trainer and vLLM, before and after a weight sync",
    "serve": "serve a model or a run's policy by vLLM, with the prompts and stop strings of training",
    "export": "write a run's policy as a Hugging Face folder",
    "doctor": "check this machine, and say how to add what is missing",
}
"""Each is a module of ``azr.cli``, with a ``-`` in the command as ``_``, whose ``main(argv)`` returns the exit code and
raises UserError for a user's mistake."""

_SYNONYMS = {"list": "recipes", "ls": "recipes", "train": "run", "version": "--version", "v": "--version"}
"""Words of other programs, and what they are here."""
_OF_AN_EXTRA = re.compile(r"""([\w.-]+).*\bextra == ["'](\w+)["']""")
"""Requirement in a package's metadata."""
_USER_ERROR = 2
_INTERRUPTED = 130
_OF_THE_PLACE = (errno.ENAMETOOLONG, errno.ENOSPC, errno.EDQUOT)
"""Errors of a path or a disk that the user has named, whatever the command does there."""
_PIPE_CLOSED = 141
"""As shells have it for what SIGPIPE ends."""


def main() -> None:
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell's >&-
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    run_as_process(lambda: dispatch(sys.argv[1:]))


def run_as_process(command: Callable[[], int]) -> NoReturn:
    """Run a command, which answers Ctrl-C by `raise_or_end`, and end the process with its code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background job ignores the signal
        signal.signal(signal.SIGINT, raise_or_end)
    if (code := command()) == _INTERRUPTED:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(code)  # Python would take seconds to end with thousands of modules
    sys.exit(code)


def dispatch(argv: Sequence[str]) -> int:
    return exit_code(lambda: _run([*argv[1:2], "--help"] if argv[:1] == ["help"] else argv))


def _run(argv: Sequence[str]) -> int:
    if not argv:
        raise UserError(f"azr needs a command: {', '.join(COMMANDS)}; azr --help says what they do.")
    if argv[0] in ("--help", "-h"):
        lines = [f"  azr {name:<13}{purpose}" for name, purpose in COMMANDS.items()]
        more = "azr COMMAND --help says more; azr --version says which code this is."
        print("\n".join(["usage: azr COMMAND ...", "", *lines, "", more]))
        return 0
    if argv[0] == "--version":
        print(f"azr {code_version()}")
        return 0
    if argv[0] not in COMMANDS:
        meant = _SYNONYMS.get(argv[0].lstrip("-"))
        hint = f"; did you mean {meant}?" if meant else did_you_mean(argv[0], (*COMMANDS, "--help", "--version"))
        raise UserError(f"There is no command {argv[0]!r}{hint} azr --help lists all.")
    return importlib.import_module(f"azr.cli.{argv[0].replace('-', '_')}").main(argv[1:])


def exit_code(command: Callable[[], int]) -> int:
    """Return the command's exit code; 2 after a user's mistake or without a package of an extra, which is printed as
    one sentence; 130 after Ctrl-C; 141 on a closed pipe (SIGPIPE).

    Any other exception passes: Python prints its traceback and exits with code 1.
    """
    try:
        code = command()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        output = select.poll()
        output.register(sys.stdout.fileno(), 0)
        if not any(event & select.POLLERR for _, event in output.poll(0)):
            raise
        _leave_output()  # a closed pipe: what is still to be written goes nowhere
        return _PIPE_CLOSED
    except UserError as error:
        print(f"error: {printable(str(error))}", file=sys.stderr)
        return _USER_ERROR
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if (remedy := _remedy(package)) is None or not _is_ours(error):
            raise
        print(f"error: This takes the package {package}, which is not installed: {remedy}.", file=sys.stderr)
        return _USER_ERROR
    except OSError as error:
        if error.errno not in _OF_THE_PLACE:
            raise
        where = clipped(str(error.filename)) if error.filename is not None else "The output"
        print(f"error: {where} cannot be written or read: {error.strerror}.", file=sys.stderr)
        if error.filename is None:
            _leave_output()
        return _USER_ERROR
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return _INTERRUPTED


def _remedy(package: str) -> str | None:
    """What installs a missing package; None for one that is there or that no extra has."""
    if not package or importlib.util.find_spec(package) is not None:
        return None
    try:
        lines = metadata.requires("azr") or ()
    except metadata.PackageNotFoundError:
        return None
    name = package.lower().replace("_", "-")
    required = [match.groups() for line in lines if (match := _OF_AN_EXTRA.match(line))]
    extras = {extra for each, extra in required if each.lower().replace("_", "-") in (name, f"{name}-cpu")} - {"dev"}
    if extras & {"train", "cpu", "gpu"}:
        return "run make install in the clone"
    return f"run pip install -e '.[{min(extras)}]' in the clone" if extras else None


def _is_ours(error: ImportError) -> bool:
    """Whether a module of this package asked for what is missing, not a user's or another package's."""
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    asked = [file for file in files if not file.startswith("<frozen importlib")][-1]
    return Path(asked).is_relative_to(Path(__file__).parents[1])


def _leave_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
