"""vLLM's worker, which also reports the seconds of its start's phases and the scheduler's counts.

vLLM gets it as its worker class. vLLM's own statistics are sent to the front process at every iteration, which costs
that process time that sampling needs.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm.platforms import current_platform

from azr.processes import OWNER, end_with

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker
    from vllm.v1.worker.worker_base import CompilationTimes
elif current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker

_log = logging.getLogger(__name__)
_GREW = "Memory usage increased after sleeping"
"""How vLLM says that the GPU has less free memory after a sleep than before it."""


class SchedulingCounts:
    """Scheduler counts: `tokens` computed; `preemptions` for lack of KV cache, and the `recomputed_tokens` that they
    cost; `prompt_tokens`, and the `cached_prompt_tokens` among them."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._preempted: set[str] = set()
        """Preempted requests that have not been scheduled again."""

    def add(self, output: SchedulerOutput) -> None:
        counts = self._counts
        counts["tokens"] += output.total_num_scheduled_tokens
        for new in output.scheduled_new_reqs:
            # vLLM's second model runner gets a request that comes back as if it were new, with all it has so far.
            known = len(new.prefill_token_ids or new.prompt_token_ids or ())
            if new.req_id in self._preempted:
                self._come_back(new.req_id, known - new.num_computed_tokens)
            else:
                counts["prompt_tokens"] += known
                counts["cached_prompt_tokens"] += new.num_computed_tokens
        old = output.scheduled_cached_reqs
        if old.resumed_req_ids:
            for request, computed in zip(old.req_ids, old.num_computed_tokens, strict=True):
                if request in old.resumed_req_ids:
                    self._come_back(request, len(old.all_token_ids[request]) - computed)
        if output.preempted_req_ids:
            counts["preemptions"] += len(output.preempted_req_ids)
            self._preempted |= output.preempted_req_ids
        self._preempted -= output.finished_req_ids

    def _come_back(self, request: str, tokens: int) -> None:
        self._preempted.discard(request)
        self._counts["recomputed_tokens"] += tokens

    def take(self) -> dict[str, int]:
        """Return the counts since the last call; missing ones are 0."""
        counts, self._counts = dict(self._counts), Counter()
        return counts


class MeasuredWorker(PlatformWorker):
    """The platform's own worker with `start_seconds` and `take_counts`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # vLLM's processes would stay and hold the GPU's memory. Its core process ends with its worker.
        if (owner := os.environ.get(OWNER)) is not None:
            end_with(int(owner))
        self._start_seconds: dict[str, float] = {}
        self._scheduled = SchedulingCounts()

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self._start_seconds[phase] = time.perf_counter() - began

    def init_device(self) -> None:
        with self._timed("device"):
            super().init_device()

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        with self._timed("load"):
            super().load_model(*args, **kwargs)

    def determine_available_memory(self) -> int:
        with self._timed("profile"):
            return super().determine_available_memory()

    def compile_or_warm_up_model(self) -> CompilationTimes:
        with self._timed("warm up"):
            times = super().compile_or_warm_up_model()
        self._start_seconds["compile"] = times.language_model
        return times

    def start_seconds(self) -> dict[str, float]:
        """Return seconds by phase: `device`, `load`, `profile` (first forward pass), `warm up` (graph capture).
        `compile` is the part of the last two spent in torch.compile or in reading its cache."""
        return self._start_seconds

    def shutdown(self) -> None:
        """Shut down as vLLM's worker, which leaves the file behind in which processes of a group find each other."""
        super().shutdown()
        if self.distributed_init_method.startswith("file://"):
            Path(self.distributed_init_method.removeprefix("file://")).unlink(missing_ok=True)

    def sleep(self, level: int = 1) -> None:
        """Sleep as vLLM's worker, whose last check fails where another process takes more than it frees meanwhile."""
        try:
            super().sleep(level)
        except AssertionError as error:
            if _GREW not in str(error):
                raise
            _log.warning("%s: if this GPU has no other user, the engine keeps what it should give up", error)

    def execute_model(self, scheduler_output: SchedulerOutput) -> Any:
        self._scheduled.add(scheduler_output)
        return super().execute_model(scheduler_output)

    def take_counts(self) -> dict[str, int]:
        """Return the counts since the last call, see `SchedulingCounts`."""
        return self._scheduled.take()
