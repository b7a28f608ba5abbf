"""A process that grades answers by a user's function; its parent kills it when it takes too long.

It reads one JSON object a line, ``{row, response}``, and answers with one: ``{right}``, which is true, false or null,
or ``{trouble}``.
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from typing import Any

from azr.evaluation.graders.own import GradeFunction, load_grader

MEMORY_BYTES = 4 * 2**30


def main() -> None:
    # What the function prints must not be taken for a verdict.
    said_to, sys.stdout = sys.stdout, sys.stderr
    function = load_grader(sys.argv[1])
    # Beside what its libraries map, which is a lot for some.
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    print(json.dumps({"ready": True}), file=said_to, flush=True)
    for line in sys.stdin:
        print(json.dumps(_graded(function, **json.loads(line))), file=said_to, flush=True)


def _graded(function: GradeFunction, row: dict[str, Any], response: str) -> dict[str, Any]:
    try:
        right = function(row, response)
    except Exception as error:
        return {"trouble": f"raised {type(error).__name__}: {str(error)[:200]}"}
    if right is None or isinstance(right, bool):
        return {"right": right}
    return {"trouble": f"returned {repr(right)[:60]}, which is none of True, False and None"}


if __name__ == "__main__":
    main()
