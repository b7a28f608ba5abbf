"""Worked examples in front of prompts that a model continues. None of their programs may become a task."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Worked:
    """A program with calls.

    Example: ``Worked(program="def f(a):\\n    b = a + 1\\n    return b", calls=(("1", "2"),), message="Count.")``
    """

    program: str
    calls: tuple[tuple[str, str], ...]
    """Canonical argument texts with what the call gives: a value, or for the error kind the name of an exception."""
    message: str = ""
    """Hint for the solver of an induction."""


WORKED = (
    Worked(
        program=(
            "def f(words, n):\n"
            "    kept = [word.upper() for word in words if len(word) > n]\n"
            "    return '-'.join(kept[::-1])"
        ),
        calls=(
            ("['tea', 'lemon', 'ox'], 2", "'LEMON-TEA'"),
            ("['a', 'bc'], 0", "'BC-A'"),
            ("['plum'], 4", "''"),
            ("[], 1", "''"),
            ("['go', 'stop', 'wait'], 2", "'WAIT-STOP'"),
            ("['xyz', 'uv', 'w'], 1", "'UV-XYZ'"),
            ("['fig', 'pea', 'nut'], 1", "'NUT-PEA-FIG'"),
            ("['one', 'three'], 3", "'THREE'"),
            ("['i', 'am', 'old'], 1", "'OLD-AM'"),
            ("['ink', 'pen'], 5", "''"),
        ),
        message="The order of the words changes, and short ones are lost.",
    ),
    Worked(
        program=(
            "def f(numbers):\n"
            "    total = 0\n"
            "    for number in numbers:\n"
            "        total = number - 2 * total\n"
            "    return total"
        ),
        calls=(
            ("[5, 1, 4]", "22"),
            ("[7]", "7"),
            ("[]", "0"),
            ("[0, 3]", "3"),
            ("[1, 1, 1, 1]", "-5"),
            ("[2, -3]", "-7"),
            ("[10, 20]", "0"),
            ("[-1, 0, 0]", "-4"),
            ("[3, 6, 12]", "12"),
            ("[4, 4]", "-4"),
        ),
        message="Every number changes the sign of what came before it.",
    ),
    Worked(
        program=("def f(text, mark):\n    left, _, right = text.partition(mark)\n    return right + mark + left"),
        calls=(
            ("'red=blue', '='", "'blue=red'"),
            ("'a b c', ' '", "'b c a'"),
            ("'none', 'x'", "'xnone'"),
            ("'', '.'", "'.'"),
            ("'x/y/z', '/'", "'y/z/x'"),
            ("'hello', 'l'", "'lolhe'"),
            ("'3-4', '-'", "'4-3'"),
            ("'key: value', ': '", "'value: key'"),
            ("'end!', '!'", "'!end'"),
            ("'aaa', 'a'", "'aaa'"),
        ),
        message="The mark divides the text into two parts.",
    ),
    Worked(
        program=(
            "def f(n, base):\n"
            "    digits = []\n"
            "    while n > 0:\n"
            "        digits.append(n % base)\n"
            "        n //= base + 1\n"
            "    return digits"
        ),
        calls=(
            ("29, 3", "[2, 1, 1]"),
            ("7, 2", "[1, 0]"),
            ("0, 5", "[]"),
            ("100, 10", "[0, 9]"),
            ("64, 4", "[0, 0, 2]"),
            ("5, 9", "[5]"),
            ("13, 2", "[1, 0, 1]"),
            ("81, 3", "[0, 2, 2, 1]"),
            ("1, 2", "[1]"),
            ("50, 7", "[1, 6]"),
        ),
        message="Think of how a number is written in a base, and of a mistake in it.",
    ),
    Worked(
        program=(
            "def f(prices, most):\n"
            "    cheap = [name for name in prices if prices[name] <= most]\n"
            "    return sorted(cheap, key=len)"
        ),
        calls=(
            ("{'pear': 3, 'fig': 2, 'kiwi': 9}, 4", "['fig', 'pear']"),
            ("{'a': 1}, 0", "[]"),
            ("{}, 7", "[]"),
            ("{'tin': 5, 'a': 5}, 5", "['a', 'tin']"),
            ("{'milk': 2, 'oat': 1, 'rye': 8}, 2", "['oat', 'milk']"),
            ("{'x': 0, 'yy': -1}, 0", "['x', 'yy']"),
            ("{'ham': 6, 'egg': 4}, 6", "['ham', 'egg']"),
            ("{'soup': 7, 'tea': 3}, 9", "['tea', 'soup']"),
            ("{'cup': 1, 'jar': 2, 'pot': 3}, 2", "['cup', 'jar']"),
            ("{'nut': 4}, 4", "['nut']"),
        ),
        message="Values decide what stays, keys decide the order.",
    ),
    Worked(
        program=(
            "def f(text):\n"
            "    result = ''\n"
            "    for i, letter in enumerate(text):\n"
            "        result += letter * (i % 3)\n"
            "    return result"
        ),
        calls=(
            ("'abcde'", "'bcce'"),
            ("'x'", "''"),
            ("''", "''"),
            ("'moon'", "'ooo'"),
            ("'aa bb'", "'a  b'"),
            ("'123456'", "'233566'"),
            ("'no'", "'o'"),
            ("'tick'", "'icc'"),
            ("'zzz'", "'zzz'"),
            ("'Python'", "'yttonn'"),
        ),
        message="Where a letter stands says how often it is written.",
    ),
    Worked(
        program=(
            "def f(items, k):\n    moved = items[k:] + items[:k]\n    return [a for a, b in zip(items, moved) if a < b]"
        ),
        calls=(
            ("[4, 9, 2, 7], 1", "[4, 2]"),
            ("[1, 2, 3], 2", "[1]"),
            ("[], 3", "[]"),
            ("[5, 5], 1", "[]"),
            ("[8, 1, 6], 0", "[]"),
            ("['b', 'a', 'c'], 1", "['a']"),
            ("[3, 1, 2, 4], 2", "[1, 2]"),
            ("[0, -1], 1", "[-1]"),
            ("[2, 4, 8], 1", "[2, 4]"),
            ("[9, 7, 9], 2", "[7]"),
        ),
        message="Each item is compared with another one, k places away.",
    ),
    Worked(
        program=(
            "def f(low, high):\n"
            "    found = []\n"
            "    for x in range(low, high):\n"
            "        if x % 4 == low % 3:\n"
            "            found.append(x * x)\n"
            "    return found"
        ),
        calls=(
            ("1, 9", "[1, 25]"),
            ("3, 8", "[16]"),
            ("0, 5", "[0, 16]"),
            ("6, 6", "[]"),
            ("2, 7", "[4, 36]"),
            ("5, 12", "[36, 100]"),
            ("4, 4", "[]"),
            ("10, 14", "[169]"),
            ("7, 10", "[81]"),
            ("8, 13", "[100]"),
        ),
        message="The first argument is used twice, and only some numbers are kept.",
    ),
)
FAILING = (
    Worked(
        program=("def f(record, key):\n    value = record[key]\n    return value.upper()"),
        calls=(("{'name': 'Ada'}, 'age'", "KeyError"),),
    ),
    Worked(
        program=("def f(numbers):\n    first, second = numbers[:2]\n    return second % first"),
        calls=(("[0, 7, 2]", "ZeroDivisionError"),),
    ),
    Worked(
        program=("def f(text):\n    parts = text.split(',')\n    return [int(part) for part in parts]"),
        calls=(("'4, 8,15'", "NoError"),),
    ),
    Worked(
        program=("def f(items, n):\n    while n < 10:\n        n += items[n]\n    return n"),
        calls=(("[3, 1, 4, 2], 0", "IndexError"),),
    ),
    Worked(
        program=("def f(words):\n    longest = max(words, key=len)\n    return words.index(longest)"),
        calls=(("[]", "ValueError"),),
    ),
    Worked(
        program=("def f(a, b):\n    pair = [a, b]\n    pair.sort()\n    return pair[0]"),
        calls=(("3, 'x'", "TypeError"),),
    ),
    Worked(
        program=("def f(table, path):\n    for step in path:\n        table = table.get(step, {})\n    return table"),
        calls=(("{'a': {'b': 5}}, 'abc'", "AttributeError"),),
    ),
    Worked(
        program=("def f(text, n):\n    middle = text[n:n + 2]\n    return middle * (n - 5)"),
        calls=(("'river', 9", "NoError"),),
    ),
)
