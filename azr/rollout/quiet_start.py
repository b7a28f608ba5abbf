"""Start an engine from a terminal: Ctrl-C ends all at once, and its processes print nothing."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import IO, TypeVar

from azr.errors import UserError
from azr.processes import ended_at_once

_OF_CORE = "Engine core initialization failed"
_CAUSE = re.compile(rf"\b\w*(?:Error|Exception): (?!{_OF_CORE})(.+)")
"""Last line of a Python traceback."""
T = TypeVar("T")


@contextmanager
def quiet_start(model_path: str) -> Iterator[None]:
    """Start an engine in this context: its processes print nothing here.

    Raises UserError if vLLM does not start with this model.
    """
    with tempfile.TemporaryFile() as log:
        try:
            with _output_to(log):
                yield
        except UserError:
            raise
        except (ValueError, RuntimeError, NotImplementedError, OSError) as error:
            log.seek(0)
            # Only the output of the core process says what ended it.
            causes = _CAUSE.findall(log.read().decode(errors="replace")) if _OF_CORE in str(error) else []
            why = causes[-1] if causes else " ".join(str(error).split())
            raise UserError(f"vLLM does not start with {model_path}: {why}") from error


async def start_in_thread(start: Callable[[], T]) -> T:
    """Return what ``start`` returns, whose processes do not get the SIGINT that a terminal sends to all of them: they
    inherit the signals that are blocked in the thread that starts them. Meanwhile it ends all of them and this one."""

    def blocked() -> T:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        return start()

    # Starting the process with which Python tracks shared memory would unblock the signal again.
    resource_tracker.ensure_running()
    with ended_at_once((signal.SIGINT,), lambda _: "interrupted"):
        return await asyncio.to_thread(blocked)


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
