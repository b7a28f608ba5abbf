"""A small byte-level BPE tokenizer for the compact prompt style.

Text is first cut into pieces that merges never cross. Fragments of code (``\\n    return ``, `` for a in ``, method
names) are pieces and become single tokens; everything else, above all digits and the letters of string literals, is
cut into single characters, so that a tiny model sees what it has to count, reverse and add.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from azr.tasks.prompts import CompactFormat

_TAG = re.compile(r"<\|[a-z]+\|>")
_WORD = r"(?<![a-zA-Z'])[a-zA-Z]{2,}(?![a-zA-Z'])"
"""A name or keyword of code or of a hint: letters that do not touch a quote."""
_PIECE = "|".join(
    (
        r"def f\([a-z, ]+\):\n +(?:return )?",
        r"\n +(?:return |for |if |else:\n +)?",
        r" for [a-z](?:, [a-z])* in ",
        r" (?:==|!=|//|\+=|[-+*%<>=]) ",
        rf" ?\.?{_WORD}[( ]?",
        r"\[::?-?",
        r"\):\n +",
        r", ",
        r"[\s\S]",
    )
)


def train_tokenizer(texts: Iterable[str], kinds: list[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A tokenizer of at most ``vocab_size`` (<= 1024) tokens whose merges are learned from ``texts``.

    Every text round-trips: all 256 bytes are in the vocabulary.
    """
    if not 300 <= vocab_size <= 1024:
        raise ValueError(f"The vocabulary size must be between 300 and 1024, not {vocab_size}.")
    special = CompactFormat.special_tokens(kinds)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECE), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator((piece for text in texts for piece in _TAG.split(text)), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=CompactFormat.end,
        pad_token="<|pad|>",
        extra_special_tokens=[token for token in special if token not in (CompactFormat.end, "<|pad|>")],
        clean_up_tokenization_spaces=False,
        model_max_length=1024,
    )


_CLASS_FILE = "compact_tokenizer.py"
_CLASS_SOURCE = '''"""The tokenizer of this folder is exactly what tokenizer.json says."""

from transformers import PreTrainedTokenizerFast


class CompactTokenizer(PreTrainedTokenizerFast):
    pass
'''


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the files that ``AutoTokenizer.from_pretrained`` reads.

    For Qwen2 models AutoTokenizer ignores the saved class and cuts text in Qwen2's own way, which would silently
    change every prompt. An ``auto_map`` entry is what makes it read tokenizer.json as it is, with or without
    ``trust_remote_code``.
    """
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    settings = json.loads(path.read_text())
    settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings["auto_map"] = {"AutoTokenizer": [None, f"{Path(_CLASS_FILE).stem}.CompactTokenizer"]}
    path.write_text(json.dumps(settings, indent=2) + "\n")
    (folder / _CLASS_FILE).write_text(_CLASS_SOURCE)
