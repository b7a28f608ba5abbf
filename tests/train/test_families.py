"""Every checked family on two ranks: scores, an update and the saved folder against a plain Hugging Face model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from azr.algorithms.architectures import CHECKED
from azr.records import Completion
from azr.train.learner import score
from azr.train.policy import PolicyWorker
from tests.conftest import byte_tokenizer
from tests.tiny_models import save_tiny
from tests.train.conftest import STEP_S, StartGroup, make_config, one_step, update_policy
from tests.train.test_policy import plain_scores, plain_steps

CHECKPOINTING = {
    "qwen3": "selective",
    "llama": "none",
    "mistral": "full",
    "gemma3_text": "selective",
    "qwen3_moe": "full",
}
"""Every way to checkpoint under DeepSpeed's two ranks."""


@pytest.mark.parametrize("family", [*(family for family in CHECKED if family != "qwen2"), "qwen3_moe"])
async def test_a_family_is_trained_and_saved_as_plain_torch_does_it(
    family: str,
    lend_group: StartGroup,
    tmp_path: Path,
    completions: list[Completion],
    columns: dict[str, torch.Tensor],
) -> None:
    """Qwen2 has all of test_policy.py for itself. The layers of Qwen3 with experts, which is none of
    the checked families, are not gathered as one."""
    folder = save_tiny(tmp_path / "base", family, byte_tokenizer())
    config = make_config(folder, gradient_checkpointing=CHECKPOINTING[family])
    plain = AutoModelForCausalLM.from_pretrained(
        tmp_path / "base", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    group = await lend_group("policy", PolicyWorker, config, 2)
    batch = one_step(completions, group, config)
    with torch.no_grad():
        expected, _ = plain_scores(plain, completions, config.rollout.temperature)
    torch.testing.assert_close(await score(group, "logprobs", batch, STEP_S), expected, atol=1e-4, rtol=0)
    _, (norm,) = plain_steps(plain, completions, columns, config, steps=1)
    step = await update_policy(group, batch, columns, STEP_S)
    assert step["grad_norm"] == pytest.approx(norm, rel=1e-4)

    await group.call("save_hf", str(tmp_path / "saved"), timeout_s=STEP_S)
    again = AutoModelForCausalLM.from_pretrained(
        tmp_path / "saved", dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        saved, _ = plain_scores(again, completions, config.rollout.temperature)
    assert not torch.allclose(saved, expected, atol=1e-3)
    torch.testing.assert_close(await score(group, "logprobs", batch, STEP_S), saved, atol=1e-4, rtol=0)
