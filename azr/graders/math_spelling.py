"""Spellings of mathematical answers that math-verify 0.9.0 does not read, and what it drops without being asked.

Whatever the library reads is left to it. Each pattern here works on at most one answer, thousands of characters.
"""

from __future__ import annotations

import functools
import math
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from decimal import Decimal
from pathlib import Path

_SPACE = r"(?:\\[,;:! ]|~|\s)"
_GROUPED = re.compile(
    r"(?<![\d.,])(?<!\{,\})\d{1,3}(?:(?:,\\!\s?|\\!\s?|\{,\}\s*|\\[,;: ]|~)\d{3})+(?!\d)(?!(?:,|\{,\})\d)"
)
_SUPERSCRIPT = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
THIN = dict.fromkeys(map(ord, "\u00a0\u2006\u2007\u2008\u2009\u200a\u202f"), "\\,")
_STATED = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_MANY = _STATED["many"]
_FRACTIONS = [sign for sign, instead in _STATED["signs"].items() if instead.startswith("\\frac")]
_SIGN_TABLE = str.maketrans({
    **{chr(0xFF01 + n): chr(0x21 + n) for n in range(94)},
    **dict.fromkeys("\u00a0\u2002\u2003\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", "\\,"),
    **_STATED["signs"],
})  # fmt: skip
_REWRITES = [(re.compile(each["pattern"]), each["instead"]) for each in _STATED["rewrites"]]
_HEDGES = [re.compile(each["pattern"]) for each in _STATED["hedges"]]
_BASE_UNITS = {spelling: name for name, spellings in _STATED["units"].items() for spelling in spellings.split()}
_DERIVED_UNITS = {each: made for spellings, made in _STATED["derived"].items() for each in spellings.split()}
_PREFIXED = {*_STATED["prefixes"]["symbols"].split(), *_STATED["prefixes"]["words"].split()}
_POWERS = dict(zip((stated := _STATED["prefixes"]["powers"].split())[::2], map(int, stated[1::2]), strict=True))
_LONGEST_UNIT = 20
_OF_UNIT = re.compile(r"\^\s*\{?\s*(-?\d{1,2})\s*\}?|/|[A-Za-zµμΩ°]+|[€£¥₹¢]|\\\$")
_NUMERAL = re.compile(r"\^\s*\{?\s*-?\d+(?:\s*\})?|(\d[\d.,]*)")
_OPPOSITES = [frozenset(words.split()) for words in _STATED["words"]["opposites"]]
_CONDITIONS = frozenset(_STATED["words"]["conditions"].split())
PERCENT = re.compile(r"\A\s*([-+]?\d[\d.]*)\s*\\%\s*\Z")
_STATEMENT = re.compile(r"\s*([-+]?\d+(?:\.\d+)?)\s*(?:=|\\equiv)\s*([-+]?\d+(?:\.\d+)?)\s*")
_WORDS = re.compile(r"\\(?:text|textrm|textbf|textit|mathrm|mbox|operatorname)\s*\{([^{}]*)\}")
_REPEATING = re.compile(
    r"(?<![\d.])(\d+)\.(\d*)(?:\\(?:overline|bar)\s*(?:\{\s*(\d+)\s*\}|(\d))|(\\dot\s*\{?\s*\d\s*\}?(?:\d*\s*\\dot\s*\{?\s*\d\s*\}?)?)|\((\d+)\))(?!\d)"
)
_NESTED = re.compile(r"^\s*\[\s*\[([^\[\]]*(?:\]\s*,\s*\[[^\[\]]*)*)\]\s*\]\s*$")
_RATIO = re.compile(r"^\s*[1-9]\d{0,9}(?:\s*:\s*[1-9]\d{0,9}){2,9}\s*$")
_WHOLE = re.compile(r"(?<![A-Za-z\\])([A-Za-z])\s{0,9}\\in\s{0,9}\\mathbb\s{0,9}\{?\s{0,9}Z\s{0,9}\}?\s*$")
_WHERE = re.compile(r"(?:\\q?quad|\\text\s{0,9}\{[\s,]{0,9}(?:where|for|with)?\s{0,9}\}|where)$")
_OR = re.compile(r"\\text\s*\{\s*,?\s*or\s*\}|(?<![A-Za-z\\])or(?![A-Za-z])|\\(?:lor|vee)(?![A-Za-z])")
_SIDE = r"((?:(?![<>=≤≥]|\\[lg](?:e|eq|eqslant|t)(?![A-Za-z])).)+?)"
_SIGN = r"\s*(\\[lg](?:e|eq|eqslant|t)(?![A-Za-z])|[<>≤≥]=?)\s*"
_BOUNDED = re.compile(rf"(?:{_SIDE}{_SIGN})?([A-Za-z])(?:{_SIGN}{_SIDE})?")
_CLOSED = re.compile(r"[=≤≥]|\\[lg]e")
_COUNTED = re.compile(r"\s*(-?\d[\d,]*(?:\.\d+)?)\s+([A-Za-z][A-Za-z .'-]*)")
_NOUN = re.compile(
    r"(?!(?:(?:sin|cos|tan|cot|sec|csc|log|exp|sqrt|arc|abc|xyz)[a-z]{0,4}|plus|minus|times|over|divided|choose|alpha|beta|gamma"
    r"|delta|theta|lambda|sigma|omega|inf[a-z]*|factorial)(?![a-z]))[a-z]{4}"
)
"""What is counted, and no product of names."""
_TRAILING = re.compile(
    rf"{_SPACE}{{0,6}}\\(?:text|mathrm|mbox|textrm|operatorname)\s*\{{([^{{}}]*)\}}(?:\s*\^\s*\{{?-?\d+\}}?)?\s*$"
)
_BARE_COMPOUND = re.compile(r"([-+]?[\d.,]*\d)\s*([A-Za-zµΩ]+(?:(?:\s*[/·]\s*|\s+)[A-Za-zµΩ]+|\s*\^\s*\{?-?\d\}?)*)")
_BEHIND = re.compile(
    r"[}\s]*(?:[\s~/·*.]|\\[,;: ]|\^\s*\{?\s*-?\d+(?:\s*\})?|\\(?:text|mathrm|mbox|textrm|operatorname)\s*\{[^{}]*\}"
    r"|\\(?:cdot|mu|Omega|pi)(?![A-Za-z])|[A-Za-zµμΩ°€£¥₹¢])*"
)
"""What may stand behind a number with a unit."""
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
_VECTOR = re.compile(
    r"^\s*(?:\\left\s*[(\[])?\s*\\begin\{([pb]?matrix)\}((?:(?!\\\\)[^&])*(?:\\\\(?:(?!\\\\)[^&])*)+|[^&\\]*(?:&[^&\\]*)+)\\end\{\1\}"
    r"\s*(?:\\right\s*[)\]])?\s*$"
)
_OPTION = re.compile(r"^\s*(?:\\(?:text|textbf|mathrm|mathbf|textrm)\s*\{\s*)?(?:\(([A-J])\)|([A-J])\s*[).:](?!\d))")
WORDED_OPTION = re.compile(rf"^\s*\\(?:text|textbf|mathrm|mathbf|textrm)\s*\{{\s*\(?[A-J][).]\)?\s*\}}{_SPACE}*(?=\S)")
"""The letter of an option before an answer, set as a word."""


def is_ambiguous(gold: str, answer: str) -> bool:
    """Whether the answer is not what the library reads: an inequality, a second number, a false equation."""
    stated = _STATEMENT.fullmatch(answer)
    if stated is not None and Decimal(stated[1]) != Decimal(stated[2]) and gold.strip() != answer.strip():
        return True
    return any(pattern.search(answer) and not pattern.search(gold) for pattern in _HEDGES)


def respelled(text: str) -> str:
    """An answer as the library reads it: its numbers without blanks, its signs as commands."""
    # Each of these signs is written by many letters.
    if sum(map(text.count, _FRACTIONS)) > 20:
        return text
    text = re.sub(r"[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+", lambda found: f"^{{{found[0].translate(_SUPERSCRIPT)}}}", text)
    text = " ".join(text.translate(_SIGN_TABLE).split())  # patterns take the cube of the number of blanks
    text = _GROUPED.sub(lambda found: re.sub(r"\D", "", found[0]), text)
    text = _ROWS.sub(_in_one_line, text)
    text = _REPEATING.sub(_fraction, text)
    if rows := _NESTED.fullmatch(text):
        lines = re.sub(r"\]\s*,\s*\[", r" \\\\ ", rows[1]).replace(",", " & ")
        text = f"\\begin{{bmatrix}}{lines}\\end{{bmatrix}}"
    text = _RATIO.sub(_reduced, text)
    for pattern, instead in _REWRITES:
        text = pattern.sub(instead, text)
    whole = _WORDS.fullmatch(text.strip())
    text = _union(_with_one_name(text))
    counted = _COUNTED.fullmatch(whole[1] if whole else text)
    if counted and (whole or _NOUN.match(counted[2])):
        text = f"{counted[1]} \\text{{ {counted[2]}}}"
    return text


def _fraction(found: re.Match[str]) -> str:
    """A repeating decimal as a fraction."""
    whole, fixed, again = found[1], found[2], next(part for part in found.groups()[2:] if part)
    again = re.sub(r"\D", "", again)
    over = 10 ** len(fixed) * (10 ** len(again) - 1)
    return f"\\frac{{{int(whole + fixed + again) - int(whole + fixed)}}}{{{over}}}"


def _reduced(found: re.Match[str]) -> str:
    """A ratio of three numbers or more in its lowest terms, as a tuple."""
    terms = [int(term) for term in found[0].split(":")]
    shared = math.gcd(*terms)
    return _tuple(str(term // shared) for term in terms)


def _with_one_name(text: str) -> str:
    """A family of solutions with k for its whole number, however it is called."""
    if not (found := _WHOLE.search(text)):
        return text
    body = _WHERE.sub("", text[: found.start()].rstrip(" ,;")).rstrip(" ,;")
    name = rf"(?<![A-Za-z\\]){found[1]}(?![A-Za-z])"
    return re.sub(name, "k", body) if body != found[1] and re.search(name, body) else text


def _union(text: str) -> str:
    """Inequalities for one name, one of which holds, as the union of their intervals."""
    found = [_BOUNDED.fullmatch(part.strip()) for part in _OR.split(text)]
    if len(found) < 2 or not all(found) or len({each[3] for each in found if each}) > 1:
        return text
    return " \\cup ".join(_interval(each) for each in found if each)


def _interval(found: re.Match[str]) -> str:
    """The interval of a name between two bounds or beyond one."""
    low, high = "(-\\infty", "\\infty)"
    for bound, sign, above in ((found[1], found[2], False), (found[5], found[4], True)):
        if bound and (sign[0] in "<≤" or sign[:2] == "\\l") is above:
            high = f"{bound}{']' if _CLOSED.search(sign) else ')'}"
        elif bound:
            low = f"{'[' if _CLOSED.search(sign) else '('}{bound}"
    return f"{low},{high}"


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
    if (bare := _BARE_WORD.search(text)) and len(bare[1]) > 1 and _unit(bare[1]):
        return text[: bare.start()]
    if (bare := _BARE_COMPOUND.fullmatch(text)) and "/" in bare[2]:
        return bare[1] if all(map(_unit, re.findall(r"[^\W\d_]+", bare[2]))) else text
    return text


def without_modulus(text: str) -> str:
    """An answer without the modulus that it holds under."""
    found = _MODULUS.search(text)
    if not found or not (rest := text[: found.start()].strip()):
        return text
    return rest.replace("\\equiv", "=")


def contradict(gold: str, answer: str) -> bool:
    """Whether one says what cannot be said of the other in what `without_words` and the library drop: units, a modulus,
    the conditions of an expression, or one of two opposites."""
    moduli = [found and found[1] for found in map(_MODULUS.search, (gold, answer))]
    for one, other in ((_measured(gold), _measured(answer)), moduli):
        if one and other and one != other:
            return True
    (said, is_number), (told, is_other) = _words(gold), _words(answer)
    if not is_number and not is_other and said & _CONDITIONS != told & _CONDITIONS:
        return True
    return any((one := said & kind) and (other := told & kind) and one != other for kind in _OPPOSITES)


def _words(text: str) -> tuple[set[str], bool]:
    """Return the words of an answer, of a number what it counts, and whether it is a number."""
    said = {word for found in _WORDS.finditer(text) for word in _plain(found[1])}
    if bare := _BARE_WORD.search(text):
        said.add(bare[1].lower())
    number = _WORDS.sub(" ", text).rpartition("=")[2]
    is_number = bool(re.search(r"\d", number)) and not re.search(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])", number)
    return said | {word.removesuffix("s") for word in said}, is_number


def same_word(gold: str, answer: str) -> bool:
    """Whether both are one text of words, however their letters are written; names of quantities are not words."""
    one, other = (_WORDS.sub(r"\1", text).strip().strip(".").strip() for text in (gold, answer))
    is_word = re.fullmatch(r"[A-Za-z]{3,}|[A-Za-z]{2,}(?: [A-Za-z]+)+|[Nn][Oo]", one) is not None
    return is_word and one.casefold() == other.casefold()


def clock_verdict(gold: str, answer: str) -> bool | None:
    """Whether two times of day are the same; None when the gold answer is none. A ratio ends in no leading zero and can
    be reduced no more; a zero after the colon is not a ratio at all."""
    wanted, given = _clock(gold), _clock(answer)
    if wanted is None:
        return None
    hour, minute, written, half = wanted
    is_time = written is not None and (written.startswith("0") or (len(written) == 2 and math.gcd(hour, minute) > 1))
    if half is None and not is_time:
        return None
    if given is None or minute != given[1] or (half is None and given[2:] == (None, None)):
        return False
    other, same = given[3], hour % 12 == given[0] % 12
    if half and other:
        return half == other and same
    one, two = (clock[0] if clock[3] is None else clock[0] % 12 + 12 * (clock[3] == "p") for clock in (wanted, given))
    return one == two or ((half is None) != (other is None) and same and max(hour, given[0]) <= 12)


def list_with_dots(text: str) -> tuple[str, tuple[int, ...]] | None:
    """An enumeration with dots, as the tuple of what it states, and where its dots stand; None when it is none."""
    if not _DOTS.search(text):
        return None
    items = _items(text)
    dots = tuple(n for n, item in enumerate(items) if _DOTS.fullmatch(item))
    stated = [item for n, item in enumerate(items) if n not in dots]
    if not dots or len(stated) < 2:
        return None
    return _tuple(stated), dots


def by_name(golds: Sequence[str], answer: str) -> tuple[list[str], str]:
    """Gold answers and answer with what they say of several names (x = 4, y = 3) as a tuple, so that no value can stand
    for another name. An answer's names do not count where the gold answer is a set."""
    *stated, given = map(_assigned, (*golds, answer))
    told = [said if said and (given is None or said.keys() == given.keys()) else None for said in stated]
    wanted = [_tuple(said.values()) if said else gold for gold, said in zip(golds, told, strict=True)]
    ordered = any(told) or any(map(_PAIR.match, golds))
    answer = _tuple(given.values()) if given and ordered else answer
    # A vector in a column or a row may be written as a tuple.
    as_tuple = functools.partial(_VECTOR.sub, lambda vector: _tuple(re.split(r"\\\\|&", vector[2])))
    if any(map(_PAIR.fullmatch, golds)):
        return wanted, as_tuple(answer)
    return [*map(as_tuple, wanted)] if _PAIR.fullmatch(answer) else wanted, answer


def _tuple(items: Iterable[str]) -> str:
    return f"\\left({', '.join(map(str.strip, items))}\\right)"


def _assigned(text: str) -> dict[str, str] | None:
    """What a text says of several names, in their order; None when it says anything else. Indices number the roots of
    one equation, and so are not names."""
    parts = [item.split("=") for item in _items(_AND.sub(",", re.sub(_SPACE, " ", respelled(text))))]
    names = {part[0].strip(): part[1].strip() for part in parts if len(part) == 2}
    bases = {found[1] for name, value in names.items() if value and (found := _VARIABLE.fullmatch(name))}
    return dict(sorted(names.items())) if len(parts) == len(bases) > 1 else None


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


def _plain(text: str) -> list[str]:
    return re.findall(r"[a-z]+", text.lower())


def _measured(text: str) -> frozenset[tuple[str, int]]:
    """Units of an answer of one number: base units, and ten for their prefixes, with exponents, so that km/h is
    10³ m h⁻¹. Empty for several."""
    text = text.rpartition("=")[2]
    ends = [found.end() for found in _NUMERAL.finditer(text) if found[1]]
    before, behind = (text[: ends[-1]], text[ends[-1] :]) if ends else ("", "".join(_WORDS.findall(text)))
    signs = " ".join(re.findall(r"[€£¥₹¢]|\\\$", before))
    before = _WORDS.sub(r" \1 ", before) if _WORDS.search(before) else ""
    if not _BEHIND.fullmatch(behind) or _units(before):
        return frozenset()
    behind = _WORDS.sub(r" \1 ", behind).replace("\\mu", "µ").replace("\\Omega", "Ω").replace("\\cdot", " ")
    return frozenset(_units(f"{signs} {behind}").items())


@functools.lru_cache(maxsize=1_024)
def _unit(word: str) -> dict[str, int]:
    """Base units of a unit with their exponents, and ten for its prefix; empty for another word."""
    if word in _BASE_UNITS or len(word) > _LONGEST_UNIT:
        return {_BASE_UNITS[word]: 1} if word in _BASE_UNITS else {}
    if word in _DERIVED_UNITS:
        return _units(_DERIVED_UNITS[word])
    for prefix, power in _POWERS.items():
        rest = word.removeprefix(prefix)
        if rest != word and rest in _PREFIXED and (len(rest) < 4) == (len(prefix) == 1):
            return {**_unit(rest), "10": power + _unit(rest).get("10", 0)}
    if len(word) > 1 and word != word.lower():
        return _unit(word.lower())
    return _unit(word[:-1]) if len(word) > 2 and word.endswith("s") else {}


def _units(text: str) -> dict[str, int]:
    """Base units of a text of units with their exponents: of "km/h" 10³, m and h⁻¹."""
    found, last, sign, power = Counter[str](), dict[str, int](), 1, 1
    for token in _OF_UNIT.finditer(text):
        word = token[0].lower()
        more = int(token[1]) if token[1] else {"squared": 2, "cubed": 3}.get(word)
        if more is not None:
            found.update({name: n * (more - 1) for name, n in last.items()})
        elif word in ("/", "per"):
            sign = -1
        elif word in ("square", "sq", "cubic", "cu"):
            power = 2 if word.startswith("s") else 3
        elif unit := _unit(token[0]):
            last, power = {name: n * sign * power for name, n in unit.items()}, 1
            found.update(last)
    return {name: n for name, n in found.items() if n}


def _clock(text: str) -> tuple[int, int, str | None, str | None] | None:
    """Hour, minute, how the minutes are written and the half of the day, of a time of day; None for another text."""
    plain = _WORDS.sub(r" \1 ", text)
    halves = _HALF.findall(plain)
    found = _CLOCK.match(re.sub(r"\\[,;: ]|~|\.\s*$", " ", _HALF.sub(" ", plain)))
    if not found or len(halves) > 1 or int(found[1]) > 24 or int(found[2] or 0) > 59:
        return None
    return int(found[1]), int(found[2] or 0), found[2], halves[0].lower() if halves else None
