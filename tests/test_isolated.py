"""Functions of the user's own in processes: what they do wrong costs one answer, whatever it is."""

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from azr import isolated
from azr.isolated import MAX_HANGS, OwnFunctions, WorkerError, Workers
from tests.runs.factory import until

MODULE = Path(__file__).with_name("answering.txt").read_text()


@pytest.fixture
async def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[OwnFunctions]:
    (tmp_path / "answering.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(isolated, "TIME_LIMIT_S", 1.0)
    made = OwnFunctions("answering", ["an argument"], size=1)
    yield made
    await made.end()


async def call(functions: OwnFunctions, do: str, **message: Any) -> Any:
    return await functions.call(f"a function to {do}", {"do": do, **message}, costs="that is all")


ENDED = "took over 1 s, or ended its process"


@pytest.mark.parametrize("do, said", [
    ("nonsense", "returned soup"), ("raise", "raised ValueError: a reason"), ("hang", ENDED), ("children", ENDED),
    ("die", ENDED), ("exit", "raised SystemExit: 3"), ("large", "returned 8,388,622 bytes, which is more than"),
    ("memory", "raised MemoryError"),
])  # fmt: skip
async def test_trouble_costs_one_answer_and_is_said_once(functions, do, said, caplog) -> None:
    with caplog.at_level(logging.WARNING, isolated.__name__):
        for _ in range(2):
            with pytest.raises(WorkerError, match=said):
                await call(functions, do)
            assert await call(functions, "echo", what=[1, "\ud800"]) == [1, "\ud800"]
    (record,) = [each for each in caplog.records if each.name == isolated.__name__]
    assert record.getMessage().startswith(f"a function to {do} {said}") and record.getMessage().endswith(
        "; that is all"
    )


async def test_what_a_function_prints_is_no_answer_and_it_reads_no_questions(functions: OwnFunctions) -> None:
    assert await call(functions, "print") == ""
    assert await call(functions, "garble") == "said"
    assert await call(functions, "echo", what=1) == 1


async def test_what_always_hangs_is_left_alone_for_a_while(functions, monkeypatch) -> None:
    monkeypatch.setattr(isolated, "TIME_LIMIT_S", 0.2)
    troubles = await asyncio.gather(*(call(functions, "hang") for _ in range(50)), return_exceptions=True)
    said = Counter(str(each) for each in troubles if isinstance(each, WorkerError))
    assert sorted(said.values()) == [MAX_HANGS, 50 - MAX_HANGS], said
    assert await call(functions, "echo", what=1) == 1, "other functions continue"
    monkeypatch.setattr(isolated, "REST_S", 0.0)
    functions._rests_until["a function to hang"] = 0.0
    for _ in range(2):  # it is asked again, and as before once it answered
        assert await call(functions, "hang", not_now=True) == "now"


async def test_a_lower_limit_of_memory_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "limited.py").write_text(
        "import resource\nfrom azr.isolated import serve\n\n"
        "def load(arguments):\n"
        "    resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))\n"
        "    return lambda message: resource.getrlimit(resource.RLIMIT_AS)\n\n"
        "if __name__ == '__main__':\n    serve(load)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    workers = Workers("limited")
    try:
        assert await workers.ask({}, 60.0) == [2**31, 2**31]
    finally:
        await workers.end()


def test_it_ends_with_its_run_even_while_it_hangs(tmp_path: Path) -> None:
    (tmp_path / "answering.py").write_text(MODULE.replace('"an argument"', f'"{tmp_path}"'))
    run = (
        "import asyncio\nfrom azr import isolated\nisolated.TIME_LIMIT_S = 600\n"
        f"functions = isolated.OwnFunctions('answering', ['{tmp_path}'])\n"
        "asyncio.run(functions.call('it', {'do': 'hang'}, costs=''))"
    )
    root = Path(__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, "-c", run], env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}"}
    )
    try:
        until(lambda: _workers(tmp_path) and psutil.Process(_workers(tmp_path)[0]).cpu_times().user > 0.7, 60)
        process.send_signal(signal.SIGKILL)
        until(lambda: not _workers(tmp_path), 60)
    finally:
        process.kill()
        process.wait()


def _workers(folder: Path) -> list[int]:
    wanted = f"answering\0{folder}".encode()
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if wanted in place.read_bytes():
                found.append(int(place.parent.name))
    return found
