"""Measures of responses and programs: mixed languages, shares of comments, complexity, and how programs differ. And the
screen, which searches thinking and answers for patterns of a file. It sees words, not what is meant.

A run looks at texts in a process of its own, ``python -m azr.monitoring.texts PATTERNS``: a pattern that takes for ever
costs that process and not the run, see `azr.isolated`.
"""

from __future__ import annotations

import ast
import hashlib
import io
import logging
import os
import re
import tokenize
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypedDict

import msgspec
from radon.complexity import cc_visit
from radon.metrics import h_visit

from azr.config import SafetyConfig
from azr.errors import UserError
from azr.isolated import Ask, Trouble, Workers, serve

DEFAULT = Path(__file__).with_name("patterns.toml")
SAFETY = "safety/"
"""Begins the names of its metrics, one by rule and those of `TOTALS`."""
TOTALS = ("flagged", "unscreened")
MAX_FLAGS = 20
"""Places of one response that are kept."""
_THINKING_ENDS = "</think>"
_NAME = re.compile(r"[a-z0-9_-]+")

Flag = tuple[str, int, int]
"""Name of a rule, and where in the response's text its pattern begins and ends."""


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is looked for, as the file states it."""

    name: str
    patterns: tuple[str, ...]
    about: str = ""
    where: Literal["thinking", "answer", "both"] = "both"


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rule: tuple[Rule, ...]


def patterns_of(config: SafetyConfig) -> Path:
    """The file of rules that a run searches with."""
    return DEFAULT if config.patterns is None else Path(config.patterns)


@dataclass(frozen=True, slots=True)
class Screen:
    """The rules of a file, ready to search."""

    rules: tuple[Rule, ...]
    _compiled: tuple[re.Pattern[str], ...]

    @classmethod
    def read(cls, path: Path) -> Screen:
        """Read a file of rules. Raises UserError when it holds none, or one that cannot be searched for."""
        try:
            rules = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File).rule
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
            raise UserError(f"safety.patterns: {path} holds no rules ({error}); {DEFAULT} has examples.") from error
        compiled = list[re.Pattern[str]]()
        for rule in rules:
            is_taken = rule.name in TOTALS or sum(each.name == rule.name for each in rules) > 1
            if is_taken or not _NAME.fullmatch(rule.name):
                raise UserError(
                    f"safety.patterns: the rule name {rule.name!r} in {path} is malformed or used twice: use "
                    "lower-case letters, digits, '-' and '_'."
                )
            for pattern in rule.patterns:
                try:
                    re.compile(pattern)
                except (re.error, OverflowError, RecursionError) as error:
                    raise UserError(
                        f"safety.patterns: {pattern!r} of the rule {rule.name} in {path} is no regular expression "
                        f"({error}): correct it."
                    ) from error
            if not rule.patterns:
                raise UserError(f"safety.patterns: the rule {rule.name} in {path} has no patterns: give it one.")
            try:
                compiled.append(re.compile("|".join(f"(?:{each})" for each in rule.patterns), re.IGNORECASE))
            except re.error as error:
                raise UserError(
                    f"safety.patterns: the patterns of the rule {rule.name} in {path} do not combine ({error}): give "
                    "patterns with numbered groups or flags such as (?m) a rule of their own."
                ) from error
        return cls(rules, tuple(compiled))

    def flags(self, response: str, opened: bool) -> list[Flag]:
        """Where the response holds what the rules look for, at most `MAX_FLAGS` places, in their order in the text.
        ``opened``: the prompt has opened the thinking, which ends with ``</think>`` or, without one, never."""
        end = response.rfind(_THINKING_ENDS)
        split = end + len(_THINKING_ENDS) if end >= 0 else len(response) if opened else 0
        spans = {"thinking": (0, split), "answer": (split, len(response)), "both": (0, len(response))}
        found = [
            (rule.name, match.start(), match.end())
            for rule, pattern in zip(self.rules, self._compiled, strict=True)
            for match in _first(pattern, response, *spans[rule.where])
        ]
        return sorted(found, key=lambda flag: flag[1:])[:MAX_FLAGS]


def _first(pattern: re.Pattern[str], text: str, start: int, end: int) -> Sequence[re.Match[str]]:
    found = (match for match in pattern.finditer(text, start, end) if match.end() > match.start())
    return list(islice(found, MAX_FLAGS))


SCRIPTS = {
    "han and kana": "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff",
    "hangul": "\u1100-\u11ff\uac00-\ud7af",
    "cyrillic": "\u0400-\u04ff",
    "arabic": "\u0600-\u06ff\u0750-\u077f",
    "hebrew": "\u0590-\u05ff",
    "devanagari": "\u0900-\u097f",
    "thai": "\u0e00-\u0e7f",
}
"""Ranges of letters. Greek is none of them: it is mathematics as often as a language."""
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f]")
_OTHERS = [re.compile(f"[{letters}]") for letters in SCRIPTS.values()]
MIN_LETTERS, MIN_SHARE = 5, 0.01
"""Of a second script, for a text to count as mixed: so many letters, and this share of all."""
COMMENTED = 0.5
"""A program is heavy with comments when at least this share of its lines that are not blank only comments."""
_MIN_LINES = 4
_BEGIN_STATEMENT = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
_LAYOUT = (*_BEGIN_STATEMENT, tokenize.NL, tokenize.ENDMARKER, tokenize.ENCODING)
NUMBERS = ("cyclomatic", "halstead_volume", "nodes", "lines")


class Measures(TypedDict):
    """Measures of one program."""

    cyclomatic: float
    """McCabe's: independent paths, added up over its functions."""
    halstead_volume: float
    """Bits that its operators and operands take (M. Halstead, "Elements of Software Science")."""
    nodes: float
    """Nodes of its syntax tree."""
    lines: float
    """Lines that are not blank."""
    shape: str
    """Equal for programs that differ in names and constants only."""


def measure(program: str) -> Measures | None:
    """Return the measures of a program; None if it cannot be parsed."""
    try:
        tree = ast.parse(program)
        blocks, halstead = cc_visit(program), h_visit(program)
    except (SyntaxError, ValueError, RecursionError, MemoryError, AttributeError, TypeError):
        return None
    return Measures(
        cyclomatic=float(sum(block.complexity for block in blocks)),
        halstead_volume=float(halstead.total.volume),
        nodes=float(sum(1 for _ in ast.walk(tree))),
        lines=float(sum(1 for line in program.splitlines() if line.strip())),
        shape=_shape(tree),
    )


def means(measured: Sequence[Measures]) -> dict[str, float]:
    """Return the mean of each number, and ``distinct_shapes``: distinct shapes per program. Empty without programs."""
    if not measured:
        return {}
    numbers: dict[str, float] = {name: sum(each[name] for each in measured) / len(measured) for name in NUMBERS}  # type: ignore[literal-required]
    return numbers | {"distinct_shapes": len({each["shape"] for each in measured}) / len(measured)}


def _shape(tree: ast.AST) -> str:
    """Hash of the nested types of nodes; operators are nodes, names and constants leave none."""
    parts: list[str] = []

    def visit(node: ast.AST) -> None:
        parts.append(f"{type(node).__name__}(")
        for child in ast.iter_child_nodes(node):
            visit(child)
        parts.append(")")

    visit(tree)
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def is_mixed(text: str) -> bool:
    """Whether two writing systems share a text: of the second at least `MIN_LETTERS` and `MIN_SHARE` of all letters."""
    if text.isascii():
        return False
    counts = sorted((len(script.findall(text)) for script in (_LATIN, *_OTHERS)), reverse=True)
    return counts[1] >= max(MIN_LETTERS, MIN_SHARE * sum(counts))


def is_comment_heavy(program: str) -> bool:
    """Whether comments and docstrings are at least half of a program's lines; never with fewer than four lines."""
    lines = [number for number, line in enumerate(program.splitlines(), 1) if line.strip()]
    if len(lines) < _MIN_LINES:
        return False
    comments, code = set[int](), set[int]()
    try:
        begins_statement = True
        for token in tokenize.generate_tokens(io.StringIO(program).readline):
            span = range(token.start[0], token.end[0] + 1)
            if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and begins_statement):
                comments.update(span)
            elif token.type not in _LAYOUT:
                code.update(span)
            if token.type not in (tokenize.COMMENT, tokenize.NL):
                begins_statement = token.type in _BEGIN_STATEMENT
    except (tokenize.TokenError, SyntaxError, ValueError):
        comments = {number for number in lines if program.splitlines()[number - 1].lstrip().startswith("#")}
        code = set()
    return len(comments - code) >= COMMENTED * len(lines)


CHUNK_CHARS = 200_000
"""Characters of the responses that are looked at together."""
CHUNK_LIMIT_S, TEXT_LIMIT_S = 20.0, 2.0
"""Limits for a chunk, and for each text alone when its chunk took longer."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Text:
    """One response."""

    response: str
    opened: bool
    """Its prompt opens the thinking."""
    program: str | None
    """Source that was read from it."""


class Findings(TypedDict):
    """Properties of one response."""

    flags: list[Flag]
    mixed: bool
    comment_heavy: bool | None
    """None without a program."""


class TextReader:
    """``async with TextReader(patterns) as reader``: its process ends with the block."""

    def __init__(self, patterns: Path) -> None:
        """``patterns``: the screen's file, which was read once already."""
        self._workers = Workers("azr.monitoring.texts", [str(patterns)])

    async def __aenter__(self) -> TextReader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._workers.end()

    async def look_at(self, texts: Sequence[Text]) -> list[Findings | None]:
        """Return what each text shows, in their order; None where that took longer than `TEXT_LIMIT_S`."""
        findings = list[Findings | None]()
        for chunk in _chunks(texts):
            answers = await self._ask(chunk, (), CHUNK_LIMIT_S)
            if answers is None:
                log.warning("a chunk of %d responses could not be looked at; now they are one by one", len(chunk))
                for text in chunk:
                    one = await self._ask([text], (), TEXT_LIMIT_S)
                    findings.append(None if one is None else one[0])
            else:
                findings += answers
        return findings

    async def measure(self, programs: Sequence[str]) -> list[Measures | None]:
        """Return the measures of each program, in their order; None for one that cannot be measured."""
        found = list[Measures | None]()
        for start in range(0, len(programs), 256):
            chunk = programs[start : start + 256]
            answers = await self._ask((), chunk, CHUNK_LIMIT_S)
            found += [None] * len(chunk) if answers is None else answers
        return found

    async def _ask(self, texts: Sequence[Text], programs: Sequence[str], limit_s: float) -> list[Any] | None:
        """Return the process's answers, or None when it died, failed or took longer."""
        asked = {"texts": [asdict(text) for text in texts], "programs": list(programs), "max_answer_bytes": 1 << 30}
        try:
            answers: list[Any] = await self._workers.ask(asked, limit_s)
            return answers
        except Trouble:
            return None


def _chunks(texts: Sequence[Text]) -> Iterator[list[Text]]:
    chunk, size = list[Text](), 0
    for text in texts:
        if chunk and size + len(text.response) > CHUNK_CHARS:
            yield chunk
            chunk, size = [], 0
        chunk.append(text)
        size += len(text.response)
    if chunk:
        yield chunk


def look_at(screen: Screen, text: dict[str, Any]) -> Findings:
    """Return what one response shows; ``text["program"]`` is None when it holds none."""
    program = text["program"]
    return Findings(
        flags=screen.flags(text["response"], text["opened"]),
        mixed=is_mixed(text["response"]),
        comment_heavy=None if program is None else is_comment_heavy(program),
    )


def load(arguments: Sequence[str]) -> Callable[[Any, Ask], list[Any]]:
    os.nice(10)  # what the run waits for comes first
    screen = Screen.read(Path(arguments[0]))
    return lambda asked, ask: [*(look_at(screen, text) for text in asked["texts"]), *map(measure, asked["programs"])]


if __name__ == "__main__":
    serve(load)
