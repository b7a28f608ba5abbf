"""Remembers what programs did, within a budget of bytes, and joins identical requests that are still running."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace

from azr.records import CallStatus, ExecutionRequest, ExecutionResult

_RECORD_BYTES = 500


class ResultCache:
    """Least recently used results leave first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._results: OrderedDict[ExecutionRequest, ExecutionResult] = OrderedDict()
        self._running: dict[ExecutionRequest, asyncio.Task[ExecutionResult]] = {}
        self.hits = 0

    async def get(self, request: ExecutionRequest, run: Callable[[], Awaitable[ExecutionResult]]) -> ExecutionResult:
        """The remembered result, else what ``run`` gives. A lost result is not remembered."""
        if request in self._results:
            self.hits += 1
            self._results.move_to_end(request)
            return replace(self._results[request], cached=True)
        if request in self._running:
            self.hits += 1
            return replace(await asyncio.shield(self._running[request]), cached=True)
        # A task of its own, so that a caller who gives up does not take the others' result along.
        task = self._running[request] = asyncio.ensure_future(run())
        task.add_done_callback(lambda _: self._finish(request, task))
        return await asyncio.shield(task)

    async def drain(self) -> None:
        """Wait until nothing is running."""
        await asyncio.gather(*self._running.values(), return_exceptions=True)

    def _finish(self, request: ExecutionRequest, task: asyncio.Task[ExecutionResult]) -> None:
        del self._running[request]
        if task.cancelled() or task.exception() is not None:
            return
        result = task.result()
        # A busy machine may be to blame for a timeout, so the next one who asks gets another try.
        if result.lost or any(output.status is CallStatus.TIMEOUT for output in result.outputs):
            return
        self._results[request] = result
        self._bytes += _size(request, result)
        while self._bytes > self._max_bytes:
            self._bytes -= _size(*self._results.popitem(last=False))


def _size(request: ExecutionRequest, result: ExecutionResult) -> int:
    texts = [request.program, *request.inputs, *result.screen, *(output.value or "" for output in result.outputs)]
    return sum(_RECORD_BYTES + len(text) for text in texts)
