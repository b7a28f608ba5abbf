"""How a user's message becomes a prompt: one Jinja template, chosen by `model.template`, and what ends a turn in it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from jinja2 import TemplateError, TemplateSyntaxError
from transformers import PreTrainedTokenizerBase

from azr.errors import UserError
from azr.tasks.prompts import THINK, THOUGHT
from azr.text import clipped

Turn = Mapping[Literal["role", "content"], str]
"""One message of a conversation; the role is ``user`` or ``assistant``."""
Tool = Mapping[str, Any]
"""A tool as JSON schema, with its ``function``, as templates take it."""
_THINKS = (
    "The Assistant first thinks the problem through, then gives the answer: the thinking stands between <think> and "
    "</think>, the answer between <answer> and </answer>."
)
_ANSWERS = "The answer of the Assistant stands between <answer> and </answer>."
_TURNS = (
    "{% for message in messages %}{{ '\n\n' if loop.first else '\n' }}"
    "{{ message['role'] | capitalize }}: {{ message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\n' }}Assistant:"
)
CHOSEN = "{#- A run was trained on this template. -#}"
"""Begins a template that `auto` would not choose, so that it is chosen for the exported model."""
_QUESTION, _REPLY = "QUESTION-7c1e \"a\" 'b' <c> & d\n    e", "REPLY-5f0d"
"""Texts that no template holds; the question has what a template that escapes its messages would change."""
_CONTROL = re.compile(r"<\|.*\|>|<\uff5c.*\uff5c>|</?[a-z]+_\w+>", re.DOTALL)
_FAILURES = (
    TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError
)  # fmt: skip
"""What the expressions of a template may raise when it is rendered."""


Thinking = Literal["auto", "open", "none"]


def choose_template(choice: str, tokenizer: PreTrainedTokenizerBase, thinking: Thinking = "auto") -> str:
    """Text of the Jinja template that `model.template` asks for, as `model.thinking` has it.

    ``auto`` takes the tokenizer's own only where the model was trained on it: where its turns end with the
    tokenizer's end token, it opens the thinking itself, or a run was trained on it. Base models often carry the
    template of their family, with an end token of their own.

    Raises:
        UserError: there is no such template, or it is not one that can ask a question.
    """
    own = own_template(tokenizer)
    if choice == "auto":
        choice, _ = auto_template(tokenizer)
    if choice == "conversation":
        about, opened = (_ANSWERS, "") if thinking == "none" else (_THINKS, f" {THINK}")
        template = f"A conversation between a User and an Assistant. {about}{_TURNS}{opened}{{% endif %}}"
    elif choice == "tokenizer":
        if not own:
            raise UserError("model.template is tokenizer, but the tokenizer has no chat template: take conversation.")
        template = own
    else:
        try:
            template = Path(choice).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"The file {choice} of model.template cannot be read as text: {error}.") from error
    if choice != "conversation" and not _is_trained_on(template, tokenizer):
        template = CHOSEN + template
    return _checked(template, tokenizer, choice, thinking)


def auto_template(tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """Return what `model.template auto` chooses, and the reason, which completes a sentence."""
    own = own_template(tokenizer)
    if not own:
        return "conversation", "the tokenizer has no chat template"
    if _is_trained_on(own, tokenizer):
        return "tokenizer", "the model was trained on its own template"
    return "conversation", f"the turns of its own template do not end with the end token {tokenizer.eos_token}"


def own_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The tokenizer's chat template; of several that which is the default, if any is."""
    own = tokenizer.chat_template
    if isinstance(own, dict):
        own = own.get("default")
    return str(own) if own else None


def _is_trained_on(own: str, tokenizer: PreTrainedTokenizerBase) -> bool:
    try:
        is_known = own.startswith(CHOSEN) or opens_thinking(own, tokenizer)
    except _FAILURES:
        return False
    return is_known or turn_end(own, tokenizer) == tokenizer.eos_token


def _checked(template: str, tokenizer: PreTrainedTokenizerBase, choice: str, thinking: Thinking) -> str:
    """The template, with the BOS token added where its prompts lack it, and with the tag that opens the thinking if it
    is to be opened."""
    if thinking == "none" and "enable_thinking" in template:
        template = "{%- set enable_thinking = false -%}" + template
    try:
        prompt = render(template, tokenizer, _QUESTION)
    except TemplateSyntaxError as error:
        raise UserError(f"The model.template {choice} does not parse: line {error.lineno}: {error.message}.") from error
    except _FAILURES as error:
        raise UserError(
            f"The template {choice} of model.template cannot write a user's message: {error}; correct it, or "
            "take conversation."
        ) from error
    if prompt.count(_QUESTION) != 1:
        raise UserError(f"The model.template {choice} does not write the user's message once: correct it.")
    if adds_bos(tokenizer) and not prompt.startswith(str(tokenizer.bos_token)):
        # Encoding adds the token anyway; here it also reaches whoever reads the template of an exported model.
        template = "{{ bos_token }}" + template
    opens = bool(opened_response(prompt))
    if thinking == "none" and opens:
        raise UserError(
            f"The model.template {choice} opens the thinking itself, but model.thinking is none: set it to auto, or "
            "take another template."
        )
    if thinking != "open" or opens:
        return template
    return template + "{% if add_generation_prompt %}" + THINK + "{% endif %}"


@lru_cache(maxsize=1024)
def render(template: str, tokenizer: PreTrainedTokenizerBase, question: str) -> str:
    """The prompt that asks a question."""
    # A task is asked for it when it is accepted, estimated and solved.
    return _render_turns(template, tokenizer, [{"role": "user", "content": question}])


def render_conversation(
    template: str, tokenizer: PreTrainedTokenizerBase, turns: Sequence[Turn], tools: Sequence[Tool] = ()
) -> str:
    """The prompt that continues a conversation, oldest turn first, at whose end a user asks.

    Raises:
        UserError: the template cannot write as many turns, or leaves one out, or a tool.
    """
    try:
        prompt = _render_turns(template, tokenizer, turns, tools)
    except _FAILURES as error:
        raise UserError(f"The chat template cannot write this conversation: {error}.") from error
    if lost := next((name for name in (each["function"]["name"] for each in tools) if name not in prompt), None):
        raise UserError(
            f"The chat template writes no tools, such as {lost}: take a model whose template does, rollout.tools "
            "python, or an environment with a method step."
        )
    rest = prompt
    # The longest first: a message that is part of another one must be there beside it.
    for turn in sorted(turns, key=lambda turn: len(turn["content"]), reverse=True):
        # Templates of thinking models leave out what an earlier response has thought.
        said = turn["content"].rpartition(THOUGHT)[2] if turn["role"] == "assistant" else turn["content"]
        if said.strip() not in rest:
            raise UserError(
                f"The chat template loses the {turn['role']} message {clipped(said.strip())!r}: take another "
                "model.template, or remove the message."
            )
        rest = rest.replace(said.strip(), "\0", 1)
    return prompt


def render_reply(
    template: str, tokenizer: PreTrainedTokenizerBase, role: Literal["user", "tool"], replies: Sequence[str],
    ends: Sequence[str],
) -> tuple[str, str]:  # fmt: skip
    """The end token of an assistant's turn, and what stands between it and the next turn, when it is replied to by
    messages of this role.

    ``ends``: end tokens of a turn. Raises UserError when the template cannot write it.
    """
    called: dict[str, Any] = {"role": "assistant", "content": _REPLY}
    answered = [{"role": role, "content": reply} for reply in replies]
    if role == "tool":
        function = {"name": "python", "arguments": {"code": _REPLY}}
        # One call whatever is replied: Llama's template refuses several.
        called |= {"content": "", "tool_calls": [{"type": "function", "id": "call00000", "function": function}]}
        answered = [each | {"name": "python", "tool_call_id": f"call{i:05}"} for i, each in enumerate(answered)]
    try:
        prompt = _render_turns(template, tokenizer, [{"role": "user", "content": _QUESTION}, called, *answered])
    except _FAILURES as error:
        raise UserError(f"The chat template cannot write a reply of a {role}: {error}.") from error
    after = prompt.partition(_REPLY)[2]
    found = [(at, -len(end)) for end in ends if (at := after.find(end)) >= 0]
    forms = [(reply, json.dumps(reply, ensure_ascii=False)[1:-1]) for reply in replies]  # JSON: Llama's template
    if not found or not all(reply in after or as_json in after for reply, as_json in forms):
        raise UserError(f"The chat template loses the reply of a {role}, or ends no turn: take another model.template.")
    at, length = min(found)
    return after[at : at - length], after[at - length :]


def opened_response(prompt: str) -> str:
    """How a prompt itself begins the response: with the tag that opens the thinking and blanks after it, or not."""
    return prompt[prompt.rindex(THINK) :] if prompt.rstrip().endswith(THINK) else ""


def opens_thinking(template: str, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the prompts of a template end with the tag that opens the thinking."""
    return bool(opened_response(render(template, tokenizer, _QUESTION)))


def _render_turns(
    template: str, tokenizer: PreTrainedTokenizerBase, turns: Sequence[Mapping[Any, Any]], tools: Sequence[Tool] = ()
) -> str:
    how: dict[str, Any] = {"chat_template": template, "tokenize": False, "add_generation_prompt": True}
    return str(tokenizer.apply_chat_template(list(turns), tools=list(tools) or None, **how))


def turn_end(template: str, tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The special token after an assistant's turn, such as ``<|im_end|>``; None where there is none."""
    turns = [{"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _REPLY}]
    try:
        text = str(tokenizer.apply_chat_template(turns, chat_template=template, tokenize=False))
    except _FAILURES:
        return None
    after = text.rpartition(_REPLY)[2].lstrip()
    tokens = sorted(special_tokens(tokenizer), key=len, reverse=True)
    return next((token for token in tokens if after.startswith(token)), None)


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Texts of the tokens that are not text."""
    added = tokenizer.added_tokens_decoder.values()
    return {token.content for token in added if token.special} | set(tokenizer.all_special_tokens)


def control_tokens(template: str | None, tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """Texts that would become something else than text in a prompt.

    These are the special tokens, and those added ones that stand in the template or are written like control tokens:
    ``<|fim_middle|>`` is not special in Qwen's tokenizers.
    """
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    of_template = {token for token in added if template is not None and token.strip() and token in template}
    return tuple(sorted(special_tokens(tokenizer) | of_template | set(filter(_CONTROL.fullmatch, added))))


def adds_bos(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the tokenizer begins every text with its BOS token."""
    ids = tokenizer.encode("a")
    return tokenizer.bos_token_id is not None and ids[:1] == [tokenizer.bos_token_id]
