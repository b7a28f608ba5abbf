# ruff: noqa: RUF001 (signs that look like others are what is read)
"""Spellings of mathematical answers that math-verify 0.9.0 does not read, and what it drops without being asked.

Whatever the library reads is left to it. Each pattern here works on at most one answer, thousands of characters.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

_SPACE = r"(?:\\[,;:! ]|~|\s)"
_GROUPED = re.compile(
    r"(?<![\d.,])(?<!\{,\})\d{1,3}(?:(?:,\\!\s?|\\!\s?|\{,\}\s*|\\[,;: ]|~)\d{3})+(?!\d)(?!(?:,|\{,\})\d)"
)
_SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_HALVES = {"½": "12", "⅓": "13", "⅔": "23", "¼": "14", "¾": "34", "⅕": "15", "⅖": "25", "⅗": "35", "⅘": "45",
           "⅙": "16", "⅚": "56", "⅛": "18", "⅜": "38", "⅝": "58", "⅞": "78"}  # fmt: skip
_SIGN_TABLE = str.maketrans({
    **{chr(0xFF01 + n): chr(0x21 + n) for n in range(94)},
    **dict.fromkeys("\u00a0\u2002\u2003\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", "\\,"),
    "∞": "\\infty ", "∅": "\\emptyset ", "÷": "/", "×": "\\times ", "·": "\\cdot ", "⋅": "\\cdot ", "∪": "\\cup ",
    "∩": "\\cap ", "…": "\\ldots ", "⋯": "\\cdots ", "−": "-", "–": "-",
    "’": "'", "′": "'", "″": "''",
})  # fmt: skip
THIN = dict.fromkeys(map(ord, "\u00a0\u2006\u2007\u2008\u2009\u200a\u202f"), "\\,")
_MANY = {"dozen": "12", "hundred": "10^{2}", "thousand": "10^{3}", "million": "10^{6}", "billion": "10^{9}",
         "trillion": "10^{12}"}  # fmt: skip
_STATED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_REWRITES = [(re.compile(each["pattern"]), each["instead"]) for each in _STATED["rewrites"]]
_HEDGES = [re.compile(each["pattern"]) for each in _STATED["hedges"]]
_UNIT_OF = {spelling: name for name, spellings in _STATED["units"].items() for spelling in spellings.split()}
_OPPOSITES = [frozenset(words.split()) for words in _STATED["words"]["opposites"]]
_CONDITIONS = frozenset(_STATED["words"]["conditions"].split())
_PERCENT = re.compile(r"\s*([-+]?\d[\d.]*)\s*\\%\s*")
_STATEMENT = re.compile(r"\s*([-+]?\d+(?:\.\d+)?)\s*(?:=|\\equiv)\s*([-+]?\d+(?:\.\d+)?)\s*")


def hedges(gold: str, answer: str) -> bool:
    """Whether the answer is not what the library reads: an inequality, a second number, a false equation."""
    stated = _STATEMENT.fullmatch(answer)
    if stated is not None and Decimal(stated[1]) != Decimal(stated[2]) and gold.strip() != answer.strip():
        return True
    return any(pattern.search(answer) and not pattern.search(gold) for pattern in _HEDGES)


def without_percent(answer: str) -> str:
    """Return a percentage as a fraction of a hundred, which the library reads as a number of its own too."""
    found = _PERCENT.fullmatch(answer)
    return answer if found is None else f"\\frac{{{found[1]}}}{{100}}"


_WORDS = re.compile(r"\\(?:text|textrm|textbf|textit|mathrm|mbox|operatorname)\s*\{([^{}]*)\}")
_TRAILING = re.compile(
    rf"{_SPACE}{{0,6}}\\(?:text|mathrm|mbox|textrm|operatorname)\s*\{{([^{{}}]*)\}}(?:\s*\^\s*\{{?-?\d+\}}?)?\s*$"
)
_BARE_UNIT = re.compile(rf"(?<=[\d}}]){_SPACE}{{1,4}}([A-Za-z]{{2,12}})(?:\s*\^\s*\{{?\d\}}?)?\s*$")
_BARE_WORD = re.compile(rf"(?<=[\d}}]){_SPACE}{{1,4}}([A-Za-z]{{1,12}})(?:\s*\^\s*\{{?\d\}}?)?\s*$")
_MODULUS = re.compile(r"(?:\(\s*)?\\?(?:\\text\s*\{\s*\(?\s*)?\\?\bp?b?mod\b\s*\}?\s*\{?\s*(\w{1,20})[\s)}]*$")
_HALF = re.compile(r"(?<![A-Za-z\\])([ap])\s*\.?\s*m\.?(?![A-Za-z])", re.IGNORECASE)
_CLOCK = re.compile(r"^\s*(\d{1,2})(?:\s*:\s*(\d{1,2}))?\s*$")
_DOTS = re.compile(r"\\[lc]?dots(?![A-Za-z])|\.{2,}")
_ROWS = re.compile(
    r"(?:\\left\s*)?(?:\\\{|\\lbrace)?\s*\\begin\{(d?cases|array|aligned|align\*?|gathered|split)\}"
    r"(?:\{[lcr| ]*\})?(.*?)\\end\{\1\}\s*(?:\\right\s*\.)?",
    re.DOTALL,
)
_AND = re.compile(r"\\text\s*\{\s*,?\s*and\s*\}|(?<![A-Za-z\\])and(?![A-Za-z])|\\q?quad(?![A-Za-z])")
_VARIABLE = re.compile(r"([A-Za-z]|\\[a-z]{2,7})(?:_\{?\w+\}?)?")
_PAIR = re.compile(r"\s*(?:\\left\s*)?\(.*,.*\)\s*", re.DOTALL)
_OPTION = re.compile(r"^\s*(?:\\(?:text|textbf|mathrm|mathbf|textrm)\s*\{\s*)?(?:\(([A-J])\)|([A-J])\s*[).:](?!\d))")
_WORDED_OPTION = re.compile(rf"^\s*\\(?:text|textbf|mathrm|mathbf|textrm)\s*\{{\s*\(?[A-J][).]\)?\s*\}}{_SPACE}*(?=\S)")


@dataclass(frozen=True, slots=True)
class Apart:
    """What the library does not see in an answer, and what must not contradict another's."""

    unit: str | None
    words: frozenset[str]
    """Of a number: what it counts. Of an expression: the conditions that it holds under."""
    is_number: bool
    modulus: str | None

    def contradicts(self, other: Apart) -> bool:
        """Whether one says in words what cannot be said of the other."""
        if self.unit and other.unit and self.unit != other.unit:
            return True
        if self.modulus and other.modulus and self.modulus != other.modulus:
            return True
        if not self.is_number and not other.is_number and self.words & _CONDITIONS != other.words & _CONDITIONS:
            return True
        return any((one := self.words & kind) and (two := other.words & kind) and one != two for kind in _OPPOSITES)


def respelled(text: str) -> str:
    """An answer as the library reads it: its numbers without blanks, its signs as commands."""
    # Each of these signs is written by many letters.
    if sum(map(text.count, _HALVES)) > 20:
        return text
    text = "".join(f"\\frac{{{_HALVES[sign][0]}}}{{{_HALVES[sign][1]}}}" if sign in _HALVES else sign for sign in text)
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda found: f"^{{{found[0].translate(_SUPERSCRIPT)}}}", text)
    text = text.translate(_SIGN_TABLE)
    text = _GROUPED.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    text = _ROWS.sub(_in_one_line, text)
    for pattern, instead in _REWRITES:
        text = pattern.sub(instead, text)
    whole = _WORDS.fullmatch(text.strip())
    if whole and (counted := re.match(r"\s*(-?\d[\d,]*(?:\.\d+)?)\s+([A-Za-z][A-Za-z .]*)$", whole[1])):
        text = f"{counted[1]} \\text{{ {counted[2]}}}"
    return text


def without_words(text: str) -> str:
    """An answer without what is said of it: units go, "million" is a power of ten, "percent" its sign."""
    while (said := _TRAILING.search(text)) and (shorter := text[: said.start()].strip()):
        words = _plain(said[1])
        for word in words:
            if word in _MANY and re.fullmatch(r"-?(?:\\\$)?[\d.,{}]*\d", shorter):
                shorter = f"{shorter} \\times {_MANY[word]}"
        text = f"{shorter}\\%" if words[:1] in (["percent"], ["percentage"]) else shorter
        if "\\times 1" in text or text.endswith("\\%"):
            return text
    if (found := re.fullmatch(r"(-?(?:\\\$)?[\d.,]*\d)\s+([a-z]+)(\s+dollars)?", text)) and found[2] in _MANY:
        return f"{found[1]} \\times {_MANY[found[2]]}"
    if (bare := _BARE_UNIT.search(text)) and _unit(bare[1].lower()):
        return text[: bare.start()]
    return text


def without_modulus(text: str) -> str:
    """An answer without the modulus that it holds under."""
    found = _MODULUS.search(text)
    if not found or not (rest := text[: found.start()].strip()):
        return text
    return rest.replace("\\equiv", "=")


def apart(text: str) -> Apart:
    """What ``without_words`` and the library drop of an answer."""
    said = [word for found in _WORDS.finditer(text) for word in _plain(found[1])]
    if bare := _BARE_WORD.search(text):
        said.append(bare[1].lower())
    modulus = _MODULUS.search(text)
    number = _WORDS.sub(" ", text).rpartition("=")[2]
    is_number = bool(re.search(r"\d", number)) and not re.search(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])", number)
    units = [unit for word in said if (unit := _unit(word))]
    words = frozenset(said) | {word.removesuffix("s") for word in said}
    unit = units[0] if len(set(units)) == 1 and "per" not in said else None
    return Apart(unit, words, is_number, modulus[1] if modulus else None)


def same_word(gold: str, answer: str) -> bool:
    """Whether both are one text of words, however their letters are written; names of quantities are no words."""
    one, other = (_WORDS.sub(r"\1", text).strip().strip(".").strip() for text in (gold, answer))
    is_word = re.fullmatch(r"[A-Za-z]{3,}|[A-Za-z]{2,}(?: [A-Za-z]+)+|[Nn][Oo]", one) is not None
    return is_word and one.casefold() == other.casefold()


def clock_verdict(gold: str, answer: str) -> bool | None:
    """Whether two times of day are the same; None when the gold answer is none. A ratio ends in no leading zero and can
    be reduced no more; a zero after the colon is no ratio at all."""
    wanted, half = _clock(gold)
    if wanted is None:
        return None
    hour, minute, written = wanted
    if half is None and (
        written is None or not (written.startswith("0") or (len(written) == 2 and math.gcd(hour, minute) > 1))
    ):
        return None
    given, other = _clock(answer)
    if given is None or minute != given[1] or (half, other, given[2]) == (None, None, None):
        return False
    if half and other:
        return half == other and hour % 12 == given[0] % 12
    one, two = _hour(hour, half), _hour(given[0], other)
    return one == two or (
        (half is None) != (other is None) and max(hour, given[0]) <= 12 and hour % 12 == given[0] % 12
    )


def list_with_dots(text: str) -> tuple[str, tuple[int, ...]] | None:
    """An enumeration with dots, as the tuple of what it states, and where its dots stand; None when it is none."""
    if not _DOTS.search(text):
        return None
    items = _items(text)
    dots = tuple(n for n, item in enumerate(items) if _DOTS.fullmatch(item))
    stated = [item for n, item in enumerate(items) if n not in dots]
    if not dots or len(stated) < 2:
        return None
    return f"\\left({', '.join(stated)}\\right)", dots


def by_name(golds: Sequence[str], answer: str) -> tuple[list[str], str]:
    """Gold answers and answer with what they say of several names (x = 4, y = 3) as a tuple, so that no value can stand
    for another name. An answer's names do not count where the gold answer is a set."""
    *stated, given = map(_assigned, (*golds, answer))
    told = [said if said and (given is None or said.keys() == given.keys()) else None for said in stated]
    wanted = [_values(said) if said else gold for gold, said in zip(golds, told, strict=True)]
    ordered = any(told) or any(map(_PAIR.match, golds))
    return wanted, _values(given) if given and ordered else answer


def _assigned(text: str) -> dict[str, str] | None:
    """What a text says of several names, in their order; None when it says anything else. Indices number the roots of
    one equation, and so are no names."""
    parts = [item.split("=") for item in _items(_AND.sub(",", re.sub(_SPACE, " ", respelled(text))))]
    names = {part[0].strip(): part[1].strip() for part in parts if len(part) == 2}
    bases = {found[1] for name, value in names.items() if value and (found := _VARIABLE.fullmatch(name))}
    return dict(sorted(names.items())) if len(parts) == len(bases) > 1 else None


def _values(said: Mapping[str, str]) -> str:
    return f"\\left({', '.join(said.values())}\\right)"


def _items(text: str) -> list[str]:
    """Items of an enumeration, in brackets or not."""
    inner = re.sub(r"\\(?:left|right)\b\s*", "", text).strip()
    for opened, closed in (("\\{", "\\}"), ("(", ")"), ("[", "]")):
        if inner.startswith(opened) and inner.endswith(closed):
            inner = inner[len(opened) : -len(closed)].strip()
    items, depth, begun = [], 0, 0
    for position, character in enumerate(inner):
        depth += character in "([{"
        depth -= character in ")]}"
        if character in ",;" and depth == 0:
            items.append(inner[begun:position])
            begun = position + 1
    items.append(inner[begun:])
    return [item.strip() for item in items if item.strip()]


def _in_one_line(found: re.Match[str]) -> str:
    """A system of equations as an enumeration; cases with conditions stay as they are."""
    text = ""
    for row in re.split(r"\\\\(?:\s*\[[^\]]*\])?", found[2]):
        row = re.sub(r"\s*&?\s*=\s*&?\s*", " = ", row).strip().rstrip(",;.")
        if "&" in row or (row and row.count("=") != 1):
            return found[0]
        text += row if not row or row.startswith("=") or not text else f", {row}"
    return text


def letter(gold: str) -> str | None:
    """The letter that a gold answer is, in parentheses or not."""
    text = _WORDS.sub(r"\1", gold).strip().strip("().").strip()
    return text if re.fullmatch("[A-J]", text) else None


def names_option(gold: str, answer: str) -> bool:
    """Whether an answer is the letter of the gold answer, with the option's text or not."""
    found = _OPTION.match(answer)
    return found is not None and letter(gold) == (found[1] or found[2])


def without_option(answer: str) -> str:
    """An answer without the letter of an option before it, if that is set as a word."""
    return _WORDED_OPTION.sub("", answer)


def _plain(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def _unit(word: str) -> str | None:
    return _UNIT_OF.get(word) or _UNIT_OF.get(word.removesuffix("s")) if len(word) > 1 or word in _UNIT_OF else None


def _clock(text: str) -> tuple[tuple[int, int, str | None] | None, str | None]:
    """Hour, minute and how the minutes are written; and the half of the day."""
    plain = _WORDS.sub(r" \1 ", text)
    halves = _HALF.findall(plain)
    found = _CLOCK.match(re.sub(r"\\[,;: ]|~|\.\s*$", " ", _HALF.sub(" ", plain)))
    half = halves[0].lower() if len(halves) == 1 else None
    if not found or len(halves) > 1:
        return None, None
    hour, minute = int(found[1]), int(found[2] or 0)
    return ((hour, minute, found[2]), half) if hour <= 24 and minute < 60 else (None, None)


def _hour(hour: int, half: str | None) -> int:
    return hour if half is None else hour % 12 + (12 if half == "p" else 0)
