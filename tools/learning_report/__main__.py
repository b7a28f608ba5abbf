"""What runs learned, arm by arm: tables in Markdown on standard output, and a figure.

python -m tools.learning_report RUN_DIR... [--base DIR] [--evaluations eval] [--proposals 20] [--out docs/learning.png]

The first run given is one of the main arm. Runs whose configs differ in nothing but name and seed are one arm; other
arms are called by what they change. The table shows the whole exam where every run directory has an evaluation of its
last step (``azr eval RUN_DIR --samples 8``), and otherwise the subset of it that each run evaluates before its first
step and after its last. The figure always shows that subset. With the whole exam, a second table says by how much the
first arm is above the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from azr.errors import UserError
from tools.learning_report.proposals import proposals
from tools.learning_report.report import DIFFERENCES_LEGEND, differences, figure, is_whole, legend, table
from tools.learning_report.runs import arms, read


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.learning_report", description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="run directories, the main arm's first")
    parser.add_argument("--base", type=Path, help="folder of the first model's evaluation, see azr eval")
    parser.add_argument(
        "--evaluations", default="eval", help="folder of a run's directory with those of its checkpoints"
    )
    parser.add_argument("--out", type=Path, default=Path("docs/learning.png"), help="the figure")
    parser.add_argument("--proposals", type=int, default=0, help="print so many of the first run's first and last step")
    options = parser.parse_args(argv)
    try:
        runs = [read(path, options.base, options.evaluations) for path in options.runs]
        by_arm = arms(runs)
        print(f"{table(by_arm)}\n\n{legend(runs)}")
        if is_whole(runs):
            print(f"\n{differences(by_arm)}\n\n{DIFFERENCES_LEGEND}")
        for step in (1, len(runs[0].steps)) if options.proposals else ():
            print(f"\nStep {step}:\n\n```\n{proposals(options.runs[0], step, options.proposals)}\n```")
        figure(by_arm).savefig(options.out)
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
