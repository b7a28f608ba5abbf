"""Policy and critic networks over packed streams.

Legend: T stream tokens, R response tokens, H hidden size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from inspect import unwrap
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from transformers import AttentionInterface, AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from azr.algorithms.architectures import CHECKED, recurrent_part
from azr.algorithms.attention import PADDED, Segments, run_by_sample
from azr.algorithms.kernels import COVERED, Kernels, apply_liger
from azr.algorithms.logprobs import LogprobHead, TokenLoss
from azr.algorithms.lora import add_adapters, four_bit_config, iter_base_weights
from azr.algorithms.packing import PackedBatch, padded_to, to_device
from azr.config import LoraConfig
from azr.errors import UserError
from azr.text import first_line

TOKEN_MULTIPLE = 128
"""Tokens of a stream on a GPU are a multiple of this."""


def _hidden_states(backbone: PreTrainedModel, batch: PackedBatch) -> Tensor:
    """Last hidden states of the positions that predict the response tokens, (R, H), on the model's device."""
    device, config = backbone.device, backbone.config
    # Layers that differ may have heads too large for flash kernels, or run by sample.
    padded = config._attn_implementation == PADDED or not getattr(CHECKED.get(config.model_type), "alike", True)
    if device.type == "cuda":
        batch = padded_to(batch, TOKEN_MULTIPLE)
    segments = Segments.of(batch.cu_seqlens, batch.unshared_index_E, device, padded=padded)
    output = backbone(
        input_ids=to_device(batch.token_ids_T, device)[None],
        position_ids=to_device(batch.position_ids_T, device)[None],
        use_cache=False,
        segments=segments,
    )
    hidden_1TH: Tensor = output.last_hidden_state
    return hidden_1TH.squeeze(0).index_select(0, to_device(batch.logit_pos_R, device))


Checkpointing = Literal["full", "selective", "none"]
RECOMPUTED_EVERY: dict[Checkpointing, int] = {"full": 1, "selective": 2}
"""Layers per recomputed layer. Half of the layers is the best trade-off that DeepSpeed leaves: it gathers a module's
parameters anew when the module runs anew, and its own linear function recomputes even a last product of which nothing
is needed, so that recomputing the MLPs alone saves hardly any arithmetic."""


def _prepare(model: PreTrainedModel, kernels: Kernels, checkpointing: Checkpointing) -> None:
    """Bind the layers' forwards to the kernels, and to what of them the backward recomputes in training mode.

    Raises UserError as `check_layers`."""
    by_sample = check_layers(model)
    for part in by_sample:
        run_by_sample(part)
    if kernels == "compile":
        # But for what follows the borders of samples, which differ in each micro-batch.
        attention = model.config._attn_implementation
        AttentionInterface.register(attention, torch.compiler.disable(AttentionInterface()[attention]))
        for part in by_sample:
            part.forward = torch.compiler.disable(part.forward)
        for layer in model.modules():
            if isinstance(layer, GradientCheckpointingLayer):
                layer.compile(dynamic=True)
    if kernels == "liger" and model.config.model_type in COVERED:
        apply_liger(model)
    if checkpointing != "none":
        model.gradient_checkpointing_enable({"use_reentrant": False}, every_n_layers=RECOMPUTED_EVERY[checkpointing])


_EACH_TOKEN = re.compile(
    "(MLP|Mlp|MoE|Moe|MoELayer|MoeBlock|MoEBlock|Norm|Linear|Dropout|Identity|Activation|.*LU|Tanh)$"
)
"""Classes of parts of a layer that compute each token for itself, by the end of their names."""


def check_layers(model: PreTrainedModel) -> list[nn.Module]:
    """Raises UserError unless tokens meet in attention alone, where `Segments` keeps packed samples apart, or in parts
    that are known to be right under `run_by_sample`; returns these.

    Any other convolution or recurrent state would run over the whole stream, from each sample into the next.
    """
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    children = [child for layer in layers for child in layer.children()]
    parts = [part for child in children for part in (child if isinstance(child, nn.ModuleList) else [child])]
    by_sample = [part for part in parts if type(part).__name__ == recurrent_part(model.config.model_type)]
    # The forward of attention calls transformers' attention interface.
    others = [part for part in parts if "ALL_ATTENTION_FUNCTIONS" not in unwrap(type(part).forward).__code__.co_names]
    others = [part for part in others if part not in by_sample]
    mixing = [part for part in others if not _EACH_TOKEN.search(type(part).__name__)]
    mixing += [module for part in others for module in part.modules() if isinstance(module, _ConvNd)]
    if mixing or not layers:
        what = f"its layers have a {type(mixing[0]).__name__}" if mixing else "it has no layers"
        raise UserError(
            f"{type(model).__name__} cannot be trained: {what}, which is neither attention, MLP, norm nor embedding, "
            "and in which samples packed into one stream would see each other: choose another model.path."
        )
    return by_sample


def check_unknown(path: str) -> None:
    """Raises UserError as `check_head` and `check_layers` for the model of a folder, of which only config.json is read;
    and where transformers knows no such language model."""
    try:
        with torch.device("meta"):
            hf = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"transformers makes no language model of {path} ({first_line(error)}).") from error
    check_head(hf)
    check_layers(hf)


_PLAIN_LOGITS: dict[str, float | None] = {
    "logits_soft_cap": None,
    "output_logit_soft_cap": None,
    "logit_scale": 1.0,
    "lm_head_multiplier": 1.0,
    "output_multiplier": 1.0,
    "dim_model_base": None,
}
"""Fields of configs that change the logits after, or the hidden states right before, the output head, with the value
that changes nothing: RecurrentGemma, xLSTM, Cohere, Falcon-H1, MuseGlimmer and MiniCPM have one each."""


def check_head(hf: PreTrainedModel) -> None:
    """Raises UserError when logits are more than hidden states times a matrix and a cap, as `LogprobHead` computes."""
    head, fields = hf.get_output_embeddings(), hf.config.get_text_config().to_dict()
    changes = [
        f"{name}={fields[name]}" for name, plain in _PLAIN_LOGITS.items() if fields.get(name) not in (None, plain)
    ]
    if not isinstance(head, nn.Linear):
        what = "has no linear output head"
    elif head.bias is not None:
        what = "has a bias in its output head, which the policy does not support"
    elif changes:
        what = f"changes its logits by {changes[0]}, which the policy does not compute"
    else:
        return
    raise UserError(f"{type(hf).__name__} {what}: choose another model.path.")


NO_LORA = LoraConfig()


class PolicyModel(nn.Module):
    """A Hugging Face causal LM that scores responses.

    ``hf`` stays a complete model; only the class of its output head changes, and adapters are put around linear layers.
    """

    def __init__(
        self,
        hf: PreTrainedModel,
        *,
        logprob_chunk: int,
        gradient_checkpointing: Checkpointing = "none",
        kernels: Kernels = "plain",
        fused_head: bool = False,
        lora: LoraConfig = NO_LORA,
    ) -> None:
        """Take over ``hf``, built with an ``attn_implementation`` from ``choose_attention``.

        ``fused_head``: as ``fused`` of ``token_logprobs``. Raises UserError as `check_head`, `check_layers` and
        `add_adapters`.
        """
        super().__init__()
        check_head(hf)
        weight, fields = hf.get_output_embeddings().weight, hf.config.get_text_config().to_dict()
        cap = fields.get("final_logit_softcapping")
        hf.set_output_embeddings(LogprobHead(weight, logprob_chunk, fused=fused_head, cap=cap))
        _prepare(hf, kernels, gradient_checkpointing)
        add_adapters(hf, lora)
        self.hf = hf
        self._logit_divisor = float(fields.get("logits_scaling", 1.0))
        """Granite divides its logits, which is a temperature."""

    @classmethod
    def from_pretrained(
        cls, path: str, *, dtype: torch.dtype, attention: str, lora: LoraConfig = NO_LORA, **options: Any
    ) -> PolicyModel:
        """Load a folder or hub name; ``attention`` comes from ``choose_attention``, the rest as in the constructor."""
        hf = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation=attention, quantization_config=four_bit_config(lora, dtype)
        )
        return cls(hf, lora=lora, **options)

    def named_weights(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters with Hugging Face names, as engines and folders take them; one with several names comes once.

        Without adapters: `azr.algorithms.lora.adapters_of` tells what these add.
        """
        return iter_base_weights(self.hf)

    def forward(
        self, batch: PackedBatch, temperature: float, with_entropy: bool = True, token_loss: TokenLoss | None = None
    ) -> tuple[Tensor | None, ...]:
        """Logprobs and entropies of the response tokens, two float32 arrays (R,), see ``token_logprobs``; before them,
        if there is a `token_loss`, its sum, which then is all that has a gradient, see ``token_losses``.

        The batch had better be on the CPU, see ``Segments.of``; what is needed of it is copied to the model's device.
        """
        head: LogprobHead = self.hf.get_output_embeddings()
        hidden_RH = _hidden_states(self.hf.base_model, batch)
        target_R = to_device(batch.target_R, hidden_RH.device)
        temperature *= self._logit_divisor
        scores: tuple[Tensor | None, ...] = head(hidden_RH, target_R, temperature, with_entropy, token_loss=token_loss)
        return scores


class ValueHead(nn.Module):
    """A scalar linear head that computes in float32 whatever type its parameters are held in."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, hidden_size))
        self.bias = nn.Parameter(torch.zeros(1))
        nn.init.normal_(self.weight, std=1 / (hidden_size + 1))

    def forward(self, hidden_RH: Tensor) -> Tensor:
        """(R, H) to (R,)."""
        acc_dtype = torch.promote_types(hidden_RH.dtype, torch.float32)
        values_R1 = nn.functional.linear(hidden_RH.to(acc_dtype), self.weight.to(acc_dtype), self.bias.to(acc_dtype))
        return values_R1.squeeze(-1)


class CriticModel(nn.Module):
    """A Hugging Face backbone with a scalar head: the expected return before each response token."""

    def __init__(
        self,
        backbone: PreTrainedModel,
        *,
        gradient_checkpointing: Checkpointing = "none",
        kernels: Kernels = "plain",
        lora: LoraConfig = NO_LORA,
    ) -> None:
        super().__init__()
        _prepare(backbone, kernels, gradient_checkpointing)
        add_adapters(backbone, lora)
        self.backbone = backbone
        self.head = ValueHead(backbone.config.hidden_size).to(backbone.dtype)

    @classmethod
    def from_pretrained(
        cls, path: str, *, dtype: torch.dtype, attention: str, lora: LoraConfig = NO_LORA, **options: Any
    ) -> CriticModel:
        """Load a backbone from a folder or hub name; the head is new. ``options``: as in the constructor."""
        backbone = AutoModel.from_pretrained(
            path, dtype=dtype, attn_implementation=attention, quantization_config=four_bit_config(lora, dtype)
        )
        return cls(backbone, lora=lora, **options)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Values (R,) in float32. The batch as for ``PolicyModel.forward``."""
        values_R: Tensor = self.head(_hidden_states(self.backbone, batch))
        return values_R
