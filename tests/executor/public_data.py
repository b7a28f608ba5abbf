"""Public programs as requests: CRUXEval's functions, and the reference solutions of MBPP+.

They are not in the repository. AZR_DATA names the folder with ``cruxeval.jsonl`` and ``MbppPlus.jsonl``; without it,
``shared/data`` beside the clone is taken where it exists.
"""

import gzip
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
"""CRUXEval inputs that are not plain data but expressions: ``'$78'.upper()``, ``range(100, 120)``, ``lambda x: x < 2``,
``dict(did=0)``, ``'a' + 'b'``, a name of the program's own. Such a text is refused where arguments are stated, and
runs as part of a program."""

DEVIATIONS = {"sample_621": "\"<class 'LookupError'>\""}
"""What a CRUXEval program returns instead of the recorded output. This one encodes text as Shift JIS, and the sandbox,
where no file can be opened, has only the codecs that its interpreter loaded before: the Unicode and Latin ones."""

IMPURE_SOLUTIONS = {"Mbpp/596": "line 2: imports sys"}
"""MBPP+ solutions that the static check refuses: this one returns ``sys.getsizeof`` of its argument."""

UNSTATABLE = {
    "Mbpp/88": ("rejected", "Counter is not plain data"), "Mbpp/737": ("rejected", "Match is not plain data"),
    "Mbpp/787": ("rejected", "Match is not plain data"), "Mbpp/794": ("rejected", "Match is not plain data"),
    "Mbpp/255": ("output_too_large", "value"), "Mbpp/462": ("output_too_large", "value"),
    "Mbpp/630": ("output_too_large", "value"),
}  # fmt: skip
"""MBPP+ solutions some of whose values are not plain data, or too much of it: the status, and words of its error."""

MEMORY_HUNGRY = frozenset({"Mbpp/255"})
"""MBPP+ solutions that need more than 128 MiB on one of their extra inputs."""


REFUSED_PROPOSALS = {
    "CRUXEval": {
        "sample_135": "`f` takes no argument", "sample_344": "an input holds a lambda",
        "sample_364": "an input holds a lambda", "sample_522": "an input is not plain data",
    },
    "MBPP+": {
        "Mbpp/596": "imports os, sys, timeit or secrets",
        **dict.fromkeys(("Mbpp/88", "Mbpp/737", "Mbpp/794"), "returns no plain data"),
    },
}  # fmt: skip
"""Programs that make no task with their first input, and why."""


_LINES_BY_REASON = {
    "returns no plain data": (244, 625, 789, 1027, 1080, 1095, 1097, 1109, 1211, 1275, 1327, 1379, 1409, 1467, 1472,
     1494, 1498, 1499, 1853, 2038, 2045, 2074, 2237, 2272, 2439, 2516, 2611, 2612, 2628, 2677, 3073, 3075, 3086, 3150,
     3158),
    "imports a package": (40, 256, 822, 925, 979, 1019, 1189, 1267, 1366, 1397, 1636, 2329, 2353, 2446, 2528, 2574,
     2683),
    "is not deterministic": (91, 99, 387, 468, 636, 692, 734, 743, 744, 803, 897, 1021, 1634, 2012, 2200, 2277),
    "fewer than half of the inputs differ": (156, 1145, 1229, 1245, 2563, 2595, 2605, 2619, 2624, 2784, 2906, 2929),
    "imports os, sys, timeit or secrets": (480, 1041, 1096, 1388, 1475, 1532, 1840, 1968, 1994, 2224, 2468),
    "the message is longer than 4,000 characters": (1180, 1184, 1718, 1890, 2592, 2593, 2616),
    "an input is not plain data": (371, 1466, 2437, 3098, 3126),
    "the message states the program": (1580, 1616, 1824, 1841, 2013), "an input holds a lambda": (113, 853, 1827),
    "returns too much or takes too long": (230, 1505, 1924), "uses open or eval": (2547, 2626, 2659),
    "imports queue": (533, 2287), "an input leaves something out": (1103,), "raises an exception": (2429,),
}  # fmt: skip
REFUSED_SEED_TASKS = {line: why for why, lines in _LINES_BY_REASON.items() for line in lines}
"""Lines of the seed tasks that make no task, and why; `docs/seeds.md` says more of the reasons."""


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


def public_programs() -> list[str]:
    return [row["code"] for row in rows("cruxeval.jsonl")] + [mbpp_program(row) for row in rows("MbppPlus.jsonl")]


def seed_programs() -> list[str]:
    with gzip.open(file("azr_seed_tasks.jsonl.gz"), "rt") as lines:
        return [json.loads(line)["snippet"] for line in lines]


def mbpp_program(row: dict[str, Any]) -> str:
    return f"{row['canonical_solution']}\nf = {row['entry_point']}\n"


def proposals() -> dict[str, dict[str, tuple[str, str]]]:
    """Programs of each data set as somebody could propose them, by id: text and first input."""
    solutions = rows("MbppPlus.jsonl")
    call = "{}\n\ndef f(*arguments):\n    return {}(*arguments)\n"
    return {
        "CRUXEval": {row["id"]: (row["code"], row["input"]) for row in rows("cruxeval.jsonl")},
        "MBPP+": {
            row["task_id"]: (call.format(row["canonical_solution"], row["entry_point"]), mbpp_inputs(row)[0])
            for row in solutions
        },
    }


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
