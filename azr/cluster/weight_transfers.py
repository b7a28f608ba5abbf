"""Weight transfers by name, and the choice of one for a run."""

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
    """Devices of policy and engines, as far as they are known."""

    device: Literal["auto", "cuda", "cpu"]
    """`auto` before Ray has started."""
    colocated: bool
    """Engines share the trainers' GPUs."""
    engine_gpus_alone: int = 0
    """GPUs of engines without a rank of the policy, if engines are colocated."""

    @classmethod
    def before_start(cls, config: Config) -> Site:
        """Return the site that the config describes."""
        alone = config.num_gpus - config.train.data_parallel if config.cluster.colocate else 0
        return cls(device=config.train.device, colocated=config.cluster.colocate, engine_gpus_alone=alone)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One weight transfer."""

    module: str
    """Module of `azr.cluster` with the two ends, `OUTBOX` and `INBOX`. It is imported late: commands without torch and
    Ray ask which transfers are possible."""
    refusal: Callable[[Site], str | None]
    """Return why this transfer is impossible, as the end of a sentence on `cluster.push`, or None."""

    def outbox(self, rank: Rank) -> Outbox:
        """Make the outbox of a policy rank."""
        return cast("Outbox", import_module(f"azr.cluster.{self.module}").OUTBOX(rank))

    def inbox(self, device: torch.device) -> Inbox:
        """Make the inbox of an engine's worker."""
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
"""By name; `auto` takes the first possible one."""


def choose_transfer(push: str, site: Site) -> str:
    """Return the name of the transfer for `cluster.push`. Raises UserError if the named one is impossible."""
    if push == "auto":
        return next(name for name, transfer in TRANSFERS.items() if transfer.refusal(site) is None)
    if reason := TRANSFERS[push].refusal(site):
        raise UserError(f"cluster.push={push} {reason}.")
    return push


def decide_push(config: Config, device: Literal["cuda", "cpu"]) -> Config:
    """Return the config with the chosen transfer. Raises UserError if the named one is impossible."""
    site = replace(Site.before_start(config), device=device)
    push = choose_transfer(config.cluster.push, site)
    return replace(config, cluster=replace(config.cluster, push=cast(Any, push)))
