import pickle
import random
from collections.abc import Sequence
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from azr.algorithms import packing
from azr.algorithms.packing import (
    _fill_bins,
    group_by_prompt,
    make_micro_batches,
    pack,
    packed_length,
    plan_micro_batches,
    split_mini_batches,
)
from azr.config import KEYS_PER_TOKEN
from azr.records import Completion
from tests.runs import factory

from .tiny import completions, groups


def completion(prompt: tuple[int, ...], response: tuple[int, ...]) -> Completion:
    return factory.completion(response, prompt)


def test_prompt_groups_hold_one_prompt_and_no_more_than_a_micro_batch() -> None:
    samples = [completion((7, 8), (1, 2)), completion((9,), (3,)), completion((7, 8), (4,)), completion((7, 8), (5, 6))]
    assert group_by_prompt(samples, 100) == [[0, 2, 3], [1]]
    assert group_by_prompt(samples, 5) == [[0, 2], [1], [3]]
    assert group_by_prompt(samples, 1) == [[0], [1], [2], [3]]
    assert packed_length(samples) == 9


def test_micro_batches_gather_no_more_keys_than_planned_and_keep_prompts_together_unless_there_are_few() -> None:
    prompt = tuple(range(900))
    samples = [completion(prompt, tuple(range(20 + index % 3))) for index in range(60)]
    (plan,) = make_micro_batches(samples, 1, 2048)
    assert sorted(index for micro in plan for index in micro) == list(range(60))
    for micro in plan:
        batch = pack([samples[index] for index in micro])
        assert len(batch.token_ids_T) <= 2048 and len(batch.unshared_index_E) <= KEYS_PER_TOKEN * 2048
    assert len(plan) > 1, "in tokens alone all of it fits"
    samples = groups(4, 3)
    plan = make_micro_batches(samples, 2, 60)
    for prompt in range(4):
        members = {3 * prompt, 3 * prompt + 1, 3 * prompt + 2}
        assert any(members <= set(micro) for rank in plan for micro in rank)
    alone = make_micro_batches(samples[:3], 2, 1000)
    assert sorted(i for rank in alone for micro in rank for i in micro) == [0, 1, 2]


def test_a_batch_is_the_same_in_another_process() -> None:
    for batch in (pack(completions(20)), pack([])):
        again = pickle.loads(pickle.dumps(batch))
        for field in fields(batch):
            before, after = getattr(batch, field.name), getattr(again, field.name)
            assert torch.equal(before, after) and before.dtype == after.dtype, field.name


@settings(deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(1, 5), st.integers(100, 300))
def test_every_plan_keeps_its_promises(lengths: list[int], ranks: int, budget: int) -> None:
    assume(len(lengths) >= ranks)
    plan = plan_micro_batches(lengths, ranks, budget)
    flat = [micro for rank in plan for micro in rank]
    assert sorted(i for micro in flat for i in micro) == list(range(len(lengths)))
    assert len(plan) == ranks and len({len(rank) for rank in plan}) == 1
    loads = [sum(lengths[i] for i in micro) for micro in flat]
    assert max(loads) <= budget
    assert all(flat) or len(flat) > len(lengths)
    if len(flat) <= len(lengths):  # the emptiest bin took the last sample of the fullest, so they are a sample apart
        assert max(loads) - min(loads) <= max(lengths)
    assert plan == plan_micro_batches(lengths, ranks, budget)


def test_like_samples_fill_their_budget_and_ranks_get_like_totals() -> None:
    plan = plan_micro_batches([50] * 64, 2, 400)
    assert [[len(micro) for micro in rank] for rank in plan] == [[8] * 4] * 2
    lengths = [1 + (37 * i) % 997 for i in range(500)]
    plan = plan_micro_batches(lengths, 4, 4096)
    totals = [sum(lengths[i] for micro in rank for i in micro) for rank in plan]
    assert max(totals) / min(totals) < 1.005


@pytest.mark.parametrize("count", [500, 4000])
@pytest.mark.parametrize("least, most, tries", [(51, 100, 1), (34, 48, 1), (20, 33, 12), (1, 100, 12)])
def test_as_few_micro_batches_as_one_more_at_a_time_finds_in_few_tries(
    least: int, most: int, tries: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More samples take no more tries: of large ones it is known how few fit a micro-batch."""
    dice = random.Random(0)
    lengths, tried = [dice.randint(least, most) for _ in range(count)], [0]

    def fill(order: list[int], lengths: list[int], bins: int, capacity: int) -> object:
        tried.append(bins)
        return _fill_bins(order, lengths, bins, capacity)

    monkeypatch.setattr(packing, "_fill_bins", fill)
    found = len(plan_micro_batches(lengths, 2, 100)[0])
    assert len(tried) - 1 <= tries
    order = sorted(range(count), key=lambda i: -lengths[i])
    assert _fill_bins(order, lengths, 2 * found, 100) and not _fill_bins(order, lengths, 2 * found - 2, 100)


@given(st.lists(st.sampled_from("abc"), min_size=1, max_size=50), st.integers(1, 6), st.integers(0, 3))
def test_mini_batches_are_alike_in_composition_and_drop_nothing(labels: list[str], count: int, seed: int) -> None:
    assume(count <= len(labels))
    split = split_mini_batches(labels, count, seed)
    assert sorted(i for part in split for i in part) == list(range(len(labels)))
    for label in [*"abc", *labels]:
        shares = [sum(labels[i] == label for i in part) for part in split]
        assert max(shares) - min(shares) <= 1
    assert max(map(len, split)) - min(map(len, split)) <= 1
    assert split == split_mini_batches(labels, count, seed)


def by_lists(completions: Sequence[Completion]) -> dict[str, list[int]]:
    """What `pack` makes, token by token."""
    stream, positions, unshared, logit_pos, targets = (list[int]() for _ in range(5))
    borders = [0]
    prompts: dict[tuple[int, ...], int] = {}
    for c in completions:
        prompt = tuple(c.prompt_ids.tolist())
        if prompt not in prompts:
            prompts[prompt] = len(stream)
            stream += prompt
            positions += range(len(c.prompt_ids))
        at = [prompts[prompt] + i for i in range(len(c.prompt_ids))]
        for i, token in enumerate(c.response_ids.tolist()):
            if not any(start <= i < end for start, end in c.observed):
                logit_pos.append(at[-1])
                targets.append(token)
            at.append(len(stream))
            stream.append(token)
            positions.append(len(c.prompt_ids) + i)
        unshared += at
        borders.append(len(unshared))
    if not completions:
        stream, positions, unshared, borders = [0], [0], [0], [0, 1]
    return {
        "token_ids_T": stream, "position_ids_T": positions, "unshared_index_E": unshared, "cu_seqlens": borders,
        "logit_pos_R": logit_pos, "target_R": targets,
    }  # fmt: skip


def test_arrays_are_what_a_walk_over_the_tokens_makes() -> None:
    dice = random.Random(5)
    prompts = [tuple(dice.randrange(99) for _ in range(dice.randint(1, 9))) for _ in range(6)]
    for size in (0, 1, 2, 7, 40):
        chosen = [completion(dice.choice(prompts), tuple(range(dice.randrange(5)))) for _ in range(size)]
        chosen = [replace(c, observed=((1, 3),)) if len(c.response_ids) > 3 else c for c in chosen]
        batch = pack(chosen)
        for name, expected in by_lists(chosen).items():
            tensor = getattr(batch, name)
            assert tensor.tolist() == expected, name
            assert tensor.dtype == (torch.int32 if name == "cu_seqlens" else torch.int64)
