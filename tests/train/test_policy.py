"""The policy on one and on two ranks against a plain Hugging Face model and torch's own AdamW."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from azr.algorithms.losses import policy_loss
from azr.cluster.supervisor import SupervisedActor
from azr.cluster.weight_sync import WeightSync
from azr.config import Config
from azr.records import Completion
from azr.train import model_worker, policy
from azr.train.learner import score
from azr.train.policy import PolicyWorker
from azr.train.worker_group import WorkerGroup
from azr.train.zero3 import ADAM_BETA1, parameter_parts
from tests.cluster.receiving_engine import ipc_outbox, start_receiver
from tests.train.conftest import (
    LR,
    STEP_S,
    StartGroup,
    make_config,
    on_ranks,
    one_and_two,
    one_step,
    update_policy,
    with_micro_batches,
)


class SmallBucketWorker(PolicyWorker):
    """Sends the tiny model in several buckets. Rank 0 chooses the attention, which takes a process, for all."""

    def build(self) -> None:
        if self.rank:
            del model_worker.choose_attention
        policy.bucket_bytes = lambda transfer, weights, largest: max(1 << 18, largest)
        super().build()


@pytest.fixture(scope="module")
def config(tiny_model_path: Path) -> Config:
    return make_config(tiny_model_path)


@pytest.fixture(scope="module")
def groups(start_group: StartGroup, config: Config) -> dict[int, WorkerGroup]:
    return one_and_two(start_group, SmallBucketWorker, config, gradient_checkpointing="selective")


@pytest.fixture(scope="module")
def two(groups: dict[int, WorkerGroup]) -> WorkerGroup:
    return groups[2]


@pytest.fixture(scope="module")
def plain(tiny_model_path: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(tiny_model_path, dtype=torch.float32).eval()


async def fresh(group: WorkerGroup, folder: Path) -> WorkerGroup:
    """The group as it was when it was first given to this function with this folder."""
    method = "load_checkpoint" if folder.exists() else "save_checkpoint"
    folder.mkdir(exist_ok=True)
    await group.call(method, str(folder), timeout_s=STEP_S)
    return group


async def weights_of(group: WorkerGroup, engine: SupervisedActor, config: Config) -> dict[str, Tensor]:
    await WeightSync(group, [engine], STEP_S).push(1)
    return await engine.actor.received.remote()


def plain_scores(model: PreTrainedModel, completions: list[Completion], temperature: float) -> tuple[Tensor, Tensor]:
    """Logprobs and entropies of all tokens that a model wrote, one unpadded forward per sample."""
    logprobs, entropies = [], []
    for c in completions:
        logits = model(torch.tensor([c.token_ids])).logits[0, len(c.prompt_ids) - 1 : -1]
        logp = torch.log_softmax(logits / temperature, dim=-1)
        logprobs.append(logp[range(len(c.response_ids)), list(c.response_ids)][c.is_sampled])
        entropies.append(-(logp.exp() * logp).sum(-1)[c.is_sampled])
    return torch.cat(logprobs), torch.cat(entropies)


def plain_steps(
    model: PreTrainedModel, completions: list[Completion], columns: dict[str, Tensor], config: Config, steps: int
) -> tuple[dict[str, Tensor], list[float]]:
    """Weights and gradient norms of that many updates, by torch alone."""
    model, train = copy.deepcopy(model), config.train
    betas = (ADAM_BETA1, train.adam_beta2)
    optimizer = torch.optim.AdamW(model.parameters(), betas=betas, weight_decay=train.weight_decay)
    norms = []
    for step in range(steps):
        logprobs, entropy = plain_scores(model, completions, config.rollout.temperature)
        named = {f"{name}_R": column for name, column in columns.items()}
        loss, _ = policy_loss(logprobs, entropy, **named, normalizer=len(logprobs), config=config.algorithm)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), train.grad_clip).item())
        optimizer.param_groups[0]["lr"] = train.policy_lr * min(1.0, (step + 1) / train.warmup_steps)
        optimizer.step()
        optimizer.zero_grad()
    return {name: p.detach() for name, p in model.named_parameters()}, norms


async def test_each_of_two_ranks_holds_half_of_the_parameters(two: WorkerGroup) -> None:
    def held_share(worker: PolicyWorker) -> float:
        """Of all elements those in this rank's memory between steps, padding included."""
        parameters = list(worker.engine.module.parameters())
        return sum(p.ds_tensor.numel() + p.numel() for p in parameters) / sum(p.ds_numel for p in parameters)

    assert await on_ranks(two, held_share) == pytest.approx([0.5] * 2, rel=0.01)


@pytest.mark.parametrize(("ranks", "tokens"), [(1, 1000), (1, 40), (2, 1000), (2, 40)])
async def test_updates_equal_plain_torch(
    groups, tmp_path_factory, plain, completions, columns, config, engine, ranks, tokens
) -> None:
    """Sum over ranks and micro-batches, clipping, decay and warm-up are those of one process with one batch."""
    group = await fresh(groups[ranks], tmp_path_factory.getbasetemp() / f"fresh_{ranks}")
    expected, norms = plain_steps(plain, completions, columns, config, steps=3)
    config = with_micro_batches(config, tokens)
    batch = one_step(completions, group, config)
    steps = [await update_policy(group, batch, columns, STEP_S) for _ in norms]
    assert [step["lr"] for step in steps] == pytest.approx([5e-4, 1e-3, 1e-3])
    assert [step["grad_norm"] for step in steps] == pytest.approx(norms, rel=1e-5)
    with torch.no_grad():
        _, entropy = plain_scores(plain, completions, config.rollout.temperature)
    assert steps[0]["entropy_kept"] == pytest.approx(entropy.mean().item(), rel=1e-5)
    assert (steps[0]["micro_batches"] == 1) == (tokens == 1000)
    got = await weights_of(group, engine, config)
    for parameter, value in expected.items():
        # The key biases' true gradient is zero, and Adam blows its rounding noise up: hence a hundredth of a step.
        torch.testing.assert_close(got[parameter], value, atol=LR / 100, rtol=0)


async def test_dummy_batches_change_nothing(groups, completions, columns, config) -> None:
    """Three samples that each fill a micro-batch, on two ranks: one of the four micro-batches holds none."""
    lengths = [c.num_tokens for c in completions]
    longest = sorted(range(len(lengths)), key=lengths.__getitem__)[-3:]
    chosen = [completions[i] for i in longest]
    responses = [c.num_sampled for c in completions]
    picked = {n: torch.cat([column.split(responses)[i] for i in longest]) for n, column in columns.items()}
    config = with_micro_batches(config, max(lengths))
    batches = {ranks: one_step(chosen, groups[ranks], config) for ranks in (1, 2)}
    scores = [await score(groups[ranks], "logprobs", batch, STEP_S) for ranks, batch in batches.items()]
    torch.testing.assert_close(scores[0], scores[1], atol=1e-4, rtol=0)
    one, two = [await update_policy(groups[ranks], batch, picked, STEP_S) for ranks, batch in batches.items()]
    assert two.pop("micro_batches") == 2 and one.pop("micro_batches") == 3
    real = sum(map(len, (c.token_ids for c in chosen)))
    assert one.pop("packing") == 1 and two.pop("packing") == pytest.approx(real / (real + 1))
    assert two == pytest.approx(one, rel=1e-3)


async def test_push_reaches_the_engine_in_buckets_each_tensor_once(two: WorkerGroup, engine: SupervisedActor) -> None:
    report = await WeightSync(two, [engine], STEP_S).push(7)
    received = await engine.actor.received.remote()
    assert (report.version, report.transfer) == (7, "host")
    assert report.nbytes == sum(tensor.nbytes for tensor in received.values())
    assert 0 < sum(report.parts.values()) < report.seconds
    assert await engine.actor.bucket_count.remote() > 1
    assert "lm_head.weight" not in received, "the tied head is the embedding"


@pytest.mark.long
async def test_push_carries_the_bytes_to_engines_of_other_nodes(two: WorkerGroup) -> None:
    engines = [await start_receiver(index) for index in range(3)]
    for far in engines[1:]:
        await far.actor.misbehave.remote("far")
    await WeightSync(two, engines, STEP_S).push(8)
    near, *others = [await engine.actor.received.remote() for engine in engines]
    for other in others:
        assert near.keys() == other.keys() and all(torch.equal(near[name], other[name]) for name in near)
    buckets = await engines[0].actor.bucket_count.remote()
    counted = [await engine.actor.counted.remote() for engine in engines]
    assert [carried for carried, _ in counted] == [0, buckets, buckets]


class SharingWorker(SmallBucketWorker):
    """Each rank hands its own copy to the engine on its GPU."""

    def build(self) -> None:
        super().build()
        self._outbox = ipc_outbox(f"GPU-{self.rank}", self.device, self.control)


@pytest.mark.long
async def test_each_rank_hands_its_copy_to_the_engine_on_its_gpu(lend_group, config, two, engine) -> None:
    group = await lend_group("policy", SharingWorker, config, 2)
    engines = [await start_receiver(index, gpu=f"GPU-{index}") for index in range(2)]
    for version in (1, 2):
        report = await WeightSync(group, engines, STEP_S).push(version)
        assert report.transfer == "ipc" and await engines[0].actor.bucket_count.remote() > 2
        received = [await each.actor.received.remote() for each in engines]
        assert received[0].keys() == received[1].keys()
        assert all(torch.equal(received[0][name], received[1][name]) for name in received[0])
    expected = AutoModelForCausalLM.from_pretrained(config.model.path, dtype=torch.float32)
    assert all(torch.equal(received[0][name], weight) for name, weight in expected.named_parameters())
    elsewhere = await start_receiver(2, gpu="GPU-2")
    with pytest.raises(ValueError, match="no rank of the policy is on this engine's GPU GPU-2"):
        await WeightSync(group, [engines[0], elsewhere], STEP_S).push(3)
    await engines[1].actor.misbehave.remote("fail")
    with pytest.raises(ValueError, match="no room"):
        await WeightSync(group, engines, STEP_S).push(4)
    await engines[1].actor.misbehave.remote(None)
    assert (await WeightSync(group, engines, STEP_S).push(5)).nbytes == report.nbytes


@pytest.mark.long
async def test_every_so_many_pushes_are_compared_byte_by_byte(lend_group, engine, config) -> None:
    rare = replace(config, cluster=replace(config.cluster, push_check_every=3))
    group = await lend_group("policy", PolicyWorker, rare, 1)
    full = []
    for version in range(1, 7):
        await WeightSync(group, [engine], STEP_S).push(version)
        full.append(await engine.actor.full_checks.remote())
    assert full == [0, 0, 1, 0, 0, 1]


@pytest.mark.long
async def test_policy_survives_an_engine_that_fails_or_hangs(two, engine, completions, config) -> None:
    batch = one_step(completions, two, config)
    before = await score(two, "logprobs", batch, STEP_S)
    await engine.actor.misbehave.remote("fail")
    with pytest.raises(ValueError, match=r"^no room$"):
        await WeightSync(two, [engine], STEP_S).push(8)
    await engine.actor.misbehave.remote("hang")
    with pytest.raises(TimeoutError, match=r"the policy waited 0.5 s for rollout engine 0 to load a weight bucket"):
        await WeightSync(two, [engine], 0.5).push(9)
    await engine.actor.misbehave.remote(None)
    assert torch.equal(before, await score(two, "logprobs", batch, STEP_S))


async def test_reference_scores_as_the_policy_it_starts_from(lend_group, plain, completions, config) -> None:
    reference = await lend_group("reference", PolicyWorker, config, 2)
    scores = await score(reference, "logprobs", one_step(completions, reference, config), STEP_S)
    with torch.no_grad():
        logprobs, _ = plain_scores(plain, completions, config.rollout.temperature)
    torch.testing.assert_close(scores, logprobs, atol=1e-5, rtol=1e-5)
    await reference.call("offload", True, timeout_s=STEP_S)
    assert await on_ranks(reference, parameter_bytes) == [0, 0]
    await reference.call("reload", timeout_s=STEP_S)
    again = await score(reference, "logprobs", one_step(completions, reference, config), STEP_S)
    assert torch.equal(again, scores)


def parameter_bytes(worker: PolicyWorker) -> int:
    return sum(part.untyped_storage().nbytes() for part in parameter_parts(worker.engine))


@pytest.mark.long
async def test_bfloat16_keeps_optimizer_state_in_float32(lend_group, completions, columns, tiny_model_path) -> None:
    """Steps far below bfloat16's resolution add up only if the master weights are float32."""
    config = make_config(tiny_model_path, dtype="bfloat16", policy_lr=1e-5, warmup_steps=0)
    group = await lend_group("policy", PolicyWorker, config, 1)
    batch = one_step(completions, group, config)
    losses = [(await update_policy(group, batch, columns, STEP_S))["loss"] for _ in range(12)]
    assert losses[-1] < losses[0]
