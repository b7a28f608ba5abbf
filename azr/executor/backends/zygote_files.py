"""Files that a zygote needs; sandboxes and images hold no other files of ours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The folder that holds the package."""
ZYGOTE = "azr/executor/zygote.py"
"""The zygote's script, below the folder that holds the package."""
OPTIONS = ("-P", "-s", "-S", "-B")
"""Options of the zygote's interpreter. -I would ignore the hash seed, so its isolation is spelled out."""


_IMPORT = re.compile(r"^from (azr[\w.]*) import (\([^)]*\)|[^\n#]*)", re.MULTILINE)
"""Import statement of our modules, in the one form that they use."""


def sources() -> dict[str, bytes]:
    """Contents of the zygote's script and of every module of ours that it imports, by path below ``ROOT``."""
    found: dict[str, bytes] = {}
    waiting = [ZYGOTE]
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = (ROOT / path).read_bytes()
            waiting += _imports(found[path])
    return dict(sorted(found.items()))


def _imports(source: bytes) -> Iterator[str]:
    # Not read by ast: in Python 3.11 two threads must not parse at once, and callers come from threads.
    for module, names in _IMPORT.findall(source.decode()):
        yield from _files(module)
        for name in re.findall(r"\w+", names):
            yield from _files(f"{module}.{name}")


def _files(module: str) -> Iterator[str]:
    """Files of ours that importing this name loads: packages on the way and the module itself."""
    for base in accumulate(module.split("."), "{}/{}".format):
        for path in (f"{base}/__init__.py", f"{base}.py"):
            if (ROOT / path).is_file():
                yield path
