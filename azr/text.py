"""Texts of others: shortened to be shown, read as JSON objects, and changed everywhere in plain data."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's message, or its class if it has none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def clipped(text: str, most: int = 60) -> str:
    """Return at most so many characters of a text."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def brief(value: object) -> str:
    """Return the beginning of a value's repr."""
    return clipped(repr(value))


def without_middle(text: str, half: int, hint: str = "") -> str:
    """Return the text with half that many characters of its beginning and of its end each, where it is longer."""
    left_out = len(text) - 2 * half
    return text if left_out <= 0 else f"{text[:half]}\n[… {left_out:,} characters{hint} …]\n{text[-half:]}"


def parse_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object that a text is. Raises ValueError with a few words if it is none."""
    try:
        tree = json.loads(text.decode("utf-8-sig"))
    except RecursionError as error:
        raise ValueError("its JSON is nested too deep") from error
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno}, column {error.colno}"
        raise ValueError(f"it is not JSON: {error.msg} ({place})") from error
    if not isinstance(tree, dict):
        raise ValueError("it is not a JSON object")
    return tree


def map_texts(tree: Any, change: Callable[[str], str]) -> Any:
    """Return plain data with every text in it changed, those of keys too; tuples become lists."""
    if isinstance(tree, str):
        return change(tree)
    if isinstance(tree, dict):
        return {map_texts(key, change): map_texts(value, change) for key, value in tree.items()}
    return [map_texts(each, change) for each in tree] if isinstance(tree, list | tuple) else tree
