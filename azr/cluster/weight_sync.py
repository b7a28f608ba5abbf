"""Weight sync: pushes the policy's weights after each update, and sends them again to restarted engines."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from azr.cluster.supervisor import ActorLost, SupervisedActor, ping, root_cause
from azr.cluster.weight_endpoints import Receiver
from azr.concurrency import task_group, wait_for_all

MAX_ATTEMPTS = 3
"""Attempts per push: engines may be lost twice."""
GRACE_S = 10.0
"""The sender's deadline for an engine ends so much before the driver's deadline, which cannot name an engine."""


@dataclass(frozen=True, slots=True)
class PushReport:
    """One push of the weights to every engine."""

    version: int
    nbytes: int
    """Bytes of the weights, counted once for all engines."""
    seconds: float
    """From the first engine's preparation to the last engine that serves the weights."""
    transfer: str = ""
    """Name in `azr.cluster.weight_transfers`."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase of the policy's rank 0, see `azr.cluster.weight_sender.SentWeights`."""


class Sender(Protocol):
    """The policy's ranks: rank 0 answers ``send_weights(version, receivers, timeout_s)`` with `SentWeights`."""

    def call(self, method: str, *args: object, timeout_s: float, to: str) -> Awaitable[list[Any]]: ...


class WeightSync:
    """Keeps the weights of all engines equal to the policy's. The driver owns one.

    Timeline of `push(version)`; each arrow is a call with a deadline:

        driver                       policy's ranks                        engines
        begin_update(version) ────────────────────────────────────────────► hold new prompts, wait for those in flight
        send_weights ──────────────► all: gather ZeRO-3 parameters,
                                     a bucket at a time, and copy it
                                     where engines reach it
                                     rank 0: add up its bits
                                     load_bucket(bucket) ─────────────────► take it, compare the digest, load
                                     … until the last bucket, the next
                                     gathered while one is loaded
        SentWeights ◄───────────────
        finish_update(version, digest) ───────────────────────────────────► repack layers, reset the prefix cache,
                                                                            compare the digest of everything, serve
        its WeightUpdate ◄─────────────────────────────────────────────────

    If an engine dies during a push, it is replaced, and the push is repeated for the engines that do not serve this
    version yet, `MAX_ATTEMPTS` times in all. An engine that is replaced later gets the same weights (`resync`), unless
    the policy may have changed (`policy_moves`): then it serves nothing before the next push.
    """

    def __init__(self, policy: Sender, engines: Sequence[SupervisedActor], timeout_s: float) -> None:
        """`timeout_s`: deadline of each call, which may wait for running prompts or for all of the sending."""
        self._policy, self._engines, self._timeout_s = policy, engines, timeout_s
        self._version = 0
        self._policy_has_it = False
        """Whether the policy still has the weights of that version."""

    async def push(self, version: int) -> PushReport:
        """Send the policy's weights to every engine.

        Raises the errors of the policy and of living engines, and RuntimeError if engines keep dying.
        """
        self._version, self._policy_has_it = version, False
        due = self._engines
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                report = await self._send(due)
                break
            except Exception as error:  # the policy's own too: which engine is to blame shows when they are asked
                if attempt == MAX_ATTEMPTS or not await self._restart_lost(error):
                    raise
            served = await wait_for_all(ping(engine.actor) for engine in self._engines)
            due = [engine for engine, its in zip(self._engines, served, strict=True) if its != version]
        for engine in self._engines:
            engine.succeeded()
        self._policy_has_it = True
        return report

    def policy_moves(self) -> None:
        """Note that the policy's weights may differ from the engines' until the next push."""
        self._policy_has_it = False

    async def resync(self, engine: SupervisedActor) -> None:
        """Send a fresh engine the weights of the others. Raises ActorLost if it dies meanwhile."""
        if not self._version:
            return  # it has loaded the same folder as the policy
        if not self._policy_has_it:
            # Serves nothing until the next push, which brings what is to be sampled from.
            await engine.call(
                "begin_update", self._version + 1, timeout_s=self._timeout_s, to="hold prompts until the next push"
            )
            return
        try:
            await self._send([engine])
        except ActorLost:
            raise
        except Exception as error:  # the policy's own too: whether the engine is to blame shows when it is asked
            if await ping(engine.actor) is not None:
                raise
            raise ActorLost(f"{engine.name} died over its weights ({root_cause(error)})", engine.actor) from error

    async def _send(self, engines: Sequence[SupervisedActor]) -> PushReport:
        version, limit, started = self._version, self._timeout_s, time.perf_counter()
        nodes = await wait_for_all(
            engine.call("begin_update", version, timeout_s=limit, to=f"get ready for weight version {version}")
            for engine in engines
        )
        receivers = [Receiver(engine.name, engine.actor, node) for engine, node in zip(engines, nodes, strict=True)]
        (sent, *_) = await self._policy.call(
            "send_weights", version, receivers, limit, timeout_s=limit + GRACE_S, to="send their weights"
        )
        digest = sent.update.digest
        received = await wait_for_all(
            engine.call("finish_update", version, digest, timeout_s=limit, to=f"serve weight version {version}")
            for engine in engines
        )
        for engine, update in zip(engines, received, strict=True):
            if update != sent.update:
                raise RuntimeError(f"{engine.name} was sent {sent.update} and has {update}")
        parts = {"gather": sent.gather_s, "pack": sent.pack_s, "load": sent.load_s}
        return PushReport(version, sent.update.nbytes, time.perf_counter() - started, sent.transfer, parts)

    async def _restart_lost(self, error: Exception) -> bool:
        """Restart the engines that were lost in a failed push; returns whether there were any."""
        answers = await wait_for_all(ping(engine.actor) for engine in self._engines)
        lost = [engine for engine, answer in zip(self._engines, answers, strict=True) if answer is None]
        async with task_group() as restarting:
            for engine in lost:
                cause = f"{engine.name} died over weight version {self._version} ({root_cause(error)})"
                restarting.create_task(engine.restart(ActorLost(cause, engine.actor)))
        return bool(lost)
