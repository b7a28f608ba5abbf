"""Scheduler of programs on zygotes: a fixed set of slots, each with its own zygote and hash seed.

All on the event loop's thread. A job is one run; runs of one program that are to be compared take different
slots, side by side. What was in a zygote that is lost is tried once more, alone in a slot, so that one program that
takes zygotes down cannot take others' results with it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from azr.errors import UserError
from azr.executor import protocol
from azr.executor.backends.sandbox import Launcher, LaunchError
from azr.executor.connection import Connection
from azr.executor.protocol import PATIENCE, Limits

PIPELINE_DEPTH = 4
"""Jobs sent to one zygote ahead of their turn, so that it never waits for the pool."""
MAX_LOSSES = 2
RECYCLE_AFTER = 20_000
"""Jobs after which a zygote is replaced, whatever its health."""
RESTART_WAITS_S = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)
"""Before each attempt to replace a lost zygote; a restarting container engine is back within these."""
RETRY_DELAY_S = 0.2
"""Before what was lost is tried again: what took its zygote may have taken the others, unnoticed so far."""
_GRACE_S = 10.0
_WATCH_S = 1.0
_log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class Job:
    """One run of a program, in one slot."""

    request: bytes
    """Frames to send."""
    order: int
    """Decides the slot in a deterministic pool."""
    count: int
    """Calls asked for."""
    is_apart: bool
    """Whether each of them runs in a process of its own."""
    taken: set[Slot]
    """Slots of this run and of those that it is compared with; shared by all of them."""
    parts: list[bytes] = field(default_factory=list)
    """Parts of the reply so far."""
    reply: asyncio.Future[list[bytes] | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """All parts, or None when the executor lost the job; cancelled when nobody waits for it any more."""
    losses: int = 0
    retry_at: float = 0.0
    """Monotonic seconds from which it may be retried."""

    def end(self, parts: list[bytes] | None) -> None:
        if not self.reply.done():
            self.reply.set_result(parts)


@dataclass(slots=True, eq=False)
class Slot:
    """A place for one zygote, which is replaced when it is lost."""

    number: int
    connection: Connection | None = None
    running: deque[Job] = field(default_factory=deque)
    """Jobs in the zygote, in the order in which they were sent; it answers in that order."""
    pinned: deque[Job] = field(default_factory=deque)
    """Jobs that wait for this very slot."""
    exclusive: bool = False
    """Runs a job that has already lost a zygote, and nothing else."""
    started_at: float = 0.0
    """Monotonic seconds at which the first running job began."""
    num_served: int = 0
    starts: int = 0
    starting: asyncio.Task[None] | None = None


class Scheduler:
    """Feeds the slots; ``start`` it, ``submit`` jobs, ``close`` it."""

    def __init__(self, launcher: Launcher, count: int, at_once: int, limits: Limits, seed: int | None = None) -> None:
        """``count`` slots, of which the first are started at once and the others when they are first needed.

        ``seed``: hash seeds derive from it, and a program always goes to the same slots in the same order, so that
        what depends on a hash seed is the same every time. Without a seed, hash seeds are random, and
        programs go to the emptiest slot, which is faster.
        """
        self._seed = seed
        self._launcher = launcher
        self._limits = limits
        self.slots = [Slot(number) for number in range(count)]
        self._at_once = at_once
        self._pending: deque[Job] = deque()
        self._quarantined: deque[Job] = deque()
        self._watch: asyncio.Task[None] | None = None
        self._closing = False

    async def start(self) -> None:
        """Start zygotes. Raises UserError or LaunchError, with nothing left running, when one does not start."""
        outcomes = await asyncio.gather(*map(self._open, self.slots[: self._at_once]), return_exceptions=True)
        problem = next((outcome for outcome in outcomes if isinstance(outcome, BaseException)), None)
        if problem is not None:
            await self.close()
            raise problem
        self._watch = asyncio.create_task(self._watch_for_silence())

    def submit(self, job: Job, *, alone: bool = False) -> None:
        """Have a job run in any slot that is not taken by what it is compared with; ``alone``: with nothing else."""
        if alone:
            self._quarantined.append(job)
        elif self._seed is None and not job.taken:
            self._pending.append(job)
        else:
            free = [slot for slot in self.slots if slot not in job.taken]
            assert free, "fewer slots than repeats"
            if self._seed is not None:
                slot = free[job.order % len(free)]
            else:
                slot = min(free, key=lambda slot: (slot.connection is None, len(slot.pinned) + len(slot.running)))
            job.taken.add(slot)
            slot.pinned.append(job)
        for slot in self.slots:
            if slot.connection is None and slot.starting is None and (slot.starts or slot.pinned):
                self._restart(slot)
        self._schedule()

    async def close(self) -> None:
        """End every zygote; jobs that are still there are lost."""
        self._closing = True
        if self._watch is not None:
            self._watch.cancel()
        for slot in self.slots:
            if slot.starting is not None:
                slot.starting.cancel()
                await asyncio.gather(slot.starting, return_exceptions=True)
        await asyncio.gather(*(slot.connection.close() for slot in self.slots if slot.connection is not None))
        for slot in self.slots:
            slot.connection = None
        self._give_up(self.slots)

    @property
    def restarts(self) -> int:
        """Zygotes replaced so far."""
        return sum(max(0, slot.starts - 1) for slot in self.slots)

    def _schedule(self) -> None:
        """Send what can be sent, to the emptiest slots first."""
        reserved = self._reserve()
        open_slots = [slot for slot in self.slots if self._takes_work(slot, reserved.get(slot))]
        for slot in open_slots:
            while slot.pinned and len(slot.running) < PIPELINE_DEPTH:
                self._send(slot, slot.pinned.popleft())
        while self._pending and open_slots:
            slot = min(open_slots, key=lambda slot: len(slot.running))
            if len(slot.running) >= PIPELINE_DEPTH:
                break
            self._send(slot, self._pending.popleft())

    def _reserve(self) -> dict[Slot, Job]:
        """The emptiest slot for each job that is to run alone and whose time has come."""
        reserved: dict[Slot, Job] = {}
        for job in self._quarantined:
            free = [slot for slot in self.slots if slot.connection and not slot.exclusive and slot not in reserved]
            free = [slot for slot in free if slot not in job.taken] if job.retry_at <= time.monotonic() else []
            if free:
                reserved[min(free, key=lambda slot: len(slot.running))] = job
        return reserved

    def _takes_work(self, slot: Slot, alone: Job | None) -> bool:
        """Whether a slot is there for any job. One that a job is to have alone, or that is old, empties first."""
        if slot.connection is None or slot.exclusive:
            return False
        if alone is None and slot.num_served < RECYCLE_AFTER:
            return True
        if slot.running:
            return False
        if alone is None:
            self._restart(slot)
        else:
            self._quarantined.remove(alone)
            slot.exclusive = True
            self._send(slot, alone)
        return False

    def _send(self, slot: Slot, job: Job) -> None:
        assert slot.connection is not None
        if not slot.running:
            slot.started_at = time.monotonic()
        slot.running.append(job)
        slot.num_served += 1
        job.taken.add(slot)
        slot.connection.send(job.request)

    def _replied(self, slot: Slot, part: bytes) -> None:
        if not slot.running:
            raise protocol.ProtocolError("a reply to no request")
        job = slot.running[0]
        slot.started_at = time.monotonic()
        job.parts.append(part)
        if protocol.is_complete(job.parts, job.count, job.is_apart):
            slot.running.popleft()
            slot.exclusive = False
            job.end(job.parts)
            self._schedule()

    def _lost(self, slot: Slot) -> None:
        """A zygote ended on its own, or was ended for its silence or its nonsense."""
        _log.warning("a sandbox was lost with %d programs in it", len(slot.running))
        slot.connection, slot.exclusive = None, False
        for job in slot.running:
            job.losses += 1
            job.parts.clear()
            job.taken.discard(slot)
            if job.losses < MAX_LOSSES:
                job.retry_at = time.monotonic() + RETRY_DELAY_S
                self._quarantined.append(job)
            else:
                job.end(None)
        slot.running.clear()
        if not self._closing:
            self._restart(slot)
            self._schedule()
            asyncio.get_running_loop().call_later(2 * RETRY_DELAY_S, self._schedule)

    def _restart(self, slot: Slot) -> None:
        old, slot.connection = slot.connection, None
        slot.starting = asyncio.create_task(self._replace(slot, old))

    async def _replace(self, slot: Slot, old: Connection | None) -> None:
        if old is not None:
            await old.close()
        for wait_s in RESTART_WAITS_S:
            await asyncio.sleep(wait_s)
            try:
                await self._open(slot)
                break
            except (LaunchError, UserError, OSError) as error:
                _log.warning("a sandbox does not start: %s", error)
        slot.starting = None
        if slot.connection is None:
            # Nothing waits for a slot that does not come up, nor for a pool of which no slot does.
            alive = {other for other in self.slots if other.connection is not None or other.starting is not None}
            self._give_up([slot] if alive else self.slots)
            for job in [job for job in self._quarantined if alive <= job.taken]:
                self._quarantined.remove(job)
                job.end(None)
        self._schedule()

    async def _open(self, slot: Slot) -> None:
        slot.starts += 1
        slot.num_served = 0
        rng = random.SystemRandom() if self._seed is None else random.Random(f"{self._seed}/{slot.number}")
        seed = rng.randint(1, 2**32 - 1)  # 0 would switch hashing by seeds off
        sandbox = await self._launcher.launch(seed)
        connection = Connection(sandbox, lambda part: self._replied(slot, part), lambda: self._lost(slot))
        await connection.open(self._limits)
        slot.connection = connection

    def _give_up(self, slots: Sequence[Slot]) -> None:
        """End the jobs of slots; those of all slots, and with them what waits for any."""
        queues = [queue for slot in slots for queue in (slot.pinned, slot.running)]
        queues += [self._pending, self._quarantined] if slots is self.slots else []
        for queue in queues:
            while queue:
                queue.popleft().end(None)

    async def _watch_for_silence(self) -> None:
        while True:
            await asyncio.sleep(_WATCH_S)
            overdue = time.monotonic() - PATIENCE * self._limits.wall_s - _GRACE_S
            for slot in self.slots:
                if slot.connection is not None and slot.running and slot.started_at < overdue:
                    slot.connection.abandon()
