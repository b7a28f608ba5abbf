"""Processes end with the one that started them, and all of them at once on Ctrl-C while nothing can be lost."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import psutil

OWNER = "AZR_OWNER"
"""Environment variable with the id of the process that a process ends with."""
SOCKETS = "azr-{}-"
"""Beginning of the name of a process's folder of sockets, which is below that of temporary files."""
_LOOK_EVERY_S = 1.0
_PR_SET_PDEATHSIG = 1


@contextmanager
def ended_at_once(signals: Sequence[int], line: Callable[[int], str]) -> Iterator[None]:
    """End this process and all below it on one of these signals in the context, see `end_now`; ignored ones stay so.
    Does nothing outside of the main thread, as in an actor of Ray.

    ``line``: what is said, from the signal's number. A thread waits for signals, since Python calls their handlers only
    when the main thread leaves C code, which takes Ray many seconds.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe()
    os.set_blocking(writer, False)

    def wait() -> None:
        while number := os.read(reader, 1)[0]:
            if number in signals:
                end_now(line(number), 128 + number)
        os.close(reader)

    taken = [each for each in signals if signal.getsignal(each) != signal.SIG_IGN]
    threading.Thread(target=wait, daemon=True).start()
    woken = signal.set_wakeup_fd(writer)
    handlers = {each: signal.signal(each, lambda *_: None) for each in taken}
    try:
        yield
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)
        signal.set_wakeup_fd(woken)
        os.write(writer, b"\0")
        os.close(writer)


def raise_or_end(number: int, frame: FrameType | None) -> None:
    """Answer SIGINT: raise KeyboardInterrupt; but end this process while it loads a module, whose C++ code may abort.

    Python raises it nowhere while such code runs, and takes seconds to end with thousands of modules.
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            end_now("interrupted", 128 + number)
        frame = frame.f_back
    raise KeyboardInterrupt


def end_now(line: str, code: int) -> NoReturn:
    """Kill all processes below this one together, remove the folders of their sockets, and end this one with a line on
    standard error."""
    below = psutil.Process().children(recursive=True)
    for process in below:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.kill()
    for number in (os.getpid(), *(process.pid for process in below)):
        for folder in Path(tempfile.gettempdir()).glob(f"{SOCKETS.format(number)}*"):
            shutil.rmtree(folder, ignore_errors=True)
    shown = "\r\033[J\033[?25h" if os.isatty(2) else ""  # in the place of a bar, which hides the cursor
    os.write(2, f"{shown}{line}\n".encode())
    os._exit(code)


def end_with(owner: int) -> None:
    """End this process with its owner, its parent or one above, which may be killed.

    The kernel's signal comes at the end of the parent, whatever this process does then. It is missed if the parent has
    ended already or if another process is between the two, so a thread looks too.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    threading.Thread(target=_await_end, args=(owner,), daemon=True).start()


def _await_end(owner: int) -> None:
    while process_stat(owner)[:1] not in ([], ["Z"], ["X"]):  # a zombie has ended
        time.sleep(_LOOK_EVERY_S)
    os._exit(1)


def process_stat(process: int) -> list[str]:
    """Return the fields of ``/proc/PROCESS/stat`` from the state on; empty if there is no such process."""
    try:
        # The name before them, in brackets, may hold blanks.
        return Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
