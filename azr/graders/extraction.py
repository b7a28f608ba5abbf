"""Extract answers from responses: the text after the thinking, the last box or the last number."""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_RESPONSE = 2**18
"""Of a longer response only the end is read, characters."""
MAX_FINAL = 2_000
"""Longest final answer of a mathematical question, characters: what is longer is not a final answer."""

_THOUGHT = "</think>"
_BETWEEN = re.compile(
    r"[\s$.]{0,20}(?:\\text\s?\{\s?)?(?:,|;|and\b|or\b|,\s*and\b|,\s*or\b)[\s$}]{0,20}(?:[A-Za-z]\w{0,3}\s*=\s*)?[\s$]{0,20}"
)
"""What stands between boxes that make one answer together."""
_BOLD_NUMBER = re.compile(r"(?<!^)\*\*\s{0,3}([-+]?\d[\d,.]{0,40}(?<=\d))\s{0,3}\*\*")
_ANSWER, _ANSWERED = "<answer>", "</answer>"
_BOX = re.compile(r"\\(?:boxed|fbox)\b\s*")
_BRACE = re.compile(r"\\[{}\\]|[{}]")
"""A brace, or what only looks like one after a backslash."""
_STATED = re.compile(r"answer[ \t*_]{0,9}(?:is(?![A-Za-z])|:|=)[ \t*_]{0,9}:?[\s*_]{0,20}", re.IGNORECASE)
_MARKED = re.compile(r"^####[ \t]*(\S[^\n]*)\s*\Z", re.MULTILINE)
"""The last line of a solution, as GSM8K has it."""
_DISPLAY = re.compile(r"\$\$([^$]+)\$\$|\\\[((?:(?!\\\[).)+?)\\\]", re.DOTALL)
_INNER = re.compile(r"(?<!\\)\$([^$\s][^$]*)\$(?!\d)|\\\(((?:(?!\\\().)+?)\\\)|\\\[((?:(?!\\\[).)+?)\\\]")
"""Mathematics in a sentence, not what stands between two amounts of money; what is never closed is not read again from
its every beginning."""
_SENTENCE_END = re.compile(r"(?<!\d)\.(?:\s|$)|\.(?:\s(?!\s*\d)|$)")
_ITEM = re.compile(r"(?:[-+*]|\d{1,2}[.)])\s")
_REASON = re.compile(
    r",?\s+(?:since|because|as|so|which|not|per|but|making|meaning)\b"
    r"|\s+\((?=[^()]{0,99}(?<![A-Za-z\\])(?!sin|cos|tan|cot|sec|csc|log|exp|sqrt|mod|or |and |not )[a-z]{3})"
)
"""What follows an answer: a clause, or words in parentheses."""
UNSEEN = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u200e\u200f\u2060\ufeff\u00ad"))
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?:\s*/\s*\d+)?%?")


def reply(response: str) -> str:
    """Return the content of the last answer tag, or without one all text after the thinking."""
    text = response[-MAX_RESPONSE:].replace("\r\n", "\n")
    if text.count(_THOUGHT) > 1 and (ended := text.rstrip()).endswith(_THOUGHT):
        # Written once more after the answer.
        text = ended.removesuffix(_THOUGHT)
    text = text.rpartition(_THOUGHT)[2]
    before, opened, answer = text.rpartition(_ANSWER)
    return answer.partition(_ANSWERED)[0] if opened else before + answer


def placed_boxes(text: str) -> list[tuple[int, int, str]]:
    """Beginning, end and content of each box with balanced braces, in the order of their beginnings; time is linear in
    the text."""
    starts = {found.end(): found.start() for found in _BOX.finditer(text)}
    if not starts:
        return []
    contents: dict[int, str] = {}
    ends: dict[int, int] = {}
    stack: list[int] = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            stack.append(brace.start())
        elif brace[0] == "}" and stack and (start := stack.pop()) in starts:
            contents[start] = text[start + 1 : brace.start()] if brace.start() - start <= MAX_FINAL + 1 else ""
            ends[start] = brace.end()
    for end in starts:
        if text[end : end + 1] not in ("{", "") and (word := text[end : end + MAX_FINAL].split(maxsplit=1)):
            contents[end] = word[0].rstrip(".,;$")
            ends[end] = end + len(contents[end])
    return [(starts[start], ends[start], contents[start]) for start in sorted(contents)]


def last_box(text: str) -> str | None:
    """Return the content of the last box."""
    found = placed_boxes(text)
    return found[-1][2] if found else None


def joined_box(text: str, found: Sequence[tuple[int, int, str]]) -> str | None:
    """Contents of the last boxes that one enumeration holds, one time each. ``found``: the text's `placed_boxes`."""
    if not found:
        return None
    start, _, content = found[-1]
    contents = [content]
    for begun, ended, content in reversed(found[:-1]):
        if ended > start or not _BETWEEN.fullmatch(text[ended:start][:100]) or start - ended > 100:
            break
        contents.insert(0, content)
        start = begun
        if len(contents) >= 50:
            break
    return ", ".join(dict.fromkeys(content.strip() for content in contents))


def stated_answer(text: str) -> str | None:
    """Return what a text says is its answer: the last box, else what follows "answer is", else ``#### ``."""
    if (boxed := joined_box(text, placed_boxes(text))) is not None:
        return boxed
    text = text[-20_000:]
    said = next((found for found in reversed([*_STATED.finditer(text)]) if text[found.end() :].strip(" *`")), None)
    if said is None:
        return marked[1] if (marked := _MARKED.search(text)) else None
    tail = text[said.end() :].strip(" *`")
    if shown := _DISPLAY.match(tail):
        return shown[1] or shown[2]
    line = tail.partition("\n")[0]
    sentence = line if "\n" in said[0] and _ITEM.match(line) else _SENTENCE_END.split(line)[0]
    inner, reason = _INNER.search(sentence), _REASON.search(sentence)
    if inner and not sentence[0].isdigit() and not (reason and reason.start() < inner.start()):
        return next((part for part in inner.groups() if part), "")
    return sentence[: reason.start()].strip(" *`") if reason else sentence.strip(" *`")


def gold_answer(text: str) -> str:
    """Return a gold answer as answers are read: what a solution or a sentence states, else the whole text."""
    text = reply(text).translate(UNSEEN)
    return stated_answer(text) or text


def final_answer(response: str) -> str | None:
    """Return the final answer to a mathematical question: `stated_answer`, else the last number, or the last in bold of
    the line that it stands on; None if there is none or it is too long."""
    text = reply(response).translate(UNSEEN)
    answer = stated_answer(text)
    if answer is None:
        line = next((line for line in reversed(text[-20_000:].splitlines()) if _NUMBER.search(line)), "")
        answer = next(iter(_BOLD_NUMBER.findall(line)[-1:] or _NUMBER.findall(line)[-1:]), "")
    return answer if 0 < len(answer := answer.strip()) <= MAX_FINAL else None
