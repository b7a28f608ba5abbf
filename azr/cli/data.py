"""Write the rows of a file that no evaluation suite holds: neither their question nor 13 words in a row of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from azr.cli.options import Parser
from azr.config import Config
from azr.config_tree import override

_SHOWN_ROWS = 5
"""Numbers of rows that are named for each suite."""


def main(argv: Sequence[str]) -> int:
    options, values = parser().parse_with_overrides(argv)
    data = override(Config(), values).data
    # Only now, because these take a while to load.
    from azr.datasets.hub import rows_file
    from azr.datasets.overlap import check_out, leave_out, load_overlap

    path = rows_file(options.rows)
    check_out(path, options.out)
    overlap = load_overlap(options.against)
    counts = leave_out(path, options.out, overlap, data)
    print(f"{options.rows}: {counts.read:,} rows, compared with {sum(overlap.counts.values()):,} questions of "
          f"{', '.join(overlap.counts)}")  # fmt: skip
    print(f"left out: {counts.read - counts.written:,}")
    for (suite, kind), numbers in sorted(counts.matches.items()):
        more = ", …" if len(numbers) > _SHOWN_ROWS else ""
        print(f"  in {suite}, {kind}: {len(numbers):,} (rows {', '.join(map(str, numbers[:_SHOWN_ROWS]))}{more})")
    print(f"written to {options.out}: {counts.written:,}; a run trains on them with --data.path {options.out}")
    return 0


def parser() -> Parser:
    parser = Parser("data", __doc__)
    parser.add_argument(
        "rows", metavar="ROWS", help="as --data.path of a run, whose --data.fields and --data.grader may follow"
    )
    parser.add_argument("out", metavar="OUT", type=Path, help="file to write: .jsonl or .jsonl.gz")
    parser.add_argument("--against", type=Path, metavar="DIR", required=True, help="folder with the suites' files")
    return parser
