"""The tokenizer of this folder is exactly what tokenizer.json says."""

from transformers import PreTrainedTokenizerFast


class CompactTokenizer(PreTrainedTokenizerFast):
    pass
