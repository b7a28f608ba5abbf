"""How many of the sampled responses were not in the asked form, whatever they earn and whether or not they train."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from azr.records import Completion, FinishReason


@dataclass(frozen=True, slots=True, kw_only=True)
class FormCount:
    """Counts over responses of one role. Two counts add up to one."""

    sampled: int = 0
    malformed: int = 0
    """Not in the asked form, those that were cut off included."""
    cut_off: int = 0
    """Ended by the limit of their length."""
    example: tuple[int, ...] | None = None
    """Token ids of the first malformed response; None when there is none."""

    @classmethod
    def of(cls, completions: Sequence[Completion], malformed: Iterable[bool]) -> FormCount:
        """Of completions and whether each was found malformed; one that was cut off is, whatever was found."""
        cut_off = [completion.finish_reason is FinishReason.LENGTH for completion in completions]
        pairs = zip(malformed, cut_off, strict=True)
        bad = [c for c, pair in zip(completions, pairs, strict=True) if any(pair)]
        return cls(
            sampled=len(completions),
            malformed=len(bad),
            cut_off=sum(cut_off),
            example=tuple(bad[0].response_ids.tolist()) if bad else None,
        )

    def __add__(self, other: FormCount) -> FormCount:
        return FormCount(
            sampled=self.sampled + other.sampled,
            malformed=self.malformed + other.malformed,
            cut_off=self.cut_off + other.cut_off,
            example=other.example if self.example is None else self.example,
        )

    @property
    def share(self) -> float | None:
        """Malformed ones among all; None when nothing was sampled."""
        return self.malformed / self.sampled if self.sampled else None
