"""Adapter of vLLM: start an engine on a CPU or a GPU, sample from it, and detect that its process died."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import numpy.typing as npt
from transformers import AutoConfig

from azr.algorithms.architectures import recurrent_part
from azr.config import Config
from azr.errors import UserError
from azr.hardware import CPU_KV_CACHE_BYTES, KERNEL_CACHES, ComputeType, compute_type, cpu_engine_problem, keep_kernels
from azr.processes import OWNER, SOCKETS
from azr.records import Completion, FinishReason, Stops
from azr.rollout.engine_options import TAKEN, engine_options
from azr.rollout.quiet_start import start_in_thread

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.inputs import TokensInput
    from vllm.outputs import CompletionOutput, RequestOutput
    from vllm.v1.engine.async_llm import AsyncLLM

LEAST_FOR_THREADS: dict[ComputeType, int] = {"float32": 2**18, "bfloat16": 2**21}
"""Elements of an MLP's matrix from which threads of a CPU gain more than they wait for each other. With the 14M
model (0.44 million) two threads are 1.6 times as fast as one in float32; where the CPU multiplies bfloat16, slower."""
POLL_S = 1.0
"""Seconds between two checks of the core process during a call."""
GIB = 2**30
CONTEXT_BYTES = GIB // 2
"""Memory of the engine's CUDA context, about, which vLLM allocates before it reads the free memory."""
MAX_TEMPORARY_PATH = 107 - len("/azr-1234567-12345678/") - 36
"""Bytes of its path: a socket's path has at most 107, and ends with a UUID."""
PATIENCE_S = 30.0
"""Seconds to wait for the GPU memory of an engine that has just ended."""


async def start_vllm(config: Config, seed: int) -> tuple[AsyncLLM, bool]:
    """Start an engine at weight version 0; return it and whether it runs on a GPU."""
    model_path, rollout, dtype = config.model.path, config.rollout, compute_type(config.train.dtype)
    if (excess := len(os.fsencode(tempfile.gettempdir())) - MAX_TEMPORARY_PATH) > 0:
        raise UserError(
            f"The folder of temporary files, {tempfile.gettempdir()}, is {excess} bytes too long for vLLM's sockets: "
            "set TMPDIR to another, such as /tmp."
        )
    import_vllm(config)
    from vllm import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    from azr.rollout.weight_receiver import BACKEND, WeightReportExtension

    on_gpu = not current_platform.is_cpu()
    if not on_gpu and (problem := cpu_engine_problem()) is not None:
        raise UserError(f"{problem}.")
    if on_gpu:
        # Outside of Ray vLLM would fork, and CUDA cannot start in the child of a process that has looked for a GPU.
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        await wait_until_free(rollout.gpu_memory_utilization, rollout.tensor_parallel)
    ours: dict[str, Any] = {
        "model": model_path,
        "dtype": dtype,
        "seed": seed,
        "max_model_len": config.max_trajectory_tokens,
        "max_num_seqs": rollout.max_concurrent,
        "tensor_parallel_size": rollout.tensor_parallel,
        # Inside an actor of a placement group vLLM would take Ray's workers, and ask Ray for whole GPUs.
        "distributed_executor_backend": "uni" if rollout.tensor_parallel == 1 else "mp",
        # States of recurrent layers are kept at the ends of blocks alone, which needs prompts prefilled in parts.
        "enable_prefix_caching": not recurrent_part(_text_config(model_path).model_type),
        # Logprobs of the distribution that is sampled from: after the temperature.
        "logprobs_mode": "processed_logprobs",
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "worker_cls": "azr.rollout.measured_worker.MeasuredWorker",
        "weight_transfer_config": {"backend": BACKEND},
        "worker_extension_cls": f"{WeightReportExtension.__module__}.{WeightReportExtension.__qualname__}",
    }
    if on_gpu:
        ours |= {
            "gpu_memory_utilization": rollout.gpu_memory_utilization,
            "enable_sleep_mode": True,
            # Scheduling ahead of results would let their timing decide which samples are computed together.
            "async_scheduling": False if config.run.deterministic else None,
            # Logits in float32, as in the trainers; on a GPU only the head's product is kept in float32. Engine and
            # trainer then differ only by rounding to bfloat16 before the head.
            "hf_overrides": {"head_dtype": "float32"} if dtype == "bfloat16" else {},
        }
    assert ours.keys() <= TAKEN, "a user's options must not replace these"
    chosen = {} if on_gpu else cpu_choices(config.max_trajectory_tokens)
    engine_args = AsyncEngineArgs(**ours, **(chosen | engine_options(rollout.engine_options)))
    os.environ[OWNER] = str(os.getpid())
    # The names of sockets are of use only until both sides have answered each other, and vLLM would leave them there.
    with tempfile.TemporaryDirectory(prefix=SOCKETS.format(os.getpid())) as sockets:
        os.environ["VLLM_RPC_BASE_PATH"] = sockets
        try:
            engine = await start_in_thread(partial(AsyncLLM.from_engine_args, engine_args))
        except ValueError as error:
            if not rollout.engine_options:
                raise
            refused = f"vLLM does not start with rollout.engine_options={rollout.engine_options}"
            raise UserError(f"{refused}: {' '.join(str(error).split())}") from error
        try:
            await engine.update_weight_version("0")
        except BaseException:
            engine.shutdown()
            raise
    return engine, on_gpu


async def wait_until_free(share: float, gpus: int) -> None:
    """Wait until `share` of each of this process's first `gpus` GPUs is free.

    The memory of a dead engine is freed with a delay. Raises UserError if it is not free after `PATIENCE_S`; vLLM would
    end with a traceback in another process.
    """
    until = time.monotonic() + PATIENCE_S
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = (visible or [str(index) for index in range(gpus)])[:gpus]
    while complaints := [text for name in names if (text := shortage(name, share, *_use(name))) is not None]:
        if time.monotonic() > until:
            raise UserError(complaints[0])
        await asyncio.sleep(1.0)


def _use(name: str) -> tuple[int, int, dict[int, int | None]]:
    """Read `total`, `free` and `holders` of `shortage` from NVML: CUDA would create a context in this process."""
    from vllm.third_party import pynvml

    pynvml.nvmlInit()
    try:
        number = name.isdigit()
        device = pynvml.nvmlDeviceGetHandleByIndex(int(name)) if number else pynvml.nvmlDeviceGetHandleByUUID(name)
        memory = pynvml.nvmlDeviceGetMemoryInfo(device)
        holders = {each.pid: each.usedGpuMemory for each in pynvml.nvmlDeviceGetComputeRunningProcesses(device)}
        return int(memory.total), int(memory.free), holders
    finally:
        pynvml.nvmlShutdown()


def shortage(name: str, share: float, total: int, free: int, holders: Mapping[int, int | None]) -> str | None:
    """Return a sentence on the wanted and free memory of a GPU and its holders; None if enough is free.

    `name`: in CUDA_VISIBLE_DEVICES. `total`, `free`: bytes. `holders`: bytes by id of the visible processes; None if
    the driver does not report them.
    """
    wanted = share * total
    if free >= wanted + CONTEXT_BYTES:
        return None
    held = ", ".join(
        f"process {pid}" + (f" with {size / GIB:.1f} GiB" if size is not None else "")
        for pid, size in sorted(holders.items(), key=lambda item: -(item[1] or 0))
    )
    return (
        f"An engine wants {wanted / GIB:.1f} GiB of GPU {name} (rollout.gpu_memory_utilization={share:g} of "
        f"{total / GIB:.1f}) and {CONTEXT_BYTES / GIB:g} for its process to be free when it starts, but only "
        f"{free / GIB:.1f} are ({f'taken by {held}' if held else 'nvidia-smi says who has the rest'}): lower "
        "rollout.gpu_memory_utilization, or end what else runs on this GPU."
    )


@dataclass(frozen=True, slots=True)
class EngineStart:
    """Report of an engine's start."""

    kv_cache_tokens: int
    """Tokens of prompts and responses that fit in its KV cache."""
    seconds: dict[str, float]
    """Seconds by phase of its slowest worker, see `azr.rollout.measured_worker`."""


def import_vllm(config: Config) -> None:
    """Import it as this project needs it; takes many seconds and no GPU."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    processes = config.rollout.engines * config.rollout.tensor_parallel
    os.environ.update(vllm_environment(config.model.path, compute_type(config.train.dtype), processes))
    keep_kernels()
    importlib.import_module("vllm.v1.engine.async_llm")


@functools.cache  # a start asks twice
def _text_config(model_path: str) -> Any:
    return AutoConfig.from_pretrained(model_path).get_text_config()


def compute_threads(model_path: str, dtype: ComputeType, processes: int) -> int:
    """Threads that each of a node's engine processes computes with: 1 on a GPU, or where more would gain nothing."""
    import torch  # only now: it takes seconds to load

    config = _text_config(model_path)
    is_large = config.hidden_size * getattr(config, "intermediate_size", 0) >= LEAST_FOR_THREADS[dtype]
    return max(1, len(os.sched_getaffinity(0)) // processes) if is_large and not torch.cuda.is_available() else 1


def vllm_environment(model_path: str, dtype: ComputeType, processes: int = 1) -> dict[str, str]:
    """Environment variables that vLLM reads at its import and when it starts its processes."""
    return {
        "VLLM_NO_USAGE_STATS": "1",
        # Threads bound to cores, or spinning while they wait, would take the cores that trainers compute on.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_WAIT_POLICY": "passive",
        "OMP_NUM_THREADS": str(compute_threads(model_path, dtype, processes)),
        **KERNEL_CACHES,
        # Without this vLLM's CPU platform would put the model into a worker process, and the core process, which waits
        # for it, would poll and burn a core. On a GPU it changes nothing: AsyncLLM has a core process in any case.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        **({"HF_HUB_OFFLINE": "1"} if Path(model_path).is_dir() else {}),
    }


def cpu_choices(max_model_len: int) -> dict[str, Any]:
    """Settings for a CPU, measured with a 14M model on two shared cores; `rollout.engine_options` overrides them."""
    return {
        "kv_cache_memory_bytes": CPU_KV_CACHE_BYTES,
        # Prefixes are shared in whole blocks; vLLM's 128 tokens on a CPU are longer than many prompts.
        "block_size": 32,
        # Compiling gains 3 % of speed, costs a minute at the start, and its graphs keep the weights they were traced
        # with.
        "enforce_eager": True,
        # A seeded request whose prompt is prefilled in parts crashes vLLM's CPU sampler.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(8192, max_model_len),
    }


async def sample(
    llm: AsyncLLM,
    request_id: str,
    prompt_ids: npt.NDArray[np.int32],
    stops: Stops,
    *,
    n: int,
    max_tokens: int,
    temperature: float,
    seed: int | None,
    exclusive: bool,
) -> list[Completion]:
    """Sample `n` responses from softmax(logits / temperature), untruncated; temperature 0 is greedy.

    After `llm.abort(request_id)` unfinished responses are missing.

    `exclusive`: the engine runs no other request meanwhile; with a seed the responses are then bit-identical for equal
    arguments and weights.
    """
    from vllm import SamplingParams
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        n=n,
        max_tokens=max_tokens,
        temperature=temperature,
        seed=seed,
        top_p=1.0,
        top_k=-1,
        stop=list(stops.strings),
        stop_token_ids=list(stops.token_ids),
        # Text costs time, and is only needed to find stop strings, which may hold tags that are special tokens.
        detokenize=bool(stops.strings),
        skip_special_tokens=False,
        include_stop_str_in_output=True,
        # The sampled token's own logprob and no others, as plain lists.
        logprobs=0,
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    prompt = tokens_input(prompt_ids.tolist())
    if exclusive:
        output = await _generate_exclusive(llm, request_id, prompt, params)
    else:
        *_, output = [each async for each in llm.generate(prompt, params, request_id)]
    return [_completion(prompt_ids, sampled) for sampled in output.outputs if sampled.finish_reason != "abort"]


def _completion(prompt_ids: npt.NDArray[np.int32], sampled: CompletionOutput) -> Completion:
    ids, logprobs, spans = sampled.token_ids, sampled.logprobs, sampled.weight_versions
    assert logprobs is not None and spans is not None, "both were asked for"
    assert sampled.finish_reason in ("stop", "length"), sampled.finish_reason
    return Completion(
        prompt_ids=prompt_ids,
        response_ids=np.array(ids, np.int32),
        # The engine may have sampled tokens past a stop string; cut their logprobs.
        logprobs=np.array(logprobs.logprobs[: len(ids)], np.float32),
        finish_reason=cast(FinishReason, sampled.finish_reason),
        weight_versions=np.concatenate([np.full(each.end - each.start, int(each.version), np.int32) for each in spans]),
    )


async def _generate_exclusive(
    llm: AsyncLLM, request_id: str, prompt: TokensInput, params: SamplingParams
) -> RequestOutput:
    """Start all samples together, with an empty prefix cache: rounding depends on the batch.

    vLLM admits the samples of a prompt one by one and would start with the first.
    """
    await llm.pause_generation(mode="keep", clear_cache=True)
    try:
        outputs = await llm.add_request(request_id, prompt, params)
        await llm.resume_generation()
        return await outputs.get()
    except asyncio.CancelledError:
        await llm.abort(request_id)
        raise


class EngineCoreDead(RuntimeError):
    """The actor has lost vLLM's core process and must be replaced."""


P = ParamSpec("P")
T = TypeVar("T")


def raise_if_dead(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Decorate a method of an engine to raise EngineCoreDead if `core_died`.

    vLLM never answers some calls that were running when it died, such as those on weights. Others fail with a class of
    vLLM, and a process that unpickles it would import all of vLLM.
    """

    @functools.wraps(method)
    async def polling(engine: Any, *args: P.args, **kwargs: P.kwargs) -> T:
        work = asyncio.ensure_future(method(engine, *args, **kwargs))
        try:
            while not (await asyncio.wait({work}, timeout=POLL_S))[0]:
                if engine.core_died:
                    raise EngineCoreDead("vLLM's core process is dead")
            return work.result()
        except Exception as error:
            from vllm.v1.engine.exceptions import EngineDeadError

            if isinstance(error, EngineDeadError):
                raise EngineCoreDead("vLLM's core process is dead") from None
            raise
        finally:
            work.cancel()

    return polling
