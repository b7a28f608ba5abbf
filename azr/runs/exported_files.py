"""Edits to the tokenizer and the config of an exported model, in place.

Qwen3's base models have the tags <think> and </think> as tokens without ever having been trained on them, so a policy
that is asked for these tags starts from two random embeddings. Written letter by letter they are ordinary text, as for
any other base model; the authors of AZR (arXiv 2505.03335) prepared Qwen3-4B-Base in this way.

Transformers 5 writes other keys than transformers 4 and its kin read. Who knows only the former keys takes defaults for
the rest without a word: a rope theta of 10,000, unscaled positions, float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from azr.errors import UserError
from azr.runs.model_folder import read_object, read_tokenizer, write_object

TAGS = ("<think>", "</think>")


def remove_think_tokens(folder: Path) -> None:
    """Make the tags plain text. Every other token keeps its id, and the embeddings keep their size. Raises UserError
    when the tokenizer has no such tokens, or has them in a way that cannot be undone."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise UserError("The model has no tokenizer.json, where its think tokens would be: leave out --think-tokens.")
    tree, before = read_object(path), read_tokenizer(folder)
    ids = {token["content"]: token["id"] for token in tree["added_tokens"] if token["content"] in TAGS}
    if not ids:
        raise UserError(f"The tokenizer has no tokens {' and '.join(TAGS)}: leave out --think-tokens.")
    unused = _unused_tokens(ids, before)
    kept = [token for token in tree["added_tokens"] if token["content"] not in TAGS]
    tree["added_tokens"] = sorted([*kept, *unused.values()], key=lambda token: token["id"])
    write_object(path, tree)
    # The files beside tokenizer.json, each of which would bring the tokens back.
    for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        if not (folder / name).is_file():
            continue
        settings = _without_tags(read_object(folder / name))
        if "added_tokens_decoder" in settings:
            for token_id, token in unused.items():
                settings["added_tokens_decoder"][str(token_id)] = {k: v for k, v in token.items() if k != "id"}
        if name == "added_tokens.json":
            settings |= {token["content"]: token_id for token_id, token in unused.items()}
        write_object(folder / name, settings)
    _check(before, read_tokenizer(folder))


def _unused_tokens(ids: dict[str, int], tokenizer: Tokenizer) -> dict[int, dict[str, Any]]:
    """Stand-ins where a later added token would otherwise move up: ids of added tokens are given in their order."""
    last = max((i for i, token in tokenizer.get_added_tokens_decoder().items() if token.content not in TAGS), default=0)
    base = tokenizer.get_vocab(with_added_tokens=False)
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        token_id: {"id": token_id, "content": f"<|unused_{token_id}|>", **flags}
        for tag, token_id in ids.items()
        if token_id < last and tag not in base
    }


def _without_tags(node: Any) -> Any:
    """A JSON value without the entries that are, are called, or describe one of the tags."""
    if isinstance(node, dict):
        return {key: _without_tags(value) for key, value in node.items() if key not in TAGS and not _is_tag(value)}
    if isinstance(node, list):
        return [_without_tags(value) for value in node if not _is_tag(value)]
    return node


def _is_tag(node: Any) -> bool:
    return (node.get("content") if isinstance(node, dict) else node) in TAGS


def _check(before: Tokenizer, after: Tokenizer) -> None:
    for tag in TAGS:
        ids = after.encode(tag, add_special_tokens=False).ids
        if len(ids) < 2 or after.decode(ids, skip_special_tokens=False) != tag:
            raise UserError(f"The tokenizer cannot spell {tag} in other tokens: leave out --think-tokens.")
    for token, token_id in before.get_vocab().items():
        if token not in TAGS and after.token_to_id(token) != token_id:
            raise UserError(f"Without its think tokens the tokenizer would move {token}: leave out --think-tokens.")


def add_former_keys(folder: Path) -> None:
    """Add the former keys to config.json and tokenizer_config.json; all new ones stay."""
    if (folder / "config.json").is_file():
        config = read_object(folder / "config.json")
        former = {"torch_dtype": config["dtype"]} if config.get("dtype") else {}
        rope = config.get("rope_parameters") or {}
        local = rope.get("sliding_attention") or {}
        if "rope_theta" in local:
            former["rope_local_base_freq"] = local["rope_theta"]
        former |= _former_rope(rope.get("full_attention") or rope)
        write_object(folder / "config.json", config | former)
    settings = read_object(folder / "tokenizer_config.json")
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # the same class in both versions
    # Version 4 wants names for these tokens, and reads a list of them here.
    if isinstance(settings.get("extra_special_tokens"), list):
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    write_object(folder / "tokenizer_config.json", settings)


def _former_rope(rope: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of rotary positions that stood apart: base and share of a head, then how they are scaled."""
    former: dict[str, Any] = {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    scaling = {key: value for key, value in rope.items() if key not in former}
    kind = scaling.pop("rope_type", "default")
    if kind == "longrope":  # Phi-3's config takes exactly three keys, and the length beside them.
        length = {key: scaling.pop(key) for key in ("original_max_position_embeddings",) if key in scaling}
        return former | length | {"rope_scaling": {"type": kind, **scaling}}
    if kind != "default":
        former["rope_scaling"] = {"rope_type": kind, "type": kind, **scaling}
    return former
