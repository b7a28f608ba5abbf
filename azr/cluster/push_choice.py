"""The choice of a run's weight transfer, see `azr.cluster.weight_transfers`. Needs no torch: a dry run chooses too."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from azr.config import WEIGHT_BUCKET_BYTES, Config
from azr.errors import UserError

TRANSFERS = ("ipc", "nccl", "host")
"""`auto` takes the first possible one."""


def refusal(transfer: str, config: Config, device: str) -> str | None:
    """Return why the transfer is impossible, as the end of a sentence on `cluster.push`; None if it is possible.

    `device`: of policy and engines; `auto` before Ray has started.
    """
    if transfer == "host":
        return None
    if device == "cpu":
        return "is for GPUs, and this run is on CPUs: leave it at auto, or take host"
    if transfer == "nccl":
        one_gpu = "takes no two processes on one GPU: leave it at auto, or switch cluster.colocate off"
        return one_gpu if config.cluster.colocate else None
    if not config.cluster.colocate:
        return "is for engines on the trainers' GPUs: leave it at auto, or switch cluster.colocate on"
    if alone := config.num_gpus - config.train.data_parallel:
        return f"needs the policy on {alone} more of the engines' GPUs: leave it at auto, or raise train.data_parallel"
    return None


def decide_push(config: Config, device: str) -> Config:
    """Return the config with the transfer for `cluster.push`. Raises UserError if the named one is impossible."""
    push: Any = config.cluster.push
    if push == "auto":
        push = next(name for name in TRANSFERS if refusal(name, config, device) is None)
    if reason := refusal(push, config, device):
        raise UserError(f"cluster.push={push} {reason}.")
    return replace(config, cluster=replace(config.cluster, push=push))


def bucket_bytes(transfer: str, weights: int, largest: int) -> int:
    """Return the size of the buckets that carry so many bytes of `weights`, of which one tensor has the `largest`."""
    return max(largest, min(WEIGHT_BUCKET_BYTES[transfer], weights))
