"""Checks of a machine or a cluster before a run starts: one function per section, whose findings have a mark each."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from enum import StrEnum
from functools import partial


class Mark(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """A run can start, but slower, weaker or not as tested."""
    MISSING = "missing"
    """No run can start before this is put right."""
    INFO = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; what is not ok says what to do about it."""

    name: str
    message: str
    mark: Mark


info, ok = partial(Finding, mark=Mark.INFO), partial(Finding, mark=Mark.OK)
warning, missing = partial(Finding, mark=Mark.WARNING), partial(Finding, mark=Mark.MISSING)


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingGroup:
    """Findings of one check."""

    title: str
    findings: list[Finding]
    verdict: str = ""
    """One sentence on what follows; empty where nothing does."""

    @property
    def ok(self) -> bool:
        return all(finding.mark is not Mark.MISSING for finding in self.findings)

    def text(self, columns: int) -> str:
        """For a terminal, with an empty line at the end."""
        name_width = max((len(each.name) for each in self.findings), default=0)
        mark_width = max((len(each.mark) for each in self.findings), default=0)
        lines = [self.title]
        for each in self.findings:
            start = f"  {each.name:<{name_width}}  " + (f"{each.mark:<{mark_width}}  " if mark_width else "")
            width = max(columns, len(start) + 30)
            lines += textwrap.wrap(
                each.message, width, initial_indent=start, subsequent_indent=" " * len(start), break_long_words=False
            )
        return "\n".join([*lines, *textwrap.wrap(self.verdict, max(columns, 40)), ""])
