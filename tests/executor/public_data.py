"""Public programs as requests: CRUXEval's functions, and the reference solutions of MBPP+.

They are not in the repository. AZR_DATA names the folder with ``cruxeval.jsonl`` and ``MbppPlus.jsonl``; without it,
``shared/data`` beside the clone is taken where it exists.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from azr import values

BESIDE_THE_CLONE = Path(__file__).parents[3] / "shared" / "data"

EXPRESSION_INPUTS = frozenset(
    {
        "sample_152", "sample_239", "sample_258", "sample_344", "sample_364", "sample_378", "sample_459",
        "sample_522", "sample_694", "sample_720", "sample_760", "sample_770",
    }
)  # fmt: skip
"""CRUXEval inputs that are no plain data but expressions: ``'$78'.upper()``, ``range(100, 120)``, ``lambda x: x < 2``,
``dict(did=0)``, ``'a' + 'b'``, a name of the program's own. Such a text is refused where arguments are stated, and
runs as part of a program."""

DEVIATIONS = {"sample_621": "\"<class 'LookupError'>\""}
"""What a CRUXEval program returns instead of the recorded output. This one encodes text as Shift JIS, and the sandbox,
where no file can be opened, has only the codecs that its interpreter loaded before: the Unicode and Latin ones."""

IMPURE_SOLUTIONS = {"Mbpp/596": "line 2: imports sys"}
"""MBPP+ solutions that the static check refuses: this one returns ``sys.getsizeof`` of its argument."""

SLOW_SOLUTIONS = frozenset(
    f"Mbpp/{n}" for n in (84, 123, 255, 271, 300, 389, 392, 583, 589, 592, 599, 603, 630)
)  # fmt: skip
"""MBPP+ solutions that compute for seconds on their extra inputs."""

UNSTATABLE = {
    "Mbpp/88": ("rejected", "Counter is not plain data"),
    "Mbpp/737": ("rejected", "Match is not plain data"),
    "Mbpp/787": ("rejected", "Match is not plain data"),
    "Mbpp/794": ("rejected", "Match is not plain data"),
    "Mbpp/255": ("output_too_large", "value"),
    "Mbpp/462": ("output_too_large", "value"),
    "Mbpp/630": ("output_too_large", "value"),
}
"""MBPP+ solutions some of whose values are no plain data, or too much of it: the status, and words of its error."""

MEMORY_HUNGRY = frozenset({"Mbpp/255"})
"""MBPP+ solutions that need more than 128 MiB on one of their extra inputs."""


def file(name: str) -> Path:
    """A file of public data. Skips the test where no folder is named and none is found."""
    named = os.environ.get("AZR_DATA")
    path = Path(named or BESIDE_THE_CLONE) / name
    if not named and not path.exists():
        pytest.skip(f"needs the public data set {name}: set AZR_DATA to the folder that holds it")
    assert path.exists(), f"AZR_DATA is {named}, and {name} is not in it"
    return path


def rows(name: str) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file of public data. Skips as ``file``."""
    return [json.loads(line) for line in file(name).read_text().splitlines()]


def cruxeval_call(row: dict[str, Any]) -> tuple[str, str]:
    """Program and argument text of a CRUXEval row."""
    if row["id"] in EXPRESSION_INPUTS:
        return f"{row['code']}\n\ng = f\n\ndef f():\n    return g({row['input']})\n", ""
    return row["code"], row["input"]


def mbpp_program(row: dict[str, Any]) -> str:
    return f"{row['canonical_solution']}\nf = {row['entry_point']}\n"


def mbpp_self_test(row: dict[str, Any]) -> str:
    """A program that only has a working ``f`` when the solution passes the data set's own assertions."""
    # One of the assertions uses math without importing it.
    return f"import math\n{row['canonical_solution']}\n{row['assertion']}\ndef f():\n    return True\n"


def mbpp_inputs(row: dict[str, Any]) -> list[str]:
    """Argument texts: base inputs first, then the extra ones."""
    convert = _CONVERSIONS.get(row["task_id"], lambda *arguments: arguments)
    inputs = [*row["base_input"], *row["plus_input"]]
    return [values.canonical_arguments(tuple(convert(*arguments))) for arguments in inputs]


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if type(value) is list else value


_CONVERSIONS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "Mbpp/106": lambda items, more: (items, tuple(more)),
    "Mbpp/124": lambda real, imaginary: (float(real), complex(imaginary)),
    "Mbpp/252": lambda number: (complex(number),),
    "Mbpp/580": lambda nested: (_tuples(nested),),
    "Mbpp/720": lambda items, mapping: (tuple(items), mapping),
}
"""JSON has no tuples and no complex numbers; these solutions insist on them."""
