"""A tiny Qwen2 in float64 and made-up trajectories, shared by the tests of this folder."""

import random
from dataclasses import replace

import torch
from transformers import PreTrainedConfig, Qwen2ForCausalLM, Qwen2Model

from azr.algorithms.attention import PADDED
from azr.algorithms.kernels import Kernels
from azr.algorithms.models import Checkpointing, CriticModel, PolicyModel
from azr.algorithms.packing import PackedBatch
from azr.records import Completion
from tests import tiny_models
from tests.runs.factory import completion

VOCAB = 53


def tiny_config(*, tied: bool = True, attention: str = PADDED, sliding_window: int | None = None) -> PreTrainedConfig:
    sizes = {"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "max_window_layers": 0}
    window = {"use_sliding_window": sliding_window is not None, "sliding_window": sliding_window}
    return tiny_models.tiny_config("qwen2", tie_word_embeddings=tied, attn_implementation=attention, **sizes, **window)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _double_precision(model: torch.nn.Module) -> torch.nn.Module:
    """Replace the norms, which transformers always computes in float32, so that the whole network is float64."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child).__name__ == "Qwen2RMSNorm":
                setattr(parent, name, torch.nn.RMSNorm(child.weight.shape[0], eps=child.variance_epsilon))
    return model.double()


def tiny_policy(
    *,
    tied: bool = True,
    seed: int = 0,
    chunk: int = 5,
    gradient_checkpointing: Checkpointing = "none",
    kernels: Kernels = "plain",
    **config: object,
) -> PolicyModel:
    torch.manual_seed(seed)
    hf = _double_precision(Qwen2ForCausalLM(tiny_config(tied=tied, **config)))
    with torch.no_grad():
        for parameter in hf.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return PolicyModel(hf, logprob_chunk=chunk, gradient_checkpointing=gradient_checkpointing, kernels=kernels)


def tiny_critic(seed: int = 0) -> CriticModel:
    torch.manual_seed(seed)
    return CriticModel(_double_precision(Qwen2Model(tiny_config()))).double()


def completions(count: int, seed: int = 0) -> list[Completion]:
    rng = random.Random(seed)
    samples = []
    for _ in range(count):
        response = rng.randint(1, 12)
        prompt_ids = [rng.randrange(VOCAB) for _ in range(rng.randint(1, 9))]
        response_ids = [rng.randrange(VOCAB) for _ in range(response)]
        logprobs = [-4.0 + rng.uniform(-0.5, 0.5) for _ in range(response)]
        samples.append(completion(response_ids, prompt_ids, logprobs=logprobs))
    return samples


def groups(count: int, size: int) -> list[Completion]:
    """Several responses to each of several prompts."""
    return [
        replace(response, prompt_ids=first.prompt_ids)
        for index, first in enumerate(completions(count, seed=1))
        for response in completions(size, seed=10 + index)
    ]


def score(model: PolicyModel, batch: PackedBatch, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    return model(batch, temperature)
