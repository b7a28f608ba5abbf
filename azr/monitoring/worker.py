"""A process of its own that looks at texts: ``python -m azr.monitoring.worker PATTERNS``. Requests and answers are
lines of JSON, see `azr.monitoring.reader`. A pattern that takes for ever costs this process, and not the run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any, TypedDict

from azr.monitoring.programs import measure
from azr.monitoring.screen import Flag, Screen
from azr.monitoring.texts import is_comment_heavy, is_mixed


class Findings(TypedDict):
    """Properties of one response."""

    flags: list[Flag]
    mixed: bool
    comment_heavy: bool | None
    """None without a program."""


def look_at(screen: Screen, text: dict[str, Any]) -> Findings:
    """Return what one response shows; ``text["program"]`` is None when it holds none."""
    program = text["program"]
    return Findings(
        flags=screen.flags(text["response"], text["opened"]),
        mixed=is_mixed(text["response"]),
        comment_heavy=None if program is None else is_comment_heavy(program),
    )


def main() -> None:
    os.nice(10)  # what the run waits for comes first
    screen = Screen.read(Path(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer = [*(look_at(screen, text) for text in asked["texts"]), *map(measure, asked["programs"])]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
