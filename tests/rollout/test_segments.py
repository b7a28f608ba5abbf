"""Responses in pieces: tokens, versions and stop strings across the border of two segments."""

from __future__ import annotations

import numpy as np
import pytest

from azr.records import FinishReason
from azr.rollout.segments import PartialResponse, Segment, straddling_stop


def decode(ids: list[int]) -> str:
    return "".join(map(chr, ids))


def ids(text: str) -> list[int]:
    return list(map(ord, text))


def segment(text: str, reason: FinishReason | None, version: int) -> Segment:
    count = len(text)
    return Segment(np.array(ids(text), np.int32), np.full(count, -version, np.float32), reason, version)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("x</ans", "wer>yes", 4),
        ("x</answer", ">", 1),
        ("</answer>", "more", None),  # the engine would have stopped there
        ("x", "</answer>", None),  # begins in the second: the engine sees it
        ("x</ans", "was>", None),
        ("x<", "/answer>\n</answer>", 8),
        ("", "</answer>", None),
        ("a\n", "\nUser:", 1),
    ],
)
def test_a_stop_string_across_the_border_ends_the_response(before: str, after: str, expected: int | None) -> None:
    assert straddling_stop(ids(before), ids(after), ["</answer>", "\n\n"], decode) == expected
    assert straddling_stop(ids(before), ids(after), [], decode) is None


def test_every_token_keeps_the_version_that_sampled_it() -> None:
    response = PartialResponse()
    for text, reason, version in (
        ("ab", None, 3),
        ("", None, 4),
        ("c</ans", None, 5),
        ("wer>zz", FinishReason.STOP, 7),
    ):
        assert not response.finished
        response.add(segment(text, reason, version), ["</answer>"], decode)
    completion = response.completion([1, 2])
    assert decode(completion.response_ids.tolist()) == "abc</answer>"
    assert completion.weight_versions.tolist() == [3] * 2 + [5] * 6 + [7] * 4
    assert completion.logprobs.tolist() == [-3.0] * 2 + [-5.0] * 6 + [-7.0] * 4
    assert completion.finish_reason is FinishReason.STOP and completion.prompt_ids.tolist() == [1, 2]


def test_an_interrupted_segment_that_completes_a_stop_string_is_the_last() -> None:
    response = PartialResponse()
    response.add(segment("x</ans", None, 1), ["</answer>"], decode)
    response.add(segment("wer> and more", None, 2), ["</answer>"], decode)
    assert response.finished and decode(response.token_ids) == "x</answer>"
