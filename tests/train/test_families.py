"""Every checked family on two ranks: scores, an update and the saved folder against a plain Hugging Face model."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from azr.algorithms.architectures import CHECKED
from azr.train.learner import score
from azr.train.policy import PolicyWorker
from tests.conftest import byte_tokenizer
from tests.tiny_models import save_tiny
from tests.train.conftest import STEP_S, make_config, one_step, update_policy
from tests.train.test_policy import plain_scores, plain_steps

pytestmark = pytest.mark.long

CHECKPOINTING = ("none", "selective", "full")
"""Every way to checkpoint under DeepSpeed's two ranks, in turns."""


def plainly(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.parametrize(("number", "family"), enumerate([*CHECKED, "qwen3_moe", "apertus"]))
async def test_a_family_is_trained_as_plain_torch_does_it(number, family, lend_group, tmp_path, completions, columns):
    """Layers of the two that are not checked are not gathered as one. Apertus has constants beside its weights."""
    folder = save_tiny(tmp_path / "base", family, byte_tokenizer())
    config = make_config(folder, gradient_checkpointing=CHECKPOINTING[number % 3])
    plain = plainly(folder)
    group = await lend_group("policy", PolicyWorker, config, 2)
    batch = one_step(completions, group, config)
    with torch.no_grad():
        expected, _ = plain_scores(plain, completions, config.rollout.temperature)
    torch.testing.assert_close(await score(group, "logprobs", batch, STEP_S), expected, atol=1e-4, rtol=0)
    _, (norm,) = plain_steps(plain, completions, columns, config, steps=1)
    step = await update_policy(group, batch, columns, STEP_S)
    assert step["grad_norm"] == pytest.approx(norm, rel=1e-4)

    await group.call("save_hf", str(tmp_path / "saved"), timeout_s=STEP_S)
    with torch.no_grad():
        saved, _ = plain_scores(plainly(tmp_path / "saved"), completions, config.rollout.temperature)
    assert not torch.allclose(saved, expected, atol=1e-3)
    torch.testing.assert_close(await score(group, "logprobs", batch, STEP_S), saved, atol=1e-4, rtol=0)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "saved")) == len(AutoTokenizer.from_pretrained(folder))
