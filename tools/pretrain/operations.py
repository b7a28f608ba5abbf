"""The operations that generated programs are composed of, by the type they act on.

Types are named ``int``, ``str``, ``ints`` (list of int), ``words`` (list of str), ``dict`` (str to int) and
``bool`` (only ever a final result). In a template ``{v}`` is the value acted on, ``{c}`` and ``{d}`` are constants
of the kind named next to it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

VOWELS = "aeiou"
CONSONANTS = "bcdfgklmnprst"


@dataclass(frozen=True, slots=True)
class Operation:
    """One typed expression with a short name for the hint."""

    source: str
    target: str
    hint: str
    template: str
    constant: str = ""
    """Kind of ``{c}``, a key of `CONSTANTS`; empty when the template has none."""


def syllables(rng: random.Random, low: int, high: int) -> str:
    """A pronounceable word of ``low`` to ``high`` lower-case letters."""
    length = rng.randint(low, high)
    start = rng.random() < 0.3
    return "".join(rng.choice(VOWELS if (i + start) % 2 else CONSONANTS) for i in range(length))


CONSTANTS = {
    "term": lambda rng: str(rng.randint(1, 9)),
    "factor": lambda rng: str(rng.randint(2, 4)),
    "divisor": lambda rng: str(rng.randint(2, 5)),
    "bound": lambda rng: str(rng.randint(0, 9)),
    "index": lambda rng: str(rng.randint(1, 3)),
    "size": lambda rng: str(rng.randint(2, 4)),
    "letter": lambda rng: repr(rng.choice(VOWELS)),
    "word": lambda rng: repr(syllables(rng, 1, 2)),
    "separator": lambda rng: repr(rng.choice("-, ")),
}
"""Samplers of constants as source text."""

NUMERIC = ("term", "factor", "divisor", "bound", "index", "size")
"""Constants that an integer argument may take the place of."""


def _table(text: str) -> tuple[Operation, ...]:
    """Lines of ``source > target | hint | template | constant``."""
    rows = []
    for line in text.strip().splitlines():
        types, hint, template, constant = (part.strip() for part in line.split("|"))
        source, target = types.split(" > ")
        rows.append(Operation(source, target, hint, template, constant))
    return tuple(rows)


EXPRESSIONS = _table("""
int > int | add | {v} + {c} | term
int > int | sub | {v} - {c} | term
int > int | rsub | {c} - {v} | term
int > int | mul | {v} * {c} | factor
int > int | div | {v} // {c} | divisor
int > int | mod | {v} % {c} | divisor
int > int | max | max({v}, {c}) | bound
int > int | min | min({v}, {c}) | bound
int > int | abs | abs({v}) |
int > int | neg | -{v} |
int > int | double | {v} + {v} |
int > str | str | str({v}) |
int > bool | more | {v} > {c} | bound
int > bool | even | {v} % 2 == 0 |
int > ints | pair | [{v}, {v} + {c}] | term
int > ints | repeat | [{v}] * {c} | size
int > words | digits | list(str({v})) |
str > str | reverse | {v}[::-1] |
str > str | upper | {v}.upper() |
str > str | title | {v}.title() |
str > str | append | {v} + {c} | word
str > str | prepend | {c} + {v} | word
str > str | drop | {v}[{c}:] | index
str > str | take | {v}[:{c}] | index
str > str | droplast | {v}[:-{c}] | index
str > str | repeat | {v} * 2 |
str > str | replace | {v}.replace({c}, 'o') | letter
str > str | remove | {v}.replace({c}, '') | letter
str > str | rotate | {v}[1:] + {v}[:1] |
str > str | sort | ''.join(sorted({v})) |
str > str | skip | {v}[::2] |
str > str | spread | {c}.join({v}) | separator
str > int | len | len({v}) |
str > int | count | {v}.count({c}) | letter
str > int | find | {v}.find({c}) | letter
str > words | list | list({v}) |
str > words | sort | sorted({v}) |
str > words | split | {v}.split({c}) | letter
str > bool | has | {c} in {v} | letter
ints > ints | sort | sorted({v}) |
ints > ints | sort, reverse | sorted({v}, reverse=True) |
ints > ints | reverse | {v}[::-1] |
ints > ints | unique | sorted(set({v})) |
ints > ints | append | {v} + [{c}] | bound
ints > ints | prepend | [{c}] + {v} | bound
ints > ints | drop | {v}[{c}:] | index
ints > ints | take | {v}[:{c}] | index
ints > ints | skip | {v}[::2] |
ints > ints | rotate | {v}[1:] + {v}[:1] |
ints > ints | each add | [a + {c} for a in {v}] | term
ints > ints | each sub | [a - {c} for a in {v}] | term
ints > ints | each mul | [a * {c} for a in {v}] | factor
ints > ints | each mod | [a % {c} for a in {v}] | divisor
ints > ints | each div | [a // {c} for a in {v}] | divisor
ints > ints | each neg | [-a for a in {v}] |
ints > ints | each max | [max(a, {c}) for a in {v}] | bound
ints > ints | keep more | [a for a in {v} if a > {c}] | bound
ints > ints | keep less | [a for a in {v} if a < {c}] | bound
ints > ints | keep even | [a for a in {v} if a % 2 == 0] |
ints > ints | keep not | [a for a in {v} if a != {c}] | bound
ints > int | sum | sum({v}) |
ints > int | len | len({v}) |
ints > int | max | max({v}) |
ints > int | min | min({v}) |
ints > int | first | {v}[0] |
ints > int | last | {v}[-1] |
ints > int | count | {v}.count({c}) | bound
ints > int | range | max({v}) - min({v}) |
ints > int | ends | {v}[0] + {v}[-1] |
ints > int | count more | len([a for a in {v} if a > {c}]) | bound
ints > words | each str | [str(a) for a in {v}] |
ints > str | join | {c}.join(str(a) for a in {v}) | separator
ints > bool | has | {c} in {v} | bound
ints > bool | sum more | sum({v}) > {c} | bound
words > words | sort | sorted({v}) |
words > words | reverse | {v}[::-1] |
words > words | drop | {v}[{c}:] | index
words > words | take | {v}[:{c}] | index
words > words | rotate | {v}[1:] + {v}[:1] |
words > words | append | {v} + [{c}] | word
words > words | each upper | [a.upper() for a in {v}] |
words > words | each append | [a + {c} for a in {v}] | word
words > words | each reverse | [a[::-1] for a in {v}] |
words > words | each take | [a[:{c}] for a in {v}] | index
words > words | keep long | [a for a in {v} if len(a) > {c}] | size
words > words | keep has | [a for a in {v} if {c} in a] | letter
words > ints | each len | [len(a) for a in {v}] |
words > str | join | ''.join({v}) |
words > str | join | {c}.join({v}) | separator
words > str | first | {v}[0] |
words > str | last | {v}[-1] |
words > str | min | min({v}) |
words > int | len | len({v}) |
words > int | total | sum(len(a) for a in {v}) |
words > dict | lengths | {{a: len(a) for a in {v}}} |
dict > words | keys | list({v}) |
dict > words | sort | sorted({v}) |
dict > ints | values | list({v}.values()) |
dict > int | sum | sum({v}.values()) |
dict > int | max | max({v}.values()) |
dict > int | get | {v}.get({c}, 0) | letter
dict > dict | each add | {{k: n + {c} for k, n in {v}.items()}} | term
dict > dict | each mul | {{k: n * {c} for k, n in {v}.items()}} | factor
dict > dict | keep more | {{k: n for k, n in {v}.items() if n > {c}}} | bound
""")
"""One expression each: an assignment ``x = …`` or the returned expression."""

BINARY = _table("""
int > int | add | {v} + y |
int > int | sub | {v} - y |
int > int | mul | {v} * y |
int > int | max | max({v}, y) |
int > int | min | min({v}, y) |
int > ints | pair | [{v}, y] |
str > str | add | {v} + y |
str > str | radd | y + {v} |
str > words | pair | [{v}, y] |
str > int | len | len({v} + y) |
ints > ints | add | {v} + y |
ints > ints | zip add | [a + b for a, b in zip({v}, y)] |
ints > ints | zip mul | [a * b for a, b in zip({v}, y)] |
ints > ints | keep not | [a for a in {v} if a not in y] |
ints > ints | keep in | [a for a in {v} if a in y] |
""")
"""First steps of programs with a second argument ``y`` of the same type."""

CONDITIONS = _table("""
int > bool | more | {v} > {c} | bound
int > bool | less | {v} < {c} | bound
int > bool | even | {v} % 2 == 0 |
str > bool | long | len({v}) > {c} | size
str > bool | has | {c} in {v} | letter
ints > bool | long | len({v}) > {c} | size
ints > bool | has | {c} in {v} | bound
ints > bool | first more | {v}[0] > {c} | bound
ints > bool | sum more | sum({v}) > {c} | term
words > bool | long | len({v}) > {c} | index
""")
"""Guards of branches."""

MUTATIONS = _table("""
ints > ints | append | {v}.append({c}) | bound
ints > ints | sort | {v}.sort() |
ints > ints | reverse | {v}.reverse() |
ints > ints | prepend | {v}.insert(0, {c}) | bound
ints > ints | pop | {v}.pop() |
words > words | append | {v}.append({c}) | word
words > words | sort | {v}.sort() |
words > words | reverse | {v}.reverse() |
""")
"""Statements that change the value in place."""

LOOPS = _table("""
ints > int | sum add | r = 0;for a in {v}:;    r += a + {c} | term
ints > int | sum mul | r = 0;for a in {v}:;    r += a * {c} | factor
ints > int | sum more | r = 0;for a in {v}:;    if a > {c}:;        r += a | bound
ints > int | count less | r = 0;for a in {v}:;    if a < {c}:;        r += 1 | bound
ints > int | alternate | r = 0;for a in {v}:;    r = a - r |
ints > ints | running sum | r = [0];for a in {v}:;    r.append(r[-1] + a) |
ints > ints | keep more | r = [];for a in {v}:;    if a > {c}:;        r.append(a) | bound
ints > ints | each add | r = [];for a in {v}:;    r.append(a + {c}) | term
str > str | reverse | r = '';for a in {v}:;    r = a + r |
str > str | double | r = '';for a in {v}:;    r += a + a |
str > str | remove | r = '';for a in {v}:;    if a != {c}:;        r += a | letter
str > int | count | r = 0;for a in {v}:;    if a == {c}:;        r += 1 | letter
int > int | repeat add | r = {v};for a in range({c}):;    r += a | size
int > ints | count up | r = [];for a in range({c}):;    r.append(a + {v}) | size
words > str | join | r = '';for a in {v}:;    r += a[0] |
words > int | total | r = 0;for a in {v}:;    r += len(a) |
""")
"""Statements that build ``r``, which is the value from then on; ``;`` separates lines."""

MAY_RAISE = _table("""
ints > int | index | {v}[{c}] | divisor
ints > int | find | {v}.index({c}) | bound
str > int | int | int({v}) |
str > str | index | {v}[{c}] | divisor
int > int | divide | {c} // ({v} % 3) | term
dict > int | key | {v}[{c}] | letter
words > str | index | {v}[{c}] | index
words > str | pop | {v}.pop({c}) | index
int > int | len | len({v}) |
str > str | add | {v} + {c} | term
""")
"""Expressions that raise on some inputs: the error kind only."""
