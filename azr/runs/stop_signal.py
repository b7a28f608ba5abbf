"""What ends a run before its last step: signals that ask it to stop, the first where nothing is lost, the second at
once; and the alarm that most responses of a role are malformed or lost, since a model cannot learn what is never
graded."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import stat
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from azr.errors import RunEnded
from azr.processes import end_now
from azr.records import ROLES, Role, Sample
from azr.runs.metrics import malformed_share, sampled
from azr.runs.run_dir import RunDirectory
from azr.runs.sample_file import Decode
from azr.text import without_middle

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""SIGHUP: the terminal was closed."""
ALARMING_SHARE = 0.8
"""More malformed responses of a role than this share are an alarm."""
MAX_ROUNDS = 3
"""Alarming rounds of one role in a row that end a run."""
SHOWN_CHARS = 200
"""Of a response's beginning, and of its end."""
log = logging.getLogger(__name__)


class StopRequested(Exception):
    """The run was asked to stop and did."""

    def __init__(self, signal_number: int) -> None:
        self.exit_code = 128 + signal_number
        super().__init__(f"stopped by {signal.Signals(signal_number).name}")


def stop_line(signal_number: int, run: RunDirectory) -> str:
    """Return the line with which a run ends after a signal."""
    begun = run.config.is_file()
    left = "what was done is saved, and --resume continues from there" if begun else "nothing had been done yet"
    return f"{StopRequested(signal_number)}: {left}"


class StopSignal:
    """Listens for signals while its context is open."""

    def __init__(self) -> None:
        self._requested = asyncio.Event()
        self._received = 0
        self._log: Callable[[str], None] = print

    @contextmanager
    def listening(self, log: Callable[[str], None]) -> Iterator[None]:
        """``log`` gets a line for the first signal. A second one ends this process and all below it at once."""
        self._log = log
        loop = asyncio.get_running_loop()
        # nohup has SIGHUP ignored, and that stays.
        taken = [each for each in SIGNALS if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN]
        for each in taken:
            loop.add_signal_handler(each, self._on_signal, each)
        try:
            yield
        finally:
            for each in taken:
                loop.remove_signal_handler(each)

    def _on_signal(self, received: int) -> None:
        if received == signal.SIGHUP:
            # Write to nowhere instead of to the terminal that was closed, where writing fails.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            for stream in (1, 2):
                if stat.S_ISCHR(os.fstat(stream).st_mode):
                    os.dup2(nowhere, stream)
            os.close(nowhere)
        if self._requested.is_set():
            if received != signal.SIGHUP:  # a terminal that is closed sends it to its leader and to the leader's group
                end_now("interrupted: every process of the run was ended", 128 + received)
            return
        self._received = received
        self._requested.set()
        self._log("asked to stop: saving what is done; ask once more to stop at once")

    def raise_if_requested(self) -> None:
        """Raises StopRequested after the first signal."""
        if self._requested.is_set():
            raise StopRequested(self._received)

    async def cancel_on_stop(self, work: Awaitable[T]) -> T:
        """Return the result of ``work``; the first signal cancels it and raises StopRequested."""
        working = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._requested.wait())
        try:
            await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
        finally:
            stopping.cancel()
            if not working.done():
                working.cancel()
                await asyncio.wait((working,))
                if not working.cancelled() and (error := working.exception()) is not None:
                    log.warning("while it was stopped: %s", error)
        raise StopRequested(self._received)


class MalformedAlarm:
    """Watches every round: one of seeding, or the play of a training step."""

    def __init__(self, decode: Decode, log: Callable[[str], None], *, stop: bool) -> None:
        """``log`` gets a line per alarm; ``stop``: whether `raise_if_over` ever ends the run."""
        self._decode, self._log, self._stop = decode, log, stop
        self._in_a_row: Counter[Role] = Counter()
        self._lost_in_a_row: Counter[Role] = Counter()

    def observe(self, name: str, samples: Sequence[Sample], texts: Path | None = None) -> None:
        """Log every role most of whose responses were malformed in the round of this name.

        ``texts``: the file that holds the round's responses, where there is one. A role that was not sampled in this
        round keeps its count of rounds.
        """
        for role in ROLES:
            judged = [each.judgement for each in sampled(samples, role) if each.judgement is not None]
            lost = sum(each.reason == "lost" for each in judged)
            if judged:
                self._lost_in_a_row[role] = self._lost_in_a_row[role] + 1 if lost > ALARMING_SHARE * len(judged) else 0
            share = malformed_share(samples, role)
            if share is None:
                continue
            if share <= ALARMING_SHARE:
                self._in_a_row[role] = 0
                continue
            self._in_a_row[role] += 1
            self._log(self._sentence(name, role, sampled(samples, role), texts))

    def raise_if_over(self) -> None:
        """Raises RunEnded after the last of so many alarming rounds in a row that no other will help."""
        for role, rounds in self._lost_in_a_row.items():
            if rounds >= MAX_ROUNDS:
                raise RunEnded(
                    f"The executor lost the programs of over {ALARMING_SHARE:.0%} of the {role} responses in {rounds} "
                    "rounds in a row, so the run ends here: see by azr doctor whether sandboxes still start, and "
                    "continue with --resume."
                )
        for role, rounds in self._in_a_row.items():
            if self._stop and rounds >= MAX_ROUNDS:
                raise RunEnded(
                    f"Over {ALARMING_SHARE:.0%} of the {role} responses were malformed or cut off in {rounds} rounds "
                    "in a row, so the run ends here: compare the printed responses with what azr prompts RECIPE shows "
                    "that is asked, mind rollout.max_response_tokens where they are cut off, or switch "
                    "run.stop_when_malformed off."
                )

    def _sentence(self, name: str, role: Role, responses: Sequence[Sample], texts: Path | None) -> str:
        malformed = [each for each in responses if each.is_malformed]
        judged = ("" if each.judgement is None else each.judgement.reason for each in malformed)
        ends = zip((each.finish_reason for each in malformed), judged, strict=True)
        reasons = Counter("cut_off" if end == "length" else reason or "of no recorded reason" for end, reason in ends)
        counts = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in reasons.most_common())
        example = repr(without_middle(self._decode(malformed[0].completion.response_ids), SHOWN_CHARS))
        where = f"; all texts are in {texts}" if texts is not None else ""
        return (
            f"ALARM: {len(malformed)} of {len(responses)} {role} responses of {name} were malformed or cut off "
            f"({counts}); one of them reads {example}{where}; what is asked is shown by azr prompts RECIPE"
        )
