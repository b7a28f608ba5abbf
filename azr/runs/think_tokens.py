"""Makes the tags <think> and </think> plain text for a tokenizer that has them as tokens of their own.

Qwen3's base models have both tokens without ever having been trained on them, so a policy that is asked for these tags
starts from two random embeddings. Written letter by letter they are ordinary text, as for any other base model; the
authors of AZR (arXiv 2505.03335) prepared Qwen3-4B-Base in this way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from azr.errors import UserError
from azr.runs.model_folder import read_object, read_tokenizer, write_object

TAGS = ("<think>", "</think>")


def remove(folder: Path) -> None:
    """Edit the tokenizer in place. Every other token keeps its id, and the embeddings keep their size. Raises UserError
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
    _edit_settings(folder, unused)
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


def _edit_settings(folder: Path, unused: dict[int, dict[str, Any]]) -> None:
    """The files beside tokenizer.json, each of which would bring the tokens back."""
    for name in ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"):
        if not (folder / name).is_file():
            continue
        tree = _without_tags(read_object(folder / name))
        if "added_tokens_decoder" in tree:
            for token_id, token in unused.items():
                tree["added_tokens_decoder"][str(token_id)] = {k: v for k, v in token.items() if k != "id"}
        if name == "added_tokens.json":
            tree |= {token["content"]: token_id for token_id, token in unused.items()}
        write_object(folder / name, tree)


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
