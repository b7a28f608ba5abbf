"""Turn a published data set into rows that a run trains on, leave out what repeats and what evaluation suites hold,
and say what was left out. Files are parquet, JSON lines (also gzip) and, of SRC, JSON arrays, by their endings."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from azr.cli.options import Parser
from azr.errors import UserError, printable, unknown
from azr.text import clipped

if TYPE_CHECKING:
    from azr.datasets.preparing import Overlap, Prepared
    from azr.datasets.sources import Options, Source

_USAGE = "azr data prepare SOURCE SRC OUT [options]"
_PARSED = 500
"""Most answers, spread evenly over the file, that the grader of mathematics reads."""
_SHOWN_CHARS = 160
"""Of a text of the preview."""
_SHOWN_ROWS = 5
"""Numbers of rows that are named for each suite."""


def main(argv: Sequence[str]) -> int:
    from azr.datasets.sources import SOURCES

    if argv and argv[0] not in ("prepare", "--help", "-h"):
        raise UserError(f"azr data does one thing, {_USAGE}, and not {argv[0]!r}.")
    options = parser().parse(argv[1:] if argv and argv[0] == "prepare" else argv)
    if options.source not in SOURCES:
        raise unknown("source", options.source, SOURCES, "azr data prepare --help lists all.")
    from azr.datasets.preparing import check_files, load_overlap, prepare, rows_file

    source = SOURCES[options.source]
    chosen = _chosen(source, options)
    options.src = rows_file(options.src)
    check_files(options.src, options.out, overwrite=options.overwrite)
    began = perf_counter()
    overlap = load_overlap(options.against) if options.against is not None else None
    done = prepare(source, options.src, options.out, chosen, overlap)
    took = perf_counter() - began
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    _print_counts(options, done, overlap)
    if done.answers:
        print(_parsed(done.answers))
    _print_preview(done)
    print(f"\nwritten to {options.out} in {took:.1f} s; a run trains on it with --data.path {options.out}")
    return 0


def parser() -> Parser:
    from azr.datasets.sources import SOURCES

    known = "\n".join(f"  {source.name:<10}{source.about}" for source in SOURCES.values())
    parser = Parser("data prepare", __doc__, usage=_USAGE, more_help=f"\nsources:\n{known}\n")
    parser.add_argument("source", metavar="SOURCE", help="format of SRC, see below")
    parser.add_argument("src", metavar="SRC", help="published file, folder, or OWNER/NAME[/CONFIG][:SPLIT] of the hub")
    parser.add_argument("out", metavar="OUT", type=Path, help="file to write: .jsonl, .jsonl.gz or .parquet")
    parser.add_argument("--against", type=Path, metavar="DIR", help="omit questions of the suites in this folder")
    parser.add_argument("--overwrite", action="store_true", help="replace OUT")
    parser.add_argument("--system", choices=("keep", "drop"), help="luffy: its system turn (default: keep)")
    asked = "cruxeval: what to ask about each program (default: both)"
    parser.add_argument("--asked", choices=("output", "input", "both"), help=asked)
    return parser


def _chosen(source: Source, options: argparse.Namespace) -> Options:
    from azr.datasets.sources import Options

    for name in ("system", "asked"):
        if getattr(options, name) is not None and name not in source.options:
            raise UserError(f"--{name} means nothing for {source.name}: leave it out.")
    asked = ("output", "input") if options.asked in (None, "both") else (options.asked,)
    return Options(system=options.system or "keep", asked=asked)


def _print_counts(options: argparse.Namespace, done: Prepared, overlap: Overlap | None) -> None:
    made = f", {done.examples:,} questions" if done.examples != done.read else ""
    print(f"{options.src}: {done.read:,} rows{made}")
    rows = [("written", done.written), *((f"left out: {reason}", n) for reason, n in done.dropped.items() if n)]
    rows.append(("with traces", done.with_traces))
    width = max(len(name) for name, _ in rows)
    for name, count in rows:
        more = f" ({done.traces:,} traces)" if name == "with traces" and done.traces != count else ""
        print(f"  {name:<{width}}  {count:>9,}{more}")
    if overlap is None:
        print("Nothing was compared with evaluation suites: --against DIR does that.")
        return
    print(f"Compared with {sum(overlap.counts.values()):,} questions of {', '.join(overlap.counts)}.")
    for (suite, kind), numbers in sorted(done.matches.items()):
        print(f"  in {suite}, {kind}: {len(numbers):,} (rows {', '.join(map(str, numbers[:_SHOWN_ROWS]))}"
              f"{', …' if len(numbers) > _SHOWN_ROWS else ''})")  # fmt: skip


def _parsed(answers: Sequence[str]) -> str:
    from azr.datasets.preparing import count_parsed

    most = min(len(answers), _PARSED)
    looked_at = [answers[at * len(answers) // most] for at in range(most)]
    try:
        right = asyncio.run(count_parsed(looked_at))
    except UserError as error:
        return f"No answer was tried: {error}"
    of = f"{len(looked_at):,} answers" + (", spread evenly," if len(looked_at) < len(answers) else "")
    return f"The grader of mathematics reads {right:,} of {of} as more than text ({100 * right / len(looked_at):.1f}%)."


def _print_preview(done: Prepared) -> None:
    for row in done.preview:
        print(f"\nrow {row['id']} ({row['source']}, {row['grader']})")
        for turn in row["prompt"]:
            print(f"  {turn['role']}: {_short(turn['content'])}")
        for name, value in row.items():
            if name not in ("id", "source", "prompt", "grader", "traces"):
                print(f"  {name}: {_short(value)}")
        for trace in row.get("traces", ()):
            print(f"  trace of {len(trace):,} characters: {_short(trace)}")


def _short(text: str) -> str:
    return printable(clipped(text.replace("\n", "⏎"), _SHOWN_CHARS))
