"""How a vLLM engine is configured and started for rollouts, on a CPU or a GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from azr.config import RolloutConfig
from azr.hardware import KERNEL_CACHES

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


CPU_KV_CACHE_BYTES = 1 << 30
CPU_THREADS = 1
"""Compute threads of a CPU engine; with a tiny model, more of them wait for each other."""


async def launch(
    model_path: str, rollout: RolloutConfig, *, dtype: str, seed: int, deterministic: bool, max_model_len: int
) -> tuple[AsyncLLM, bool]:
    """A running engine that serves weight version 0, and whether it runs on a GPU."""
    _set_environment(model_path, CPU_THREADS)
    from vllm import AsyncEngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.engine.async_llm import AsyncLLM

    on_gpu = not current_platform.is_cpu()
    arguments = AsyncEngineArgs(
        model=model_path,
        dtype=dtype,
        seed=seed,
        max_model_len=max_model_len,
        max_num_seqs=rollout.max_concurrent,
        tensor_parallel_size=rollout.tensor_parallel,
        enable_prefix_caching=True,
        # Logprobs of the distribution that is sampled from: after the temperature.
        logprobs_mode="processed_logprobs",
        disable_log_stats=True,
        use_tqdm_on_load=False,
        **_weight_transfer(),
        **(_gpu(rollout, deterministic) if on_gpu else _cpu(rollout, max_model_len)),
    )
    engine = AsyncLLM.from_engine_args(arguments)
    await engine.update_weight_version("0")
    return engine, on_gpu


def _set_environment(model_path: str, threads: int) -> None:
    """vLLM reads these when it is imported and when it starts its processes."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    # Threads bound to cores, or spinning while they wait, would take the cores that trainers compute on.
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    os.environ["OMP_WAIT_POLICY"] = "passive"
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ.update(KERNEL_CACHES)
    # Without this vLLM refuses to run the model inside the core process, see `_cpu`.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if Path(model_path).is_dir():
        os.environ["HF_HUB_OFFLINE"] = "1"


def _weight_transfer() -> dict[str, Any]:
    from azr.rollout.weight_receiver import SHARED_MEMORY, WeightReportExtension

    extension = f"{WeightReportExtension.__module__}.{WeightReportExtension.__qualname__}"
    return {"weight_transfer_config": {"backend": SHARED_MEMORY}, "worker_extension_cls": extension}


def _gpu(rollout: RolloutConfig, deterministic: bool) -> dict[str, Any]:
    return {
        "gpu_memory_utilization": rollout.gpu_memory_utilization,
        "enable_sleep_mode": True,
        # Scheduling ahead of results would let their timing decide which samples are computed together.
        "async_scheduling": False if deterministic else None,
    }


def _cpu(rollout: RolloutConfig, max_model_len: int) -> dict[str, Any]:
    """Choices measured with a 14M model on two shared cores; see docs/log.md."""
    return {
        "kv_cache_memory_bytes": CPU_KV_CACHE_BYTES,
        # Prefixes are shared in whole blocks; vLLM's 128 tokens on a CPU are longer than many prompts.
        "block_size": 32,
        # Compiling gains 3 % of speed, costs a minute at the start, and its graphs keep the weights they were traced
        # with.
        "enforce_eager": True,
        # One process instead of two: a core process that waits for a worker process polls and burns a core.
        "distributed_executor_backend": "uni" if rollout.tensor_parallel == 1 else "mp",
        # A seeded request whose prompt is prefilled in parts crashes vLLM's CPU sampler.
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(8192, max_model_len),
    }
