"""The ways in which weights get from the policy to the engines, one line each, and which of them a run takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, cast

from azr.config import Config
from azr.errors import UserError

if TYPE_CHECKING:
    import torch

    from azr.cluster.weight_endpoints import Inbox, Outbox, Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where policy and engines are, as far as it is known."""

    device: Literal["auto", "cuda", "cpu"]
    """`auto` before Ray was asked."""
    colocated: bool
    """Engines share the trainers' GPUs."""
    engine_gpus_alone: int = 0
    """Engines' GPUs on which no rank of the policy lives, though the others share theirs."""

    @classmethod
    def before_start(cls, config: Config) -> Site:
        """What the config says of it."""
        alone = config.num_gpus - config.train.data_parallel if config.cluster.colocate else 0
        return cls(device=config.train.device, colocated=config.cluster.colocate, engine_gpus_alone=alone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One way."""

    module: str
    """Below `azr.cluster`; it has the two ends as `OUTBOX` and `INBOX`. Loaded when one is made: light commands ask
    which ways are open, and the ends need torch and Ray."""
    refusal: Callable[[Site], str | None]
    """Why this way is closed: the end of a sentence on `cluster.push`. None when it is open."""

    def outbox(self, rank: Rank) -> Outbox:
        """A policy rank's end."""
        return cast("Outbox", import_module(f"azr.cluster.{self.module}").OUTBOX(rank))

    def inbox(self, device: torch.device) -> Inbox:
        """A worker's end."""
        return cast("Inbox", import_module(f"azr.cluster.{self.module}").INBOX(device))


def _ipc_refusal(site: Site) -> str | None:
    if site.device == "cpu":
        return "is for memory of GPUs, and this run is on CPUs: leave it at auto, or take host"
    if not site.colocated:
        return (
            "is for engines on the trainers' GPUs, and cluster.colocate is off: leave it at auto, or switch "
            "cluster.colocate on"
        )
    if site.engine_gpus_alone:
        return (
            f"is for engines on the trainers' GPUs, and {site.engine_gpus_alone} of the engines' GPUs have no rank of "
            "the policy: leave it at auto, or raise train.data_parallel"
        )
    return None


def _nccl_refusal(site: Site) -> str | None:
    if site.device == "cpu":
        return "is for GPUs, and this run is on CPUs: leave it at auto, or take host"
    if site.colocated:
        return (
            "is for engines on other GPUs than the trainers', because NCCL takes no two processes on one GPU: leave it "
            "at auto, or switch cluster.colocate off"
        )
    return None


TRANSFERS: dict[str, Transfer] = {
    "ipc": Transfer(module="push_ipc", refusal=_ipc_refusal),
    "nccl": Transfer(module="push_nccl", refusal=_nccl_refusal),
    "host": Transfer(module="push_host", refusal=lambda site: None),
}
"""By name, the first open one before the others when `cluster.push` is `auto`."""


def choose_transfer(push: str, site: Site) -> str:
    """The transfer that this knob means there. Raises UserError when it names one that is closed."""
    if push == "auto":
        return next(name for name, transfer in TRANSFERS.items() if transfer.refusal(site) is None)
    if reason := TRANSFERS[push].refusal(site):
        raise UserError(f"cluster.push={push} {reason}.")
    return push


def decide_push(config: Config, device: Literal["cuda", "cpu"]) -> Config:
    """The config with the transfer that its run takes. Raises UserError when the one it names is closed."""
    site = replace(Site.before_start(config), device=device)
    push = choose_transfer(config.cluster.push, site)
    return replace(config, cluster=replace(config.cluster, push=cast(Any, push)))
