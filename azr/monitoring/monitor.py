"""Looks at a step's responses and at the programs of the buffer while the trainers learn from them."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from azr.errors import RunEnded
from azr.monitoring.texts import SAFETY, Findings, Measures, Text, TextReader, means
from azr.prompts.codec import PromptCodec
from azr.records import Sample, Task

PERCENTILES = (50, 90, 99, 100)
THINK = "<think>"
GRAM = 8
"""Tokens of a sequence whose repetition is looked for."""
REPETITIVE = 0.5
"""Above this share of repeated sequences a response counts as repetitive."""
_FACTOR = np.uint64(0x9E3779B97F4A7C15)


@dataclass(slots=True)
class Monitor:
    """Its numbers are metrics of the step; it changes nothing but the samples' flags."""

    codec: PromptCodec
    reader: TextReader
    rules: Sequence[str]
    """Names of the screen's rules."""
    _measured: dict[str, Measures | None] = field(default_factory=dict)
    """Measures of the buffer's and of this step's programs, by their source."""

    async def watch(
        self, samples: Sequence[Sample], tasks: Mapping[str, Sequence[Task]], new: Sequence[Task] = ()
    ) -> dict[str, float]:
        """Write the flags of these samples and return metrics of their responses, of the programs of the stored tasks
        by kind, and of those new among them."""
        samples = [sample for sample in samples if sample.finish_reason != "given_up"]
        texts, repeated = await asyncio.to_thread(self._read, samples)
        findings = await self.reader.look_at(texts)
        for sample, found in zip(samples, findings, strict=True):
            if found is not None:
                sample.flags = [(rule, start, end) for rule, start, end in found["flags"]]
        metrics = response_metrics(samples, repeated, findings) | flag_metrics(self.rules, samples, findings)
        return metrics | await self._programs(tasks, new)

    def _read(self, samples: Sequence[Sample]) -> tuple[list[Text], list[float]]:
        opened: dict[int, bool] = {}
        texts = [
            Text(self.codec.decode(ids) if text is None else text, self._opens(each, opened), _program(each))
            for each in samples
            for ids, text in [(each.completion.response_ids, each.completion.text)]
        ]
        return texts, [repeated_share(each.completion.response_ids) for each in samples]

    def _opens(self, sample: Sample, known: dict[int, bool]) -> bool:
        """Whether the prompt ends with the tag that opens the thinking."""
        prompt = sample.completion.prompt_ids
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

    def raise_if_over(self, step: int, samples: Sequence[Sample]) -> None:
        """Raise RunEnded after a step with as many flagged responses, or more; another model's traces do not count."""
        flagged = [sample for sample in samples if sample.flags and sample.origin != "trace"]
        if self.stop_at is None or len(flagged) < self.stop_at:
            return
        most, count = _hits(flagged).most_common(1)[0]
        raise RunEnded(
            f"{len(flagged)} responses of step {step} were flagged, most of them ({count}) by the rule {most}, and "
            f"safety.stop_at is {self.stop_at}, so the run ends here: {self.show} shows them; go on with another "
            "safety.stop_at or safety.patterns."
        )


def response_metrics(
    samples: Sequence[Sample], repeated: Sequence[float], findings: Sequence[Findings | None]
) -> dict[str, float]:
    """Return per kind and role, of all responses, untrained ones included and what traces wrote or began apart
    (`Sample.player`): percentiles of their tokens, and shares of those that are repetitive, mix languages, or whose
    program is heavy with comments."""
    players: defaultdict[str, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        players[sample.player].append(index)
    metrics: dict[str, float] = {}
    for player, members in sorted(players.items()):
        lengths = [samples[i].response_tokens or 0 for i in members]
        for percent, length in zip(PERCENTILES, np.percentile(lengths, PERCENTILES), strict=True):
            metrics[f"{player}/tokens/{'max' if percent == 100 else f'p{percent}'}"] = float(length)
        metrics[f"{player}/repetitive"] = _share([repeated[i] > REPETITIVE for i in members])
        known = [found for i in members if (found := findings[i]) is not None]
        if known:
            metrics[f"{player}/language_mixed"] = _share([found["mixed"] for found in known])
        if heavy := [found["comment_heavy"] for found in known if found["comment_heavy"] is not None]:
            metrics[f"{player}/comment_heavy"] = _share(heavy)
    return metrics


def flag_metrics(
    rules: Sequence[str], samples: Sequence[Sample], findings: Sequence[Findings | None]
) -> dict[str, float]:
    """Return how many samples were flagged, by any rule and by each, and how many could not be looked at. Traces of
    another model are flagged in the records, and not counted."""
    counted = [pair for pair in zip(samples, findings, strict=True) if pair[0].origin != "trace"]
    hits = _hits([sample for sample, _ in counted])
    metrics = {f"{SAFETY}{rule}": float(hits[rule]) for rule in rules}
    metrics[f"{SAFETY}flagged"] = float(sum(bool(sample.flags) for sample, _ in counted))
    return metrics | {f"{SAFETY}unscreened": float(sum(found is None for _, found in counted))}


def _hits(samples: Sequence[Sample]) -> Counter[str]:
    """Return how many samples each rule flags."""
    return Counter(rule for sample in samples for rule in {rule for rule, _, _ in sample.flags})


def _program(sample: Sample) -> str | None:
    answer = sample.judgement.answer if sample.judgement is not None else None
    return next((text for label, text in answer or () if label == "program"), None)


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags)


def repeated_share(token_ids: npt.NDArray[np.int32]) -> float:
    """Return the share of the sequences of `GRAM` tokens in ``token_ids`` (R) that occurred before; 0 for a short one.

    This is rep-n of Welleck et al. (arXiv 1908.04319, section 6.1) for n = 8. Sequences are compared by a 64-bit hash.
    """
    count = len(token_ids) - GRAM + 1
    if count < 2:
        return 0.0
    ids = token_ids.astype(np.uint64) + np.uint64(1)
    hashes = np.zeros(count, np.uint64)
    for i in range(GRAM):
        hashes = (hashes ^ (hashes >> np.uint64(29))) * _FACTOR + ids[i : i + count]
    return 1.0 - len(np.unique(hashes)) / count
