"""How a user's message becomes a prompt: one Jinja template, chosen by `model.template`, and what ends a turn in it."""

from __future__ import annotations

from pathlib import Path

from jinja2 import TemplateError, TemplateSyntaxError
from transformers import PreTrainedTokenizerBase

from azr.errors import UserError
from azr.tasks.prompts import THINK

_CONVERSATION = (
    "A conversation between a User and an Assistant. The Assistant first thinks the problem through, then gives the "
    "answer: the thinking stands between <think> and </think>, the answer between <answer> and </answer>."
    "{% for message in messages %}{{ '\n\n' if loop.first else '\n' }}"
    "{{ message['role'] | capitalize }}: {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n' }}Assistant: <think>{% endif %}"
)
_QUESTION, _REPLY = "QUESTION-7c1e", "REPLY-5f0d"
"""Texts that no template holds."""


def choose_template(choice: str, tokenizer: PreTrainedTokenizerBase) -> str:
    """Text of the Jinja template that `model.template` asks for; it opens the thinking at its end.

    ``auto`` takes the tokenizer's own only where the model was trained on it: where its turns end with the
    tokenizer's end token. Base models often carry the template of their family, with an end token of their own.

    Raises:
        UserError: there is no such template, or it is not one that can ask a question.
    """
    own = tokenizer.chat_template and str(tokenizer.get_chat_template())
    if choice == "auto":
        trained_on = own and turn_end(own, tokenizer) == tokenizer.eos_token
        choice = "tokenizer" if trained_on else "conversation"
    if choice == "conversation":
        template = ("{{ bos_token }}" if adds_bos(tokenizer) else "") + _CONVERSATION
    elif choice == "tokenizer":
        if not own:
            raise UserError("model.template is tokenizer, but the tokenizer has no chat template: take conversation.")
        template = own
    else:
        template = _read(choice)
    return _opening_thinking(template, tokenizer, choice)


def _read(choice: str) -> str:
    try:
        return Path(choice).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The file {choice} of model.template cannot be read as text: {error}.") from error


def _opening_thinking(template: str, tokenizer: PreTrainedTokenizerBase, choice: str) -> str:
    """The template, with the tag that opens the thinking added unless its prompts end with that."""
    try:
        prompt = render(template, tokenizer, _QUESTION)
    except TemplateSyntaxError as error:
        raise UserError(
            f"The template {choice} of model.template does not parse: line {error.lineno}: {error.message}."
        ) from error
    except (TemplateError, TypeError) as error:
        raise UserError(
            f"The template {choice} of model.template cannot write a user's message: {error}; correct it, or "
            "take conversation."
        ) from error
    if prompt.count(_QUESTION) != 1:
        raise UserError(
            f"The template {choice} of model.template does not write the user's message once, as it is: correct it, or "
            "take conversation."
        )
    if prompt.rstrip().endswith(THINK):
        return template
    return template + "{% if add_generation_prompt %}" + THINK + "{% endif %}"


def render(template: str, tokenizer: PreTrainedTokenizerBase, question: str) -> str:
    """The prompt that asks a question."""
    turns = [{"role": "user", "content": question}]
    return str(tokenizer.apply_chat_template(turns, chat_template=template, tokenize=False, add_generation_prompt=True))


def turn_end(template: str, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The special token after an assistant's turn, such as ``<|im_end|>``; None where there is none."""
    turns = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _REPLY}]
    try:
        text = str(tokenizer.apply_chat_template(turns, chat_template=template, tokenize=False))
    except TemplateError:
        return None
    after = text.rpartition(_REPLY)[2].lstrip()
    return next((token for token in _longest_first(special_tokens(tokenizer)) if after.startswith(token)), None)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Texts of the tokens that are no text."""
    added = tokenizer.added_tokens_decoder.values()
    return {token.content for token in added if token.special} | set(tokenizer.all_special_tokens)


def control_tokens(template: str | None, tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Texts that would become something else than text in a prompt: special tokens, and added ones of the template."""
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    of_template = {token for token in added if template is not None and token.strip() and token in template}
    return tuple(sorted(special_tokens(tokenizer) | of_template))


def adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer begins every text with its BOS token."""
    ids = tokenizer.encode("a")
    return tokenizer.bos_token_id is not None and ids[:1] == [tokenizer.bos_token_id]


def _longest_first(tokens: set[str]) -> list[str]:
    return sorted(tokens, key=len, reverse=True)
