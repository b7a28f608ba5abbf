"""Texts of others are shortened to be shown, and read as JSON objects or refused in a few words."""

import pytest

from azr.text import brief, clipped, first_line, parse_object, without_middle


def test_texts_are_shortened_and_the_first_line_of_an_exception_is_never_empty() -> None:
    assert clipped("abc", 3) == "abc" and clipped("abcd", 3) == "ab…"
    assert brief([1, "a"]) == "[1, 'a']" and len(brief("a" * 99)) == 60
    assert without_middle("abcdef", 3) == "abcdef"
    assert without_middle("abcdefg", 2, "; more") == "ab\n[… 3 characters; more …]\nfg"
    assert first_line(ValueError("\n one\ntwo")) == "one"
    assert first_line(OSError()) == "OSError"


def test_json_objects_are_read_with_or_without_a_mark_of_their_encoding_and_what_is_none_is_refused_in_a_few_words():
    assert parse_object('\ufeff{"é": 1}'.encode()) == parse_object('{"é": 1}'.encode()) == {"é": 1}
    for text, said in (
        (b"[1]", "it is not a JSON object"), (b"\xff{}", "it is not UTF-8"),
        (b"{", "it is not JSON: Expecting property name enclosed in double quotes (column 2)"),
        (b'{\n"a"}', "it is not JSON: Expecting ':' delimiter (line 2, column 4)"),
        (b"[" * 100_000, "its JSON is nested too deep"),
    ):  # fmt: skip
        with pytest.raises(ValueError) as caught:
            parse_object(text)
        assert str(caught.value) == said
