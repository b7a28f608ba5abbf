"""The start of an engine, and one without Ray."""

import asyncio
import math
import multiprocessing
import re
import signal
import tempfile
import time
from pathlib import Path

import pytest

from azr.config import RolloutConfig
from azr.errors import UserError
from azr.rollout.engine import RolloutEngine
from azr.rollout.quiet_start import quiet_start, start_in_thread
from tests.recipes import engine_config

PROMPT = list(b"def f(x):")


def engine_of(model: Path, longest: int = 256) -> RolloutEngine:
    rollout = RolloutConfig(max_concurrent=1, max_prompt_tokens=longest, max_response_tokens=longest)
    return RolloutEngine(engine_config(model, rollout, math.inf))


@pytest.mark.long
def test_a_request_that_was_cancelled_leaves_nothing_behind(tiny_model_path: Path, monkeypatch):
    folder = tempfile.mkdtemp()
    monkeypatch.setattr(tempfile, "tempdir", folder)
    engine = engine_of(tiny_model_path)

    async def sample(seconds: float | None = None) -> list[int]:
        async with asyncio.timeout(seconds):
            (only,) = await engine.generate(PROMPT, n=1, max_tokens=400, seed=3)
        return only.response_ids.tolist()

    with asyncio.Runner() as runner:
        with quiet_start(str(tiny_model_path)):
            runner.run(engine.start())
        Path(folder).rmdir()  # there are no sockets in it
        whole = runner.run(sample())
        with pytest.raises(TimeoutError):
            runner.run(sample(seconds=0.01))
        assert runner.run(sample()) == whole
        runner.run(engine.shutdown())


async def test_the_processes_of_a_start_get_no_sigint():
    started = list[multiprocessing.Process]()

    def start() -> None:
        started.append(multiprocessing.get_context("spawn").Process(target=time.sleep, args=(600,)))
        started[0].start()
        started[0].join()

    starting = asyncio.create_task(start_in_thread(start))
    while not started or started[0].pid is None:
        await asyncio.sleep(0.01)
    (blocked,) = re.findall(r"SigBlk:\s*(\w+)", Path(f"/proc/{started[0].pid}/status").read_text())
    assert int(blocked, 16) >> signal.SIGINT - 1 & 1
    started[0].kill()
    await starting


async def test_a_temporary_folder_that_is_too_deep_for_sockets_is_named(tiny_model_path: Path, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / (60 * "x")))
    with pytest.raises(UserError, match=r"x, is \d+ bytes too long for vLLM's sockets: set TMPDIR"):
        await engine_of(tiny_model_path).start()


@pytest.mark.long
def test_what_vllm_refuses_is_told_in_one_sentence(tiny_model_path: Path):
    said = r"vLLM does not start with .*tiny_model.*: .*max_model_len"
    with pytest.raises(UserError, match=said) as refusal, quiet_start(str(tiny_model_path)):
        asyncio.run(engine_of(tiny_model_path, longest=2048).start())
    assert "\n" not in str(refusal.value)
