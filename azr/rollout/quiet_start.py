"""Start an engine from a terminal: its processes neither end by Ctrl-C nor print anything."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import IO

from azr.errors import UserError

_OF_CORE = "Engine core initialization failed"
_CAUSE = re.compile(rf"\b\w*(?:Error|Exception): (?!{_OF_CORE})(.+)")
"""Last line of a Python traceback."""


@contextmanager
def quiet_start(model_path: str) -> Iterator[None]:
    """Start an engine in this context: its processes ignore Ctrl-C and print nothing here.

    Raises UserError if vLLM does not start with this model.
    """
    with tempfile.TemporaryFile() as log:
        try:
            with sigint_blocked(), _output_to(log):
                yield
        except UserError:
            raise
        except (ValueError, RuntimeError, NotImplementedError, OSError) as error:
            log.seek(0)
            # What ended the core process stands only in what that process printed.
            causes = _CAUSE.findall(log.read().decode(errors="replace")) if _OF_CORE in str(error) else []
            why = causes[-1] if causes else " ".join(str(error).split())
            raise UserError(f"vLLM does not start with {model_path}: {why}") from error


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Block SIGINT, which a terminal sends to all of its processes, in the processes started meanwhile.

    They inherit the blocked signals. This process gets the signal when the context ends, or in another thread.
    """
    # Starting the process with which Python tracks shared memory would unblock the signal again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _output_to(file: IO[bytes]) -> Iterator[None]:
    """Redirect standard output and error to a file, also those of the processes started meanwhile, for their whole
    life.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    try:
        for number in kept:
            os.dup2(file.fileno(), number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)
