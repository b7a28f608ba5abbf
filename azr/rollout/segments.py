"""A response sampled in segments: tokens from before a weight sync are kept, and sampling continues after them.

Legend: R response tokens of a segment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from azr.records import Completion, FinishReason

Decode = Callable[[list[int]], str]
"""The text of token ids, special tokens included."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens of one response sampled from one version of the weights."""

    token_ids: npt.NDArray[np.int32]
    """(R)."""
    logprobs: npt.NDArray[np.float32]
    """(R)."""
    finish_reason: FinishReason | None
    """None if it was interrupted."""
    weight_version: int


@dataclass(slots=True)
class PartialResponse:
    """Segments of one response so far."""

    segments: list[Segment] = field(default_factory=list)

    @property
    def finished(self) -> bool:
        return bool(self.segments) and self.segments[-1].finish_reason is not None

    @property
    def token_ids(self) -> list[int]:
        return [token for segment in self.segments for token in segment.token_ids.tolist()]

    def add(self, segment: Segment, stop_strings: Sequence[str], decode: Decode) -> None:
        """Append a segment, cut at the end of a stop string that an earlier segment began.

        The engine sees only stop strings that begin in the segment that it samples.
        """
        before = self.token_ids
        end = straddling_stop(before, segment.token_ids.tolist(), stop_strings, decode) if before else None
        if end is not None:
            segment = Segment(
                segment.token_ids[:end], segment.logprobs[:end], FinishReason.STOP, segment.weight_version
            )
        self.segments.append(segment)

    def completion(self, prompt_ids: npt.NDArray[np.int32]) -> Completion:
        """Return the finished response as a completion; `prompt_ids` (P)."""
        reason = self.segments[-1].finish_reason
        assert reason is not None, "an interrupted response is no completion"
        lengths = [len(segment.token_ids) for segment in self.segments]
        versions = np.array([segment.weight_version for segment in self.segments], np.int32)
        return Completion(
            prompt_ids=prompt_ids,
            response_ids=np.concatenate([segment.token_ids for segment in self.segments]),
            logprobs=np.concatenate([segment.logprobs for segment in self.segments]),
            finish_reason=reason,
            weight_versions=np.repeat(versions, lengths),
        )


def straddling_stop(
    before: Sequence[int], after: Sequence[int], stop_strings: Sequence[str], decode: Decode
) -> int | None:
    """Return how many tokens of `after` complete the first stop string that begins in `before`, or None."""
    reach = max(map(len, stop_strings), default=0)
    tail = list(before[-reach:]) if reach else []
    border = len(decode(tail)) if tail else 0
    for count in range(1, min(reach, len(after)) + 1 if tail else 1):
        text = decode([*tail, *after[:count]])
        for string in stop_strings:
            begins = text.find(string, max(0, border - len(string) + 1))
            if -1 < begins < border:
                return count
    return None
