"""Looks at a step's responses while the trainers learn from them: lengths, repetition, the safety screen."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from azr.errors import RunEnded
from azr.monitoring.texts import SAFETY, Flag, Text, TextReader
from azr.prompts.codec import PromptCodec
from azr.records import Completion, Sample, grouped
from azr.runs.sample_file import text_and_spans

PERCENTILES = (50, 90, 99, 100)
THINK = "<think>"
GRAM = 8
"""Tokens of a sequence whose repetition is looked for."""
REPETITIVE = 0.5
"""Above this share of repeated sequences a response counts as repetitive."""


@dataclass(slots=True)
class Monitor:
    """Its numbers are metrics of the step; it changes nothing but the samples' flags."""

    codec: PromptCodec
    reader: TextReader
    rules: Sequence[str]
    """Names of the screen's rules."""

    async def watch(self, samples: Sequence[Sample]) -> dict[str, float]:
        """Write the flags of these samples and return metrics of their responses."""
        samples = [sample for sample in samples if sample.finish_reason != "given_up"]
        texts, repeated = await asyncio.to_thread(self._read, samples)
        flags = await self.reader.flags(texts)
        for sample, found in zip(samples, flags, strict=True):
            if found is not None:
                sample.flags = [(rule, start, end) for rule, start, end in found]
        return response_metrics(samples, repeated) | flag_metrics(self.rules, samples, flags)

    def _read(self, samples: Sequence[Sample]) -> tuple[list[Text], list[float]]:
        made = [each.completion for each in samples]
        prompts = {id(each.prompt_ids): each.prompt_ids for each in made}  # the answers of a group share one
        opened = {key: self.codec.decode(ids[-8:]).rstrip().endswith(THINK) for key, ids in prompts.items()}
        texts = [(self._sampled_text(each), opened[id(each.prompt_ids)]) for each in made]
        return texts, [repeated_share(each.response_ids[each.is_sampled]) for each in made]

    def _sampled_text(self, completion: Completion) -> str:
        """Return the text of a response with line ends for every character that an environment wrote."""
        text, spans = text_and_spans(completion, self.codec.decode)
        for start, end in spans:
            text = text[:start] + "\n" * (end - start) + text[end:]
        return text


def raise_if_flagged(stop_at: int | None, run: Path, step: int, samples: Sequence[Sample]) -> None:
    """Raise RunEnded after a step with ``stop_at`` flagged responses or more (None: never); another model's traces do
    not count. ``run``: folder of the run."""
    flagged = [sample for sample in samples if sample.flags and sample.origin != "trace"]
    if stop_at is None or len(flagged) < stop_at:
        return
    most, count = _hits(flagged).most_common(1)[0]
    raise RunEnded(
        f"{len(flagged)} responses of step {step} were flagged, most of them ({count}) by the rule {most}, and "
        f"safety.stop_at is {stop_at}, so the run ends here: azr show {run} --flagged shows them; take another "
        "safety.stop_at or safety.patterns."
    )


def response_metrics(samples: Sequence[Sample], repeated: Sequence[float]) -> dict[str, float]:
    """Return per kind and role, of all responses, untrained ones included and traces apart (`Sample.player`):
    percentiles of their tokens, and the share of those that are repetitive."""
    players = grouped((sample.player, index) for index, sample in enumerate(samples))
    metrics: dict[str, float] = {}
    for player, members in sorted(players.items()):
        lengths = [samples[i].response_tokens or 0 for i in members]
        for percent, length in zip(PERCENTILES, np.percentile(lengths, PERCENTILES), strict=True):
            metrics[f"{player}/tokens/{'max' if percent == 100 else f'p{percent}'}"] = float(length)
        metrics[f"{player}/repetitive"] = sum(repeated[i] > REPETITIVE for i in members) / len(members)
    return metrics


def flag_metrics(
    rules: Sequence[str], samples: Sequence[Sample], flags: Sequence[list[Flag] | None]
) -> dict[str, float]:
    """Return how many samples were flagged, by any rule and by each, and how many could not be looked at. Traces of
    another model are flagged in the records, and not counted."""
    counted = [pair for pair in zip(samples, flags, strict=True) if pair[0].origin != "trace"]
    hits = _hits([sample for sample, _ in counted])
    metrics = {f"{SAFETY}{rule}": float(hits[rule]) for rule in rules}
    metrics[f"{SAFETY}flagged"] = float(sum(bool(sample.flags) for sample, _ in counted))
    return metrics | {f"{SAFETY}unscreened": float(sum(found is None for _, found in counted))}


def _hits(samples: Sequence[Sample]) -> Counter[str]:
    """Return how many samples each rule flags."""
    return Counter(rule for sample in samples for rule in {rule for rule, _, _ in sample.flags})


def repeated_share(token_ids: npt.NDArray[np.int32]) -> float:
    """Return the share of the sequences of `GRAM` tokens in ``token_ids`` (R) that occurred before; 0 for a short one.

    This is rep-n of Welleck et al. (arXiv 1908.04319, section 6.1) for n = 8.
    """
    count = len(token_ids) - GRAM + 1
    if count < 2:
        return 0.0
    ids, size = token_ids.tobytes(), token_ids.itemsize
    return 1.0 - len({ids[at : at + GRAM * size] for at in range(0, count * size, size)}) / count
