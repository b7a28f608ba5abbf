"""Texts of others are shortened to be shown, and read as JSON objects or refused in a few words."""

import pytest

from azr.text import brief, clipped, first_line, parse_object, without_middle


def test_texts_are_shortened_where_they_are_long() -> None:
    assert clipped("abc", 3) == "abc" and clipped("abcd", 3) == "ab…"
    assert brief([1, "a"]) == "[1, 'a']" and len(brief("a" * 99)) == 60
    assert without_middle("abcdef", 3) == "abcdef"
    assert without_middle("abcdefg", 2, "; more") == "ab\n[… 3 characters; more …]\nfg"


def test_the_first_line_of_an_exception_is_never_empty() -> None:
    assert first_line(ValueError("\n one\ntwo")) == "one"
    assert first_line(OSError()) == "OSError"


@pytest.mark.parametrize(
    "text, said",
    [
        (b"[1]", "it is not a JSON object"),
        (b"{", "it is not JSON: Expecting property name enclosed in double quotes (column 2)"),
        (b'{\n"a"}', "it is not JSON: Expecting ':' delimiter (line 2, column 4)"),
        (b"\xff{}", "it is not UTF-8"),
        (b"[" * 100_000, "its JSON is nested too deep"),
    ],
)
def test_what_is_no_json_object_is_refused_in_a_few_words(text: bytes, said: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_object(text)
    assert str(caught.value) == said


def test_an_object_is_read_with_or_without_a_mark_of_its_encoding() -> None:
    assert parse_object('\ufeff{"é": 1}'.encode()) == parse_object('{"é": 1}'.encode()) == {"é": 1}
