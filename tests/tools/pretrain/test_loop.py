import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

from tools.pretrain import __main__ as command
from tools.pretrain.corpus import CORPORA, PaddedBatch, batches
from tools.pretrain.loop import OptimConfig, ShapeConfig, Trainer, learning_rate, new_model, pretrain, token_loss

TINY = ShapeConfig(hidden_size=64, layers=2, heads=2, kv_heads=1, intermediate_size=128)


def test_the_default_shape_has_14m_parameters_and_tied_embeddings(compact_tokenizer):
    with torch.device("meta"):
        model = new_model(ShapeConfig(), compact_tokenizer, seed=0)
    assert 13.5e6 < sum(p.numel() for p in model.parameters()) < 14.5e6
    assert model.config.tie_word_embeddings


def test_learning_rate_warms_up_holds_and_falls_to_zero():
    optim = OptimConfig(peak_lr=1.0, warmup_steps=10, decay_share=0.5)
    for step, elapsed, rate in ((0, 0.0, 0.1), (100, 0.4, 1.0), (100, 0.75, 0.5), (100, 1.0, 0.0)):
        assert learning_rate(optim, step=step, elapsed_share=elapsed) == pytest.approx(rate)


def test_the_loss_by_hand():
    logits_BTV = torch.randn(1, 4, 5, generator=torch.Generator().manual_seed(0))
    real_BT, answers_BT = torch.tensor([[True, True, True, False]]), torch.tensor([[False, False, True, False]])
    batch = PaddedBatch(torch.tensor([[1, 2, 3, 0]]), real_BT, answers_BT)
    first = cross_entropy(logits_BTV[0, 0], torch.tensor(2))
    second = cross_entropy(logits_BTV[0, 1], torch.tensor(3))
    loss, answer_loss = token_loss(logits_BTV, batch)
    assert token_loss(logits_BTV, batch, answers_only=True)[0].item() == pytest.approx(answer_loss.item())
    assert loss.item() == pytest.approx(((first + second) / 2).item())
    assert answer_loss.item() == pytest.approx(second.item())


def test_a_short_run_learns_counts_and_saves(compact_tokenizer, corpus_config, tmp_path, caplog):
    optim = OptimConfig(minutes=2, peak_lr=5e-3, warmup_steps=5)
    trainer = Trainer(new_model(TINY, compact_tokenizer, seed=0), optim)
    stream = batches(compact_tokenizer, corpus_config, seed=1, tokens_per_batch=256, pool=128)
    held = [next(stream)]
    with torch.no_grad():
        before, _ = token_loss(trainer.model(input_ids=held[0].ids_BT).logits, held[0])
    progress = pretrain(trainer, stream, compact_tokenizer, tmp_path, threads=2, log_every=10, max_steps=15)
    with torch.no_grad():
        after, _ = token_loss(trainer.model(input_ids=held[0].ids_BT).logits, held[0])
    assert before.item() == pytest.approx(math.log(640), rel=0.1)
    assert after < 0.85 * before
    assert progress.step == 15
    assert 15 * 2 * 128 < progress.tokens < 15 * 2 * 256
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.dtype is torch.bfloat16
    ids = held[0].ids_BT[:1]
    torch.testing.assert_close(model(ids).logits, trainer.model.eval()(ids).logits, atol=0.1, rtol=0.1)
    assert AutoTokenizer.from_pretrained(tmp_path).eos_token_id == model.generation_config.eos_token_id


def test_a_run_can_end_before_its_rate_has_fallen(compact_tokenizer, corpus_config, tmp_path):
    trainer = Trainer(new_model(TINY, compact_tokenizer, seed=0), OptimConfig(minutes=0.5, warmup_steps=1, stop_at=0.1))
    stream = batches(compact_tokenizer, corpus_config, seed=1, tokens_per_batch=256, pool=128)
    progress = pretrain(trainer, stream, compact_tokenizer, tmp_path, threads=1)
    assert progress.step > 0 and progress.seconds < 15
    assert trainer.optimizers[0].param_groups[0]["lr"] == trainer.optim.peak_lr


def test_two_threads_give_the_mean_gradient(compact_tokenizer, corpus_config):
    stream = batches(compact_tokenizer, corpus_config, seed=1, tokens_per_batch=512, pool=64)
    pair = [next(stream), next(stream)]
    trainer = Trainer(new_model(TINY, compact_tokenizer, seed=0), OptimConfig(grad_clip=1e9))
    alone = [trainer.gradient(batch)[0] for batch in pair]
    with ThreadPoolExecutor(2) as pool:
        trainer.step(pair, 0.0, pool)
    for master, a, b in zip(trainer.masters, *alone, strict=True):
        torch.testing.assert_close(master.grad, (a.float() + b.float()) / 2, atol=1e-4, rtol=1e-2)


def test_the_defaults_are_those_of_the_committed_model_and_options_replace_them(monkeypatch, capsys):
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(command, "run", lambda *arguments: calls.append(arguments))
    command.main([])
    given = "--out elsewhere --start model --minutes 1 --stop-at 1 --seed 2 --corpus worked"
    command.main(given.split())
    half_way = OptimConfig(minutes=32, stop_at=0.47)
    assert calls == [
        (Path("data/azr_14m_base"), None, half_way, 1, 2, CORPORA["all"]),
        (Path("elsewhere"), "model", OptimConfig(minutes=1, stop_at=1), 2, 2, CORPORA["worked"]),
    ]
    assert capsys.readouterr().out.endswith("azr eval --model elsewhere\n")
