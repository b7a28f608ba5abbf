"""One vLLM engine behind a few async methods, for a Ray actor.

``ray.remote(RolloutEngine)``: many `generate` calls may run at once. New calls wait during a weight sync and while the
engine sleeps.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
import numpy as np
import ray
from transformers import AutoTokenizer

from azr.cluster.placement import take_gpus
from azr.cluster.supervisor import TakesSharedCalls
from azr.cluster.weight_buckets import WeightBucket
from azr.cluster.weight_transfers import on_this_node
from azr.config import Config
from azr.hardware import network_environment
from azr.prompts.token_text import table_decoder
from azr.records import Completion, PromptIds, Stops
from azr.rollout.vllm_adapter import EngineStart, import_vllm, raise_if_dead, sample, start_vllm

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

NO_STOPS = Stops()
SILENCE_S = 30.0
"""Deadline for the engine's weight version; an engine that is slower is silent."""
MemoryPart = Literal["weights", "kv_cache"]
"""Memory that an engine frees in sleep, by vLLM's names."""


class FairSemaphore:
    """FIFO semaphore that acquires n permits at once."""

    def __init__(self, count: int) -> None:
        self._count, self._free = count, asyncio.Semaphore(count)
        self._first = asyncio.Lock()

    @asynccontextmanager
    async def take(self, count: int) -> AsyncIterator[None]:
        """Hold ``count`` permits, or all of them if there are fewer."""
        wanted, taken = min(count, self._count), 0
        try:
            async with self._first:
                while taken < wanted:
                    await self._free.acquire()
                    taken += 1
            yield
        finally:
            for _ in range(taken):
                self._free.release()


class RolloutEngine(TakesSharedCalls):
    """Samples from the policy. Call `start` before anything else."""

    def __init__(self, config: Config, *, stops: Stops = NO_STOPS, seed: int = 1, gpus: Sequence[str] = ()) -> None:
        """`config`: of the run, whose `model.path` is a Hugging Face folder or hub name. With `run.deterministic` the
        engine samples one prompt at a time, so that its samples depend only on weights and seed.

        `gpus`: the GPUs of this node to use, as CUDA_VISIBLE_DEVICES names them, when they are more than the one that
        Ray gave this actor.
        `stops`: end a response, in addition to the end tokens that the model's folder names.
        """
        super().__init__()
        self._config, self._rollout, self._stops, self._seed = config, config.rollout, stops, seed
        self._generate_timeout_s, self._deterministic = config.timeout.generate_s, config.run.deterministic
        exclusive = asyncio.Lock() if self._deterministic else nullcontext()
        self._exclusive_lock: AbstractAsyncContextManager[None] = exclusive
        self._max_model_len = config.max_trajectory_tokens
        self._gpus = tuple(gpus)
        self._engine: AsyncLLM | None = None
        self._decode: Callable[[Sequence[int]], str] | None = None
        self._on_gpu = False
        self._request_ids = itertools.count(1)
        self._num_running = 0
        """Number of `generate` calls that sample."""
        self._served_s = 0.0
        """Seconds that the engine has sampled, up to `_resumed_at` if that is not None."""
        self._resumed_at: float | None = time.monotonic()
        """None while running responses are paused."""
        # A few more than are decoded at once, so that none is missed while the next ones come.
        self._permits = FairSemaphore(self._rollout.max_concurrent + max(8, self._rollout.max_concurrent // 8))
        self._weight_version = 0
        self._changed = asyncio.Condition()
        self._asleep: frozenset[MemoryPart] = frozenset()
        self._updating: int | None = None
        self._next_bucket = 0
        self._workers_updating = False
        self._unusable: str | None = None
        """Why sampling from the weights is forbidden; None if it is allowed."""

    @property
    def _llm(self) -> AsyncLLM:
        assert self._engine is not None, "the engine was not started, or has ended"
        return self._engine

    @property
    def core_died(self) -> bool:
        """Whether vLLM's process ended without `shutdown`; the engine is then useless."""
        return self._engine is not None and self._engine.errored

    async def load_code(self) -> None:
        """Do the part of `start` that needs no GPU: importing vLLM is a third of a warm start."""
        self._set_environment()
        import_vllm(self._config)

    def _set_environment(self) -> None:
        if ray.is_initialized():
            take_gpus(self._gpus)
            os.environ |= network_environment(ray.util.get_node_ip_address()) | os.environ

    async def start(self) -> EngineStart:
        """Load the model and start the engine's processes. Takes tens of seconds.

        Raises UserError if the engine's memory is not free, or if vLLM refuses one of `rollout.engine_options`.
        """
        assert self._engine is None, "the engine was already started"
        self._set_environment()
        self._decode = table_decoder(AutoTokenizer.from_pretrained(self._config.model.path))
        self._engine, self._on_gpu = await start_vllm(self._config, self._seed)
        reports: list[dict[str, float]] = await self._engine.collective_rpc("start_seconds")
        tokens = self._engine.vllm_config.cache_config.kv_cache_size_tokens
        assert tokens is not None, "vLLM's core process says it once it has its KV cache"
        return EngineStart(tokens, {phase: max(report[phase] for report in reports) for phase in reports[0]})

    @raise_if_dead
    async def take_counts(self) -> dict[str, int]:
        """Return the scheduler's counts since the last call, see `azr.rollout.measured_worker`."""
        counts: dict[str, int] = (await self._llm.collective_rpc("take_counts"))[0]
        return counts

    @raise_if_dead
    async def generate(
        self,
        prompt_ids: PromptIds,
        *,
        n: int,
        max_tokens: int,
        temperature: float | None = None,
        seed: int | None = None,
        stop_strings: Sequence[str] = (),
    ) -> list[Completion]:
        """Draw `n` samples from softmax(logits / temperature), each of at most `max_tokens` tokens; the temperature is
        `rollout.temperature` if none is given. `stop_strings` end a response in addition to the engine's stops.

        The same seed gives the same samples: in a deterministic engine to the last bit, in others as long as rounding
        does not differ between batches. Temperature 0 is greedy, with `n` = 1; its logprobs are those at temperature 1.

        Returns fewer than `n` if the engine worked on some for longer than ``generate_timeout_s``: these are given
        up. Waiting for a permit, for weights and for the end of a sleep does not count. With ``rollout.staleness`` a
        weight sync pauses responses, which then continue under the new weights.

        Raises ValueError for a prompt that leaves no room for a response, TimeoutError if the engine is silent, and
        RuntimeError if a weight sync failed.
        """
        if not 0 < len(prompt_ids) < self._max_model_len:
            raise ValueError(
                f"a prompt must have 1 to {self._max_model_len - 1} tokens, not {len(prompt_ids)}: "
                "shorten it or raise max_prompt_tokens"
            )
        assert seed is not None or not self._deterministic, "a deterministic engine needs to be told which samples"
        prompt = np.array(prompt_ids, np.int32)  # a copy, for what came by Ray lies in its object store
        prompt.flags.writeable = False  # so that all responses share it
        temperature = self._rollout.temperature if temperature is None else temperature
        stops = replace(self._stops, strings=(*self._stops.strings, *stop_strings))
        async with self._inference_permit(), self._exclusive_lock, self._permits.take(n):
            request_id = str(next(self._request_ids))
            sampling = asyncio.ensure_future(
                sample(
                    self._llm,
                    request_id,
                    prompt,
                    stops,
                    n=n,
                    max_tokens=max_tokens,
                    temperature=temperature,
                    seed=seed,
                    exclusive=self._deterministic,
                )
            )
            try:
                if not await self._wait_while_sampling(sampling):
                    await self._llm.abort(request_id)
                finished = await sampling
            finally:
                sampling.cancel()
        if len(finished) < n:
            await self._raise_if_silent()
        if self._decode is None:
            return finished
        # Here, because the driver has one process for all engines.
        return [replace(each, text=self._decode(each.response_ids.tolist())) for each in finished]

    async def _wait_while_sampling(self, work: asyncio.Future[Any]) -> bool:
        """Wait until the work is done or the engine has sampled for `generate_timeout_s`; return whether it is done."""
        until = self._served() + self._generate_timeout_s
        while not work.done() and (left_s := until - self._served()) > 0:
            async with self._changed:
                await self._changed.wait_for(lambda: self._resumed_at is not None)
            await asyncio.wait({work}, timeout=left_s)
        return work.done()

    def _served(self) -> float:
        return self._served_s + (time.monotonic() - self._resumed_at if self._resumed_at is not None else 0.0)

    async def _raise_if_silent(self) -> None:
        """Tell a slow response from a silent engine: raise TimeoutError for the latter."""
        try:
            async with asyncio.timeout(SILENCE_S):
                await self._llm.get_weight_version()
        except TimeoutError as error:
            state = f"the engine was busy with {self._num_running} prompts"
            if self._asleep:
                state = "the engine is asleep and was not woken"
            elif self._updating is not None:
                state = f"the engine waits for the rest of weight version {self._updating}"
            raise TimeoutError(f"a prompt got no response within {self._generate_timeout_s:.0f} s: {state}") from error

    @asynccontextmanager
    async def _inference_permit(self) -> AsyncIterator[None]:
        """Wait until sampling is allowed, and keep the weights unchanged inside the context."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._updating is None and not self._asleep)
            if self._unusable is not None:
                raise RuntimeError(self._unusable)
            self._num_running += 1
        try:
            yield
        finally:
            async with self._changed:
                self._num_running -= 1
                self._changed.notify_all()

    async def _pause(self) -> None:
        """Wait until no response runs, or with ``rollout.staleness`` pause them; the caller holds back new prompts."""
        if self._rollout.staleness:
            await self._llm.pause_generation(mode="keep", clear_cache=False)
            self._served_s, self._resumed_at = self._served(), None
        else:
            await self._changed.wait_for(lambda: self._num_running == 0)

    async def _resume(self) -> None:
        """Let responses run, unless the engine sleeps or has no sound weights."""
        if self._rollout.staleness and not self._asleep and self._unusable is None:
            await self._llm.resume_generation()
            self._resumed_at = time.monotonic()
        self._changed.notify_all()

    @raise_if_dead
    async def begin_update(self, version: int) -> str:
        """Hold back new prompts, wait for running ones or pause them, and prepare the engine for weights.

        Returns Ray's id of the engine's node, or "" without Ray. May be called again after a failed update. Raises
        ValueError if `version` is not above the current one.
        """
        if version <= self._weight_version:
            raise ValueError(f"weight version {version} is not newer than {self._weight_version}")
        if "weights" in self._asleep:
            raise RuntimeError("a sleeping engine cannot take weights: call wake() first")
        async with self._changed:
            self._updating, self._next_bucket = version, 0
            await self._pause()
        self._unusable = f"the update to weight version {version} failed: send all weights again"
        if self._workers_updating:
            await self._on_workers("finish_weight_update")
        await self._on_workers("start_weight_update")
        self._workers_updating = True
        return ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""

    @raise_if_dead
    async def connect(self, transfer: str, info: dict[str, Any]) -> None:
        """Connect the workers to the sender, if the transfer needs it; they wait for it."""
        await self._on_workers("init_weight_transfer_engine", {"transfer": transfer, "info": info})

    async def _on_workers(self, method: str, *args: Any) -> None:
        """Call a method of vLLM's workers. Raises RuntimeError after all have answered, if one of them failed."""
        failures = await self._llm.collective_rpc("attempt", args=(method, *args))
        if failure := next(filter(None, failures), None):
            raise RuntimeError(failure)

    @raise_if_dead
    async def load_bucket(self, bucket: WeightBucket, region: np.ndarray | None = None) -> None:
        """Load one bucket; afterwards its bytes may be overwritten. `region` (N) uint8: these, from another node.

        Buckets are loaded in the order of their index: an async actor may start calls in another order than they were
        made. Raises ValueError for a bucket of another version, and RuntimeError if the workers refuse it; the engine
        then serves nothing until a whole update succeeds.
        """
        async with self._changed:
            await self._changed.wait_for(lambda: self._updating != bucket.version or bucket.index <= self._next_bucket)
        self._check_version(bucket.version)
        try:
            with on_this_node(bucket, region) as near:
                await self._on_workers("update_weights", {"bucket": msgspec.msgpack.encode(near)})
        except Exception:
            # A worker leaves the update by itself when a part of it fails, so all have to.
            await self._llm.collective_rpc("attempt", args=("finish_weight_update",))
            self._workers_updating = False
            await self._end_update()
            raise
        async with self._changed:
            self._next_bucket += 1
            self._changed.notify_all()

    @raise_if_dead
    async def finish_update(self, version: int, digest: str) -> int:
        """Serve the new weights; returns their version, read back from the core process. `digest`: that of the last
        bucket.

        Raises ValueError if the workers received other bytes, or not every parameter of the model.
        """
        self._check_version(version)
        await self._on_workers("finish_weight_update")
        self._workers_updating = False
        problems = await self._llm.collective_rpc("weight_problem", args=(digest,))
        if problem := next(filter(None, problems), None):
            await self._end_update()
            raise ValueError(f"weight version {version} was not taken: {problem}")
        await self._llm.update_weight_version(str(version))
        # Paused responses compute their tokens' keys and values again: log-probabilities are those of the new weights.
        was_reset = await self._llm.reset_prefix_cache(reset_running_requests=True)
        assert was_reset, "a prefix cache without running prompts can be reset"
        self._unusable = None
        self._weight_version = int(await self._llm.get_weight_version())
        await self._end_update()
        return self._weight_version

    def _check_version(self, version: int) -> None:
        if version != self._updating:
            raise ValueError(f"got weight version {version} while expecting {self._updating}: call begin_update first")

    async def _end_update(self) -> None:
        async with self._changed:
            self._updating = None
            await self._resume()

    @raise_if_dead
    async def sleep(self) -> None:
        """Hold back new prompts, wait for running ones or pause them, and on a GPU free its memory.

        A GPU engine drops its weights and needs all of them after `wake`. A CPU engine keeps them: its memory is not
        scarce.
        """
        async with self._changed:
            self._asleep = frozenset(get_args(MemoryPart))
            await self._pause()
        if self._on_gpu:
            await self._llm.sleep(level=2, mode="keep")
            self._unusable = "the weights were dropped in sleep: send them again"

    @raise_if_dead
    async def wake(self, part: MemoryPart) -> None:
        """Allocate one part of the memory again: "weights" for a weight sync, then "kv_cache" to serve."""
        if part not in self._asleep:
            return
        if self._on_gpu:
            await self._llm.wake_up(tags=[part])
        async with self._changed:
            self._asleep -= {part}
            await self._resume()

    @raise_if_dead
    async def ping(self) -> int:
        """Return the weight version that the engine's core process serves. Raises if that process is dead."""
        await self._llm.check_health()
        return int(await self._llm.get_weight_version())

    async def shutdown(self) -> None:
        """Stop the engine's processes."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.shutdown()
            # vLLM's finaliser calls it again, and fails loudly when it only runs as the interpreter ends.
            vars(engine)["shutdown"] = lambda timeout=None: None
