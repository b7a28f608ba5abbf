"""The sandbox pool: runs model-written programs in zygotes and says what each call did.

The pool is the trusted side. It never runs or evaluates a program's text and never sends an expected value
anywhere: callers compare what comes back. Every request gets exactly one result, whatever happens below.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

from azr.config import ExecutorConfig
from azr.errors import UserError
from azr.execution import MAX_INPUTS, CallResult, CallStatus, ExecutionRequest, ExecutionResult
from azr.executor import protocol
from azr.executor.backends import select_backend
from azr.executor.backends.sandbox import Launcher, LaunchError
from azr.executor.runs import DECIDED_ALONE, Cache, CodeCache, Runs
from azr.executor.scheduler import Scheduler

_REQUEST_WALLS = 8
ANSWER_MODULES = (
    "argparse", "asyncio", "atexit", "bdb", "builtins", "bz2", "cProfile", "calendar", "cmd", "code", "codecs",
    "codeop", "concurrent.futures.thread", "configparser", "contextvars", "copyreg", "datetime", "dis", "doctest",
    "email.message", "email.utils", "errno", "faulthandler", "fileinput", "gc", "genericpath", "getopt", "getpass",
    "gettext", "glob", "gzip", "hashlib", "hmac", "html.entities", "html.parser", "http", "importlib.util",
    "inspect", "io", "ipaddress", "linecache", "locale", "logging", "lzma", "marshal", "mimetypes", "multiprocessing",
    "ntpath", "opcode", "optparse", "os", "os.path", "pathlib", "pdb", "pickle", "pickletools", "pkgutil", "platform",
    "plistlib", "posixpath", "profile", "pstats", "queue", "quopri", "random", "reprlib", "runpy", "sched", "secrets",
    "selectors", "shelve", "shlex", "shutil", "signal", "sqlite3", "stat", "stringprep",
    "subprocess", "symtable", "sys", "sysconfig", "tarfile", "threading", "time", "timeit", "token", "tokenize",
    "tomllib", "trace", "traceback", "tracemalloc", "unittest.mock", "urllib.parse", "uuid", "warnings", "wave",
    "weakref", "xml.dom.minidom", "xml.etree.ElementTree", "xml.sax", "zipfile", "zoneinfo", "_strptime",
)  # fmt: skip
"""Modules that answers to benchmarks may import in addition to those of proposals; missing ones are skipped. None of
them reaches files, processes, sockets or threads: the sandbox refuses the system calls."""
_ANSWER_LIMITS: Any = {"input_bytes": 16 * 2**20, "output_bytes": 4 * 2**20, "modules": ANSWER_MODULES}
_CACHE_BYTES = 64 * 2**20
_MOST_WAITING = 4096
_Results = dict[ExecutionRequest, ExecutionResult]
"""By requests of one call."""


class SandboxPool:
    """Run programs: ``async with SandboxPool(config) as pool: await pool.execute(request)``.

    Leaving the block ends every process: after what runs has finished or, if an exception leaves it, at once.
    """

    def __init__(
        self,
        config: ExecutorConfig,
        *,
        seed: int | None = None,
        repeats: int = protocol.REPEATS,
        answers: bool = False,
    ) -> None:
        """Raises UserError for settings that cannot hold. Nothing is started yet.

        ``seed``: each program runs under the same hash seeds every time, whatever else there is to run; they derive
        from this number and are random without it. ``repeats``: most repeats that a request may ask for. ``answers``:
        it runs answers to public benchmarks, which import more modules, may ask for the time, and take and return
        longer values; the walls are the same.
        """
        if config.workers < 1 or repeats < 1 or config.wall_s <= 0:
            raise UserError("executor.workers and repeats must be at least 1 and executor.wall_s positive.")
        self._config, self._seed, self._repeats = config, seed, repeats
        self._limits = protocol.Limits(
            wall_s=config.wall_s,
            request_s=_REQUEST_WALLS * config.wall_s,
            memory_mb=config.memory_mb,
            **_ANSWER_LIMITS if answers else {},
        )
        # Repeats need interpreters with different hash seeds, even when few programs run at once.
        self._slots = max(config.workers, repeats * protocol.SUSPECT_FACTOR if repeats > 1 else 1)
        self._launcher: Launcher | None = None
        self._scheduler: Scheduler | None = None
        self.isolation = ""
        """One line: what isolates model-written code, and why nothing stronger; known once started."""
        self._waiting = asyncio.Semaphore(_MOST_WAITING)
        self._cache = Cache[ExecutionRequest, ExecutionResult](_CACHE_BYTES)  # by requests of one call
        self._codes = CodeCache(_CACHE_BYTES)
        self._running: dict[tuple[ExecutionRequest, ...], asyncio.Task[_Results]] = {}
        """By all calls of a run: one that had other company may end otherwise."""
        self._counts = Counter(requests=0, inputs=0, cache_hits=0, calls=0)
        self._closed = False

    async def __aenter__(self) -> SandboxPool:
        await self.start()
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        await (self.close() if failure is None else self.abort())

    async def start(self) -> None:
        """Select a backend and start the zygotes. Raises UserError when model-written code cannot be isolated on this
        machine."""
        launcher, isolation = await asyncio.to_thread(select_backend, self._config)
        scheduler = Scheduler(launcher, self._slots, self._config.workers, self._limits, self._seed)
        try:
            await scheduler.start()
        except BaseException as error:
            await launcher.close()
            if isinstance(error, LaunchError):
                name = isolation.partition(":")[0]
                raise UserError(f"The executor's sandboxes do not start behind {name}: {error}.") from error
            raise
        self.isolation, self._launcher, self._scheduler = isolation, launcher, scheduler

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        """Return the result of every call of the request. Raises ValueError only for requests no program could meet.

        Waits first if very many requests are waiting already.
        """
        assert self._scheduler is not None and not self._closed, "the pool is not started, or closed"
        if not 1 <= request.repeats <= self._repeats:
            raise ValueError(f"A request may have 1 to {self._repeats} repeats here, not {request.repeats}.")
        if not 1 <= len(request.inputs) <= MAX_INPUTS:
            raise ValueError(f"A request must have 1 to {MAX_INPUTS} inputs, not {len(request.inputs)}.")
        async with self._waiting:
            return await self._execute(request)

    def stats(self) -> dict[str, int]:
        """Return counts since the pool was made, among them calls run or refused by status.

        ``inputs``: calls asked for. ``cache_hits``: those that needed no run, because an identical one was remembered
        or running. ``restarts``: zygotes replaced, because they were lost or had served long enough.
        """
        return {"restarts": self._scheduler.restarts if self._scheduler else 0, **self._counts}

    async def close(self) -> None:
        """Finish what runs, then end every process. Safe to call again."""
        if self._running:
            await asyncio.wait(self._running.values())
        await self.abort()

    async def abort(self) -> None:
        """End every process at once; what runs is lost. Safe to call again."""
        self._closed = True
        if self._scheduler is not None and self._launcher is not None:
            await self._scheduler.close()
            await self._launcher.close()

    async def _execute(self, request: ExecutionRequest) -> ExecutionResult:
        keys = [replace(request, inputs=(text,)) for text in request.inputs]
        found = {key: known for key in keys if (known := self._cache.get(key)) is not None}
        fresh = tuple(dict.fromkeys(key for key in keys if key not in found))
        running = self._running.get(fresh)
        hits = len(keys) - (0 if running else len(fresh))
        self._counts.update(requests=1, inputs=len(keys), cache_hits=hits)
        if fresh:
            if running is None:
                self._running[fresh] = asyncio.create_task(self._run(request, fresh))
            # Shielded: a caller who gives up must not take along what others wait for.
            found |= await asyncio.shield(self._running[fresh])
        results = [found[key] for key in keys]
        deterministic = [result.deterministic for result in results]
        return ExecutionResult(
            outputs=tuple(call for result in results for call in result.outputs),
            deterministic=None if None in deterministic else all(deterministic),
            static_check=next((result.static_check for result in results if result.static_check), ()),
            cached=not fresh or running is not None,
        )

    async def _run(self, request: ExecutionRequest, keys: tuple[ExecutionRequest, ...]) -> _Results:
        """Run calls of one program together; return their results, and remember those that other calls of the request
        have no part in."""
        try:
            longest = protocol.MAX_PROGRAM_BYTES if keys[0].static_check else protocol.MAX_UNCHECKED_BYTES
            longest_inputs, refusal = max(protocol.MAX_INPUT_BYTES, self._limits.input_bytes), ""
            if len(keys[0].program.encode("utf-8", "surrogatepass")) > longest:
                refusal = f"the program is longer than {longest} bytes"
            elif sum(len(key.inputs[0].encode("utf-8", "surrogatepass")) for key in keys) > longest_inputs:
                refusal = f"the inputs are longer than {longest_inputs} bytes"
            if refusal:
                refused = CallResult(status=CallStatus.REJECTED, error=refusal)
                results = [ExecutionResult(outputs=(refused,))] * len(keys)
            else:
                assert self._scheduler is not None
                request = replace(request, inputs=tuple(key.inputs[0] for key in keys))
                results = await Runs(request, self._limits, self._scheduler, self._codes).run()
        finally:
            del self._running[keys]
        self._counts.update(call.status.value for result in results for call in result.outputs)
        self._counts["calls"] += len(results)
        found = dict(zip(keys, results, strict=True))
        for key, result in found.items():
            (call,), agreed = result.outputs, result.deterministic
            is_certain = key.repeats == 1 or agreed is not None or result.static_check
            depends_on_others = refusal or call == protocol.TOO_MUCH or (len(keys) > 1 and agreed is False)
            if is_certain and call.status in DECIDED_ALONE and not depends_on_others:
                texts = (key.program, *key.inputs, *result.static_check, call.value or "")
                self._cache.put(key, result, sum(map(len, texts)))
        return found
