import pickle
from dataclasses import replace

import numpy as np
import pytest

from azr.records import Completion, version_runs


def completion(versions: list[int] | int, prompt: object = (5, 6, 7)) -> Completion:
    count = len(versions) if isinstance(versions, list) else 3
    return Completion(
        prompt_ids=prompt, response_ids=range(count), logprobs=[-0.1 * i for i in range(count)], finish_reason="length",
        weight_versions=versions,
    )  # fmt: skip


@pytest.mark.parametrize("versions", [4, [4, 4, 4], [0, 0, 1, 1, 1, 7], []])
def test_a_completion_is_the_same_in_another_process(versions: list[int] | int) -> None:
    before = completion(versions)
    after = pickle.loads(pickle.dumps(before))
    assert after == before and hash(after) == hash(before) and after.finish_reason == "length"
    for name, dtype in (("prompt_ids", "i4"), ("response_ids", "i4"), ("logprobs", "f4"), ("weight_versions", "i4")):
        for array in (getattr(before, name), getattr(after, name)):
            assert array.dtype == np.dtype(dtype) and not array.flags.writeable
        assert getattr(after, name).tolist() == getattr(before, name).tolist()


def test_completions_of_one_prompt_share_it_on_their_way() -> None:
    prompt = np.arange(1000, dtype=np.int32)
    prompt.flags.writeable = False
    answers = [completion(0, prompt) for _ in range(8)]
    sent = pickle.dumps(answers)
    assert len(sent) < 2 * prompt.nbytes
    again = pickle.loads(sent)
    assert again == answers and all(each.prompt_ids is again[0].prompt_ids for each in again)


def test_the_text_comes_with_a_response_and_what_is_given_stays_as_it_is() -> None:
    before = replace(completion(0), text="a\ud800")
    assert pickle.loads(pickle.dumps(before)).text == "a\ud800" and before == completion(0)
    prompt = np.arange(3, dtype=np.int32)
    held = completion(0, prompt)
    assert prompt.flags.writeable and not held.prompt_ids.flags.writeable


def test_versions_are_runs() -> None:
    assert version_runs(np.array([2, 2, 3, 5, 5, 5], np.int32)) == [(2, 2), (3, 1), (5, 3)]
    assert version_runs(np.array([], np.int32)) == []
