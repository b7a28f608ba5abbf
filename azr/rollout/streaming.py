"""One vLLM engine that streams the response to one prompt at a time, for a terminal, without Ray."""

from __future__ import annotations

import os
import re
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing import resource_tracker
from typing import IO, TYPE_CHECKING

from azr.config import RolloutConfig
from azr.errors import UserError
from azr.hardware import ComputeType
from azr.records import FinishReason, Stops
from azr.rollout.vllm_adapter import finish_reason, sampling_params, start_vllm, stop_vllm

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_OF_CORE = "Engine core initialization failed"
_CAUSE = re.compile(rf"\b\w*(?:Error|Exception): (?!{_OF_CORE})(.+)")
"""Last line of a Python traceback."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Latest tokens of a response."""

    token_ids: tuple[int, ...]
    finish_reason: FinishReason | None
    """Set in the last piece only."""


class StreamingEngine:
    """Call `start` before anything else, and `shutdown` at the end."""

    def __init__(
        self,
        model_path: str,
        rollout: RolloutConfig,
        *,
        stops: Stops,
        dtype: ComputeType,
        seed: int,
        max_model_len: int,
    ) -> None:
        """`rollout`: GPUs and their memory are read; `max_model_len`: most tokens of prompt and response."""
        self._model_path, self._rollout, self._stops = model_path, rollout, stops
        self._dtype, self._seed, self._max_model_len = dtype, seed, max_model_len
        self._request_ids = count(1)
        self._engine: AsyncLLM | None = None

    async def start(self) -> None:
        """Start the engine, which takes tens of seconds. Its processes ignore Ctrl-C and print nothing here.

        Raises UserError if vLLM does not start with this model.
        """
        with tempfile.TemporaryFile() as log:
            try:
                with sigint_blocked(), _output_to(log):
                    self._engine, _ = await start_vllm(
                        self._model_path,
                        self._rollout,
                        dtype=self._dtype,
                        seed=self._seed,
                        deterministic=False,
                        max_model_len=self._max_model_len,
                    )
            except UserError:
                raise
            except (ValueError, RuntimeError, NotImplementedError, OSError) as error:
                log.seek(0)
                # What ended the core process stands only in what that process printed.
                causes = _CAUSE.findall(log.read().decode(errors="replace")) if _OF_CORE in str(error) else []
                why = causes[-1] if causes else " ".join(str(error).split())
                raise UserError(f"vLLM does not start with {self._model_path}: {why}") from error

    async def stream(
        self, prompt_ids: Sequence[int], *, max_tokens: int, temperature: float, seed: int | None
    ) -> AsyncIterator[Piece]:
        """Yield the tokens of one response while they are sampled from softmax(logits / temperature); 0 is greedy.

        Closing the iterator, or cancelling its reader, ends the response.
        """
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        assert self._engine is not None, "call start() first"
        params = sampling_params(
            self._stops,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            output_kind=RequestOutputKind.DELTA,
        )
        request_id = str(next(self._request_ids))
        async with aclosing(self._engine.generate(tokens_input(list(prompt_ids)), params, request_id)) as outputs:
            async for output in outputs:
                sampled = output.outputs[0]
                reason = finish_reason(sampled) if sampled.finish_reason else None
                yield Piece(tuple(sampled.token_ids), reason)

    async def shutdown(self) -> None:
        """Stop the engine's processes."""
        engine, self._engine = self._engine, None
        stop_vllm(engine)


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
