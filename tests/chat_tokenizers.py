"""Tokenizers like those of well-known families, made here: every byte and every control token is one token."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import GenerationConfig, PreTrainedTokenizerFast

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HEADERS = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)


def of_bytes(special: list[str]) -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    return tokenizer


def chatml(*, instruct: bool = False) -> PreTrainedTokenizerFast:
    """As Qwen's: a chat template, no BOS; only an instruction-tuned model's end token is that of a turn."""
    tokenizer = of_bytes(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    eos = "<|im_end|>" if instruct else "<|endoftext|>"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=eos, pad_token="<|endoftext|>", chat_template=CHATML
    )


def llama(*, instruct: bool = False) -> PreTrainedTokenizerFast:
    """As Llama 3's: every text begins with a BOS; only the instruction-tuned model has a template."""
    bos = "<|begin_of_text|>"
    tokenizer = of_bytes([bos, "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, tokenizer.token_to_id(bos))]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=bos, eos_token="<|eot_id|>" if instruct else "<|end_of_text|>"
    )
    fast.chat_template = HEADERS if instruct else None
    return fast


_SWITCH = "{% if enable_thinking | default(true) %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}"
_TURN = (
    "{{% for message in messages %}}{before}{{{{ message['content'] }}}}{after}{{% endfor %}}"
    "{{% if add_generation_prompt %}}{prompt}{{% endif %}}"
)
LIKE: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "phi4": ("<|im_start|>{{ message['role'] }}<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>", ()),
    "olmo3-think": (
        "<|im_start|>{{ message['role'] }}\n", "<|im_end|>\n", "<|im_start|>assistant\n<think>", ("<|im_end|>",)
    ),
    "exaone4": ("[|{{ message['role'] }}|]\n", "[|endofturn|]\n", "[|assistant|]\n" + _SWITCH, ()),
    "apertus": (
        "<|{{ message.role }}_start|>", "<|{{ message.role }}_end|>", "<|assistant_start|>", ("<|assistant_end|>",)
    ),
    "glm4": ("<|{{ message['role'] }}|>\n", "", "<|assistant|>\n", ("<|user|>",)),
}  # fmt: skip
"""Turns like those of models of 2026: what stands before and after a message, what asks for a response, and what ends
one beside the tokenizer's own end token."""


def like(name: str) -> PreTrainedTokenizerFast:
    """A tokenizer whose end token is that of a turn, but for ``glm4``, whose turns end where the next begins."""
    before, after, prompt, ends = LIKE[name]
    eos = "<|endoftext|>" if name == "glm4" else ends[0] if ends else after.strip()
    special = dict.fromkeys(["<|endoftext|>", eos, *ends, *(f"<|{role}|>" for role in ("user", "assistant"))])
    fast = PreTrainedTokenizerFast(tokenizer_object=of_bytes(list(special)), eos_token=eos, pad_token="<|endoftext|>")
    fast.chat_template = _TURN.format(before=before, after=after, prompt=prompt)
    return fast


def plain() -> PreTrainedTokenizerFast:
    """No template and no BOS."""
    return PreTrainedTokenizerFast(tokenizer_object=of_bytes(["</s>"]), eos_token="</s>")


def save(tokenizer: PreTrainedTokenizerFast, folder: Path, end_tokens: list[str] | None = None) -> Path:
    """A model's folder without weights; ``end_tokens`` go into its generation config."""
    tokenizer.save_pretrained(folder)
    if end_tokens is not None:
        ids = [int(tokenizer.convert_tokens_to_ids(token)) for token in end_tokens]
        GenerationConfig(eos_token_id=ids).save_pretrained(folder)
    return folder
