"""Looks at a step's responses and at the programs of the buffer while the trainers learn from them."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from azr.errors import RunEnded
from azr.monitoring.programs import Measures, means
from azr.monitoring.reader import Seen, Text, TextReader
from azr.monitoring.repetition import REPETITIVE, repeated_share
from azr.monitoring.screen import SAFETY, Flag
from azr.prompts.codec import PromptCodec
from azr.records import Sample, Task

PERCENTILES = (50, 90, 99, 100)
THINK = "<think>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What a step's responses are like."""

    seen: list[Seen | None]
    """In the order of the trajectories; None for a text that takes too long to be looked at."""
    own: list[bool]
    """Whether the policy wrote at least a part of each; another model's traces stop no run."""
    metrics: dict[str, float]

    @property
    def flags(self) -> list[Sequence[Flag]]:
        """Of each response."""
        return [each.flags if each is not None else () for each in self.seen]


@dataclass(slots=True)
class Monitor:
    """Its numbers are metrics of the step; it changes nothing."""

    codec: PromptCodec
    reader: TextReader
    rules: Sequence[str]
    """Names of the screen's rules."""
    _measured: dict[str, Measures | None] = field(default_factory=dict)
    """Of the programs of the buffer and of this step, by their source."""

    async def watch(
        self, trajectories: Sequence[Sample], tasks: Mapping[str, Sequence[Task]], new: Sequence[Task] = ()
    ) -> Watched:
        """Looks at these responses, at the programs of the stored tasks by their kind, and of those new among them."""
        texts, repeated = await asyncio.to_thread(self._read, trajectories)
        seen = await self.reader.look_at(texts)
        metrics = response_metrics(trajectories, repeated, seen) | flag_metrics(self.rules, trajectories, seen)
        own = [trajectory.origin != "trace" for trajectory in trajectories]
        return Watched(seen=seen, own=own, metrics=metrics | await self._programs(tasks, new))

    def _read(self, trajectories: Sequence[Sample]) -> tuple[list[Text], list[float]]:
        opened: dict[int, bool] = {}
        texts = [
            Text(self.codec.decode(each.completion.response_ids), self._opens(each, opened), _program(each))
            for each in trajectories
        ]
        return texts, [repeated_share(each.completion.response_ids) for each in trajectories]

    def _opens(self, trajectory: Sample, known: dict[int, bool]) -> bool:
        """Whether the prompt ends with the tag that opens the thinking."""
        prompt = trajectory.completion.prompt_ids
        if id(prompt) not in known:  # the answers of a group share the array
            known[id(prompt)] = self.codec.decode(prompt[-8:]).rstrip().endswith(THINK)
        return known[id(prompt)]

    async def _programs(self, tasks: Mapping[str, Sequence[Task]], new: Sequence[Task]) -> dict[str, float]:
        sources = {task.program for of_kind in tasks.values() for task in of_kind} | {task.program for task in new}
        unknown = sorted(sources - self._measured.keys())
        self._measured = {source: each for source, each in self._measured.items() if source in sources}
        self._measured |= dict(zip(unknown, await self.reader.measure(unknown), strict=True))
        metrics: dict[str, float] = {}
        for kind, of_kind in tasks.items():
            stored = means(self._known(of_kind))
            proposed = means(self._known([task for task in new if task.kind == kind]))
            metrics |= {f"programs/{kind}/{name}": value for name, value in stored.items()}
            metrics |= {f"{kind}/proposer/{name}": value for name, value in proposed.items()}
        return metrics

    def _known(self, tasks: Sequence[Task]) -> list[Measures]:
        return [each for task in tasks if (each := self._measured[task.program]) is not None]


@dataclass(frozen=True, slots=True)
class SafetyStop:
    """Ends a run whose responses are flagged too often."""

    stop_at: int | None
    """Flagged responses of one step; None for never."""
    show: str
    """The command that shows them."""

    def raise_if_over(self, step: int, watched: Watched) -> None:
        """Raises RunEnded after a step with as many flagged responses, or more."""
        pairs = zip(watched.seen, watched.own, strict=True)
        flagged = [each for each, is_own in pairs if is_own and each is not None and each.flags]
        if self.stop_at is None or len(flagged) < self.stop_at:
            return
        rules = Counter(name for each in flagged for name in {name for name, _, _ in each.flags})
        most, count = rules.most_common(1)[0]
        raise RunEnded(
            f"{len(flagged)} responses of step {step} were flagged, most of them ({count}) by the rule {most}, and "
            f"safety.stop_at is {self.stop_at}, so the run ends here: {self.show} shows them; go on with another "
            "safety.stop_at or safety.patterns."
        )


def response_metrics(
    trajectories: Sequence[Sample], repeated: Sequence[float], seen: Sequence[Seen | None]
) -> dict[str, float]:
    """Per kind and role, of all responses, those that are not trained on included and what traces wrote or began apart
    (`Sample.player`): percentiles of their tokens, and shares of those that are repetitive, mix languages, or whose
    program is heavy with comments."""
    players: defaultdict[str, list[int]] = defaultdict(list)
    for index, trajectory in enumerate(trajectories):
        players[trajectory.player].append(index)
    metrics: dict[str, float] = {}
    for player, members in sorted(players.items()):
        lengths = [len(trajectories[i].completion.response_ids) for i in members]
        for percent, length in zip(PERCENTILES, np.percentile(lengths, PERCENTILES), strict=True):
            metrics[f"{player}/tokens/{'max' if percent == 100 else f'p{percent}'}"] = float(length)
        metrics[f"{player}/repetitive"] = _share([repeated[i] > REPETITIVE for i in members])
        known = [each for i in members if (each := seen[i]) is not None]
        if known:
            metrics[f"{player}/language_mixed"] = _share([each.mixed for each in known])
        if heavy := [each.comment_heavy for each in known if each.comment_heavy is not None]:
            metrics[f"{player}/comment_heavy"] = _share(heavy)
    return metrics


def flag_metrics(rules: Sequence[str], trajectories: Sequence[Sample], seen: Sequence[Seen | None]) -> dict[str, float]:
    """Responses that were flagged, by any rule and by each, and those that could not be looked at.

    Traces of another model are flagged in the records, and not counted.
    """
    seen = [each for each, trajectory in zip(seen, trajectories, strict=True) if trajectory.origin != "trace"]
    hits = Counter(name for each in seen if each is not None for name in {name for name, _, _ in each.flags})
    metrics = {f"{SAFETY}{rule}": float(hits[rule]) for rule in rules}
    metrics[f"{SAFETY}flagged"] = float(sum(each is not None and bool(each.flags) for each in seen))
    return metrics | {f"{SAFETY}unscreened": float(sum(each is None for each in seen))}


def _program(trajectory: Sample) -> str | None:
    answer = trajectory.judgement.answer if trajectory.judgement is not None else None
    return next((text for label, text in answer or () if label == "program"), None)


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)
