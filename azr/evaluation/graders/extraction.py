"""Extract answers from responses: the text after the thinking, the last box or the last number."""

from __future__ import annotations

import re

MAX_RESPONSE = 2**18
"""Of a longer response only the end is read, characters."""
MAX_FINAL = 2_000
"""Longest final answer of a mathematical question, characters: what is longer is no final answer."""

_THOUGHT = "</think>"
_ANSWER, _ANSWERED = "<answer>", "</answer>"
_BOX = re.compile(r"\\(?:boxed|fbox)\b\s*")
_STATED = re.compile(r"(?:final answer|answer)[ \t]*(?:is|:|=)[ \t]*:?[ \t]*([^\n]+)", re.IGNORECASE)
_INNER = re.compile(r"\$([^$]+)\$|\\\(((?:(?!\\\().)+?)\\\)|\\\[((?:(?!\\\[).)+?)\\\]")
"""Mathematics in a sentence; what is never closed is not read again from its every beginning."""
_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?(?:\s*/\s*\d+)?%?")


def reply(response: str) -> str:
    """Return the content of the last answer tag, or without one all text after the thinking."""
    text = response[-MAX_RESPONSE:].replace("\r\n", "\n")
    text = text.rpartition(_THOUGHT)[2]
    before, opened, answer = text.rpartition(_ANSWER)
    return answer.partition(_ANSWERED)[0] if opened else before + answer


def boxes(text: str) -> list[str]:
    """Return the contents of all boxes with balanced braces, in order; time is linear in the text."""
    starts = {found.end(): found.start() for found in _BOX.finditer(text)}
    if not starts:
        return []
    contents: dict[int, str] = {}
    stack: list[int] = []
    position = 0
    while position < len(text):
        character = text[position]
        if character == "\\":
            if position + 1 < len(text) and text[position + 1] in "{}\\":
                position += 2
                continue
        elif character == "{":
            stack.append(position)
        elif character == "}" and stack:
            start = stack.pop()
            if start in starts:
                contents[start] = text[start + 1 : position] if position - start <= MAX_FINAL + 1 else ""
        position += 1
    for end in starts:
        if text[end : end + 1] not in ("{", "") and (word := text[end : end + MAX_FINAL].split(maxsplit=1)):
            contents[end] = word[0].rstrip(".,;$")
    return [contents[start] for start in sorted(contents)]


def last_box(text: str) -> str | None:
    """Return the content of the last box."""
    found = boxes(text)
    return found[-1] if found else None


def final_answer(response: str) -> str | None:
    """Return the final answer to a mathematical question: the last box, else the text after "answer is", else the last
    number; None if there is none or it is too long."""
    text = reply(response)
    answer = last_box(text)
    if answer is None and (stated := _STATED.findall(text[-20_000:])):
        answer = stated[-1]
        sentence = re.split(r"(?<=[^\d])\.(?:\s|$)|\.$", answer.strip())[0]
        inner = _INNER.search(sentence)
        answer = next((part for part in inner.groups() if part), "") if inner else sentence.strip(" *`")
    if answer is None and (numbers := _NUMBER.findall(text[-20_000:])):
        answer = numbers[-1]
    if answer is None:
        return None
    answer = answer.strip()
    return answer if 0 < len(answer) <= MAX_FINAL else None
