"""Weight transfers by name, and the choice of one for a run. Needs no torch: a dry run makes the choice too."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

from azr.config import Config
from azr.errors import UserError

if TYPE_CHECKING:
    from azr.cluster.weight_buckets import Inbox, Outbox

TRANSFERS = ("ipc", "nccl", "host")
"""`auto` takes the first possible one. Module `azr.cluster.push_NAME` has its two ends, `OUTBOX` and `INBOX`."""


def make_outbox(transfer: str, *arguments: Any) -> Outbox:
    """`arguments`: those of `Outbox`."""
    outbox: Outbox = import_module(f"azr.cluster.push_{transfer}").OUTBOX(*arguments)
    return outbox


def make_inbox(transfer: str, *arguments: Any) -> Inbox:
    """`arguments`: those of `Inbox`."""
    inbox: Inbox = import_module(f"azr.cluster.push_{transfer}").INBOX(*arguments)
    return inbox


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
