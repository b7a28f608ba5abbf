"""Encode prompts and parse responses for one model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Literal

import numpy as np
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from azr.config import CONTINUED, Config
from azr.errors import UserError
from azr.executor.static_check import ALLOWED_MODULES, BANNED_BUILTINS
from azr.prompts import chat_template
from azr.prompts.chat_template import Tool, Turn
from azr.prompts.token_text import TokenArray, shared_head_encoder, table_decoder
from azr.records import Completion, PromptIds, Reason, Stops, Task
from azr.tasks.base import TaskKind
from azr.tasks.normalize import held_out_keys, is_program
from azr.tasks.prompts import (
    LABELS,
    THINK,
    THOUGHT,
    ChatFormat,
    CompactFormat,
    CompletionFormat,
    PromptFacts,
    PromptFormat,
    ResponseFormat,
    Section,
    answer_part,
    opened_block,
)
from azr.tasks.registry import missing_examples

MAX_ENCODED = 1024
"""Number of solver prompts whose ids are cached."""
_TAGS = (THINK, THOUGHT, "<answer>", "</answer>")
"""Prompts of rows name them to state the format of a response."""
_FENCE_TOKENS = 32
"""More tokens than the fence at a prompt's end has."""


class PromptCodec:
    """A tokenizer and a prompt format."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt_format: PromptFormat,
        *,
        template: str | None = None,
        end_ids: Collection[int] = (),
        stop_strings: tuple[str, ...] | None = None,
    ) -> None:
        """``template``: text of the chat template in use, if any; ``end_ids``: what ends a response beside its EOS;
        ``stop_strings``: those of the format when not given."""
        self._tokenizer, self._format = tokenizer, prompt_format
        self.template = template
        strings = prompt_format.stop_strings if stop_strings is None else stop_strings
        self.stops = Stops(strings, tuple(sorted({int(tokenizer.eos_token_id), *end_ids})))
        """Stop strings and end tokens of a response."""
        self.prompt_format = prompt_format.name
        """As `model.prompt_format`, which may leave the choice to the codec."""
        self.continues_examples = isinstance(prompt_format, CompletionFormat)
        """Whether tasks are asked by examples; the template then asks all else."""
        self.opens_thinking = template is not None and chat_template.opens_thinking(template, tokenizer)
        end = None if template is None else chat_template.turn_end(template, tokenizer)
        self._end_id = int(tokenizer.eos_token_id if end is None else tokenizer.convert_tokens_to_ids(end))
        self._bos = [int(tokenizer.bos_token_id)] if chat_template.adds_bos(tokenizer) else []
        self._encode_prompt = shared_head_encoder(tokenizer, self.encode, self.encode_text)
        self._decode_by_table = table_decoder(tokenizer)
        # Estimates and solvers ask the same, while no proposal prompt comes twice.
        self._encode_solver_prompt = lru_cache(MAX_ENCODED)(self._encode_prompt)
        self._examples: dict[str, list[str]] = {}
        """Cache of the keys of a kind's worked examples."""
        self._control_tokens = chat_template.control_tokens(template, tokenizer)

    @classmethod
    def load(cls, config: Config) -> PromptCodec:
        """Load tokenizer, end tokens and prompt format of the configured model.

        Raises:
            UserError: the tokenizer has no end token, so no response could ever be finished, or the template is none.
        """
        model = config.model
        tokenizer = load_tokenizer(model.path)
        prompt_format = model.prompt_format
        if prompt_format == "auto":
            prompt_format = "completion" if _continues_by_default(config, tokenizer) else "chat"
        if prompt_format == "compact":
            if CompactFormat.answer not in tokenizer.get_vocab():
                raise UserError(
                    f"model.prompt_format: the tokenizer of {model.path} has no tags: take completion or chat."
                )
            tags = CompactFormat(config.reward.format)
            return cls(tokenizer, tags, end_ids=_end_ids_of_generation(model.path))
        template, facts = chat_template.choose_template(model.template, tokenizer, model.thinking), _facts(config)
        return cls.with_template(
            model.path, template, tokenizer, prompt_format=prompt_format, facts=facts, form=config.reward.format
        )

    @classmethod
    def with_template(
        cls,
        path: str,
        template: str,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        stops: Stops | None = None,
        stop_strings: tuple[str, ...] | None = None,
        prompt_format: str = "chat",
        facts: PromptFacts | None = None,
        form: ResponseFormat = "strict",
    ) -> PromptCodec:
        """Return the codec of a chat model whose prompts are written by the text of a Jinja template.

        ``tokenizer``: the model's, when it is loaded already. ``stops``: where its responses end, when that is known.
        ``stop_strings``: as in the constructor. ``prompt_format``: of its tasks, which
        are asked in the chat format unless it is completion or worked; ``form``: response format of the chat format.
        """
        tokenizer = load_tokenizer(path) if tokenizer is None else tokenizer
        ends: Collection[int] = () if stops is None else stops.token_ids
        if stops is None:
            # End tokens other than the tokenizer's EOS: those of generation, and the template's end of a turn.
            end = chat_template.turn_end(template, tokenizer)
            ends = _end_ids_of_generation(path) | ({int(tokenizer.convert_tokens_to_ids(end))} if end else set())
        strings = stop_strings if stops is None else stops.strings
        style: PromptFormat = CompletionFormat(tokenizer.encode, facts, works=prompt_format == "worked")
        if prompt_format not in CONTINUED:
            thinking = chat_template.opens_thinking(template, tokenizer)
            style = ChatFormat(partial(chat_template.render, template, tokenizer), facts, form, thinking=thinking)
        return cls(tokenizer, style, template=template, end_ids=ends, stop_strings=strings)

    def check_vocabulary(self, rows: int | None, path: str) -> None:
        """Raise UserError if a token has no row in the embedding of the model in ``path``; ``rows``: None if unknown.

        Gemma's text models have a token for images, without a row.
        """
        vocabulary = self._tokenizer.get_vocab()
        beyond = [token for token, id in vocabulary.items() if id >= (rows or id + 1) and token != "<image_soft_token>"]
        if beyond:
            raise UserError(
                f"The tokenizer in {path} has tokens, such as {beyond[0]!r}, beyond the {rows} rows of "
                "the model's embedding: take the model's own tokenizer, or resize the embedding and save both."
            )

    def auto_template(self) -> str:
        """Return what `model.template auto` chooses for this model, and why."""
        return "{}, because {}".format(*chat_template.auto_template(self._tokenizer))

    def ask(self, message: str) -> list[int]:
        """Return the prompt ids of a user's message; only the chat format has messages."""
        assert self.template is not None, "the compact format has no messages"
        return self.encode(chat_template.render(self.template, self._tokenizer, message))

    def converse(self, turns: Sequence[Turn], tools: Sequence[Tool] = ()) -> tuple[list[int], str]:
        """Return the prompt ids of a conversation, and the beginning of the response that the prompt contains. Raises
        UserError when the chat template cannot write as many turns or a tool, or a turn holds a control token."""
        prompt = self._conversation(turns, tools)
        return self.encode(prompt), chat_template.opened_response(prompt)

    def reply_ids(self, role: Literal["user", "tool"], *replies: str, has_ended: bool = True) -> list[int]:
        """Return the tokens between a turn of the model and its next: messages of this role, each a `plain` text; with
        the end of the turn if it has not ended. Raises UserError as `render_reply`."""
        assert self.template is not None, "the compact format has no messages"
        ends = [str(self._tokenizer.convert_ids_to_tokens(end)) for end in (self._end_id, *self.stops.token_ids)]
        end, rest = chat_template.render_reply(self.template, self._tokenizer, role, [*map(self.plain, replies)], ends)
        # Together, because some tokenizers mark where a text begins.
        return self.encode_text(end + rest)[len(self.encode_text(end)) if has_ended else 0 :]

    def check_replies(self, role: Literal["user", "tool"]) -> None:
        """Raise UserError if the chat template cannot write a reply of a user, or several of tools."""
        self.reply_ids(role, *("12" if role == "tool" else "1"))

    def plain(self, text: str) -> str:
        """Return a text that can stand in a prompt: a blank after its first character keeps each control token in it
        from being one, and half a surrogate pair, which has no tokens, is its escape."""
        for token in self._control_tokens:
            text = text.replace(token, f"{token[0]} {token[1:]}")
        return text.encode("utf-8", "backslashreplace").decode().strip()

    def _conversation(self, turns: Sequence[Turn], tools: Sequence[Tool]) -> str:
        assert self.template is not None, "the compact format has no messages"
        texts = "\0".join(turn["content"] for turn in turns)
        if token := next((each for each in self._control_tokens if each in texts and each not in _TAGS), None):
            raise UserError(f"its prompt holds {token}, which is a control token of this model: remove it.")
        return chat_template.render_conversation(self.template, self._tokenizer, turns, tools)

    def trace_ids(self, text: str, opened: str) -> list[int]:
        """Return ids of another model's whole response, with the end of a turn. ``opened``: with what the prompt itself
        begins the response, see `converse`; a trace that begins so, too, loses it."""
        begun = text.lstrip()
        if opened and begun.startswith(opened.strip()):
            text = begun.removeprefix(opened.strip())
            if opened != opened.rstrip():  # blanks after the tag are the prompt's
                text = text.lstrip()
        return [*self.encode_text(text), self._end_id]

    def check_trace(self, text: str) -> None:
        """Raise UserError if the vocabulary cannot write another model's response, or it contains an end token."""
        ends = map(self._tokenizer.convert_ids_to_tokens, self.stops.token_ids)
        if end := next((end for end in ends if end in text), None):
            raise UserError(f"a trace holds {end}, which ends a response of this model: remove it.")
        unknown = self._tokenizer.unk_token_id
        if unknown is not None and unknown in self.encode_text(text):
            raise UserError("the model's tokenizer has no tokens for a part of its traces.")

    def turns_fit(self, turns: Sequence[Turn], max_tokens: int, tools: Sequence[Tool] = ()) -> bool:
        """Whether the prompt of a conversation has at most ``max_tokens`` tokens. Raises as `converse`."""
        return self._fits(self._conversation(turns, tools), max_tokens)

    def response_text(self, completion: Completion) -> str:
        """Return the text of a response without its end token."""
        ids = completion.response_ids
        rest = ids[:-1] if len(ids) and ids[-1] in self.stops.token_ids else ids
        end = self.decode(ids[len(rest) :])
        # Bytes of an incomplete character before the end become the same, unless the end continues them.
        if completion.text is not None and "\ufffd" not in end:
            return completion.text.removesuffix(end)
        return self.decode(rest)

    def answer_text(self, completion: Completion) -> str:
        """Return `response_text` with what its prompt has written of the answer: the fence in the completion format."""
        text = self.response_text(completion)
        if not self.continues_examples:
            return text
        return opened_block(self.decode(completion.prompt_ids[-_FENCE_TOKENS:])) + text

    def encode(self, prompt: str) -> list[int]:
        """Return ids of a prompt, with the BOS token exactly once if the tokenizer adds one."""
        ids = self.encode_text(prompt)
        return ids if ids[: len(self._bos)] == self._bos else self._bos + ids

    def encode_text(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _fits(self, prompt: str, max_tokens: int) -> bool:
        # A token is at least one character of an ASCII text, and one more may mark the text's beginning.
        if prompt.isascii() and len(prompt) + len(self._bos) + 1 <= max_tokens:
            return True
        return len(self.encode(prompt)) <= max_tokens

    def decode(self, token_ids: PromptIds) -> str:
        """Return the text of token ids, control tokens included."""
        ids = token_ids.tolist() if isinstance(token_ids, np.ndarray) else token_ids
        if self._decode_by_table is not None:
            return self._decode_by_table(ids)
        # The clean-up that some tokenizers ask for removes blanks, also within a program's strings.
        return str(self._tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def parse_response(self, completion: Completion, labels: Sequence[str] = LABELS) -> tuple[Section, ...] | None:
        """Return the sections with these labels in a response; None if it was cut off or is not in the format."""
        if completion.finish_reason != "stop":
            return None
        return self._format.parse(self.answer_text(completion), labels)

    def unread_reason(self, completion: Completion) -> Reason:
        """Return why `parse_response` finds no sections in a response."""
        if completion.finish_reason != "stop":
            return "cut_off"
        if self.template is None or self.continues_examples:
            return "no_block"
        prompt = self.decode(completion.prompt_ids)
        return answer_part(self.response_text(completion), prompt, self._format.response_format)[1] or "no_block"

    def has_control_tokens(self, kind: TaskKind, task: Task) -> bool:
        """Whether a text of the task would become control tokens in a prompt, such as a string ``'<|im_end|>'``."""
        shown = (section.text for section in (*kind.reference(task), *kind.solver_view(task)))
        return self.holds_control_tokens(task.program, task.message, *task.inputs, *task.outputs, *shown)

    def holds_control_tokens(self, *texts: str) -> bool:
        return any(token in text for token in self._control_tokens for text in texts)

    def worked(self, kind: TaskKind) -> list[tuple[Section, ...]]:
        """Return questions and answers of the worked examples that prompts of this kind may show."""
        return self._format.worked(kind)

    def example_programs(self, kinds: Iterable[TaskKind]) -> dict[str, str]:
        """Return names of the worked examples' programs by their `held_out_keys`."""
        names: dict[str, str] = {}
        for kind in kinds:
            if kind.name not in self._examples:
                programs = [each.text for part in self.worked(kind) for each in part if each.label == "program"]
                self._examples[kind.name] = [
                    key for each in programs if is_program(each) for key in held_out_keys(each)
                ]
            names |= dict.fromkeys(self._examples[kind.name], f"a worked example of {kind.name}")
        return names

    def solver_prompt(self, kind: TaskKind, task: Task) -> TokenArray:
        return self._encode_solver_prompt(f"solve {kind.name}", self._solver_text(kind, task))

    def solver_prompt_fits(self, kind: TaskKind, task: Task, max_tokens: int) -> bool:
        """Whether the prompt has at most ``max_tokens`` tokens."""
        return self._fits(self._solver_text(kind, task), max_tokens)

    def _solver_text(self, kind: TaskKind, task: Task) -> str:
        return self._format.solve(kind, kind.solver_view(task))

    def proposal_ids(self, kind: TaskKind, shown: Sequence[Task]) -> TokenArray:
        """Return ids of the proposal prompt with these tasks, of any length."""
        return self._encode_prompt(f"propose {kind.name}", self._format.propose(kind, shown))

    def proposal_fits(self, kind: TaskKind, shown: Sequence[Task], max_tokens: int) -> bool:
        """Whether the proposal prompt with these tasks has at most ``max_tokens`` tokens."""
        return self._fits(self._format.propose(kind, shown), max_tokens)

    def is_short(self, kind: TaskKind, shown: Sequence[Task]) -> bool:
        """Whether a proposal prompt keeps to the tokens of the completion format. Other formats set no such limit."""
        most = CompletionFormat.proposal_tokens * max(4, len(shown)) // 4
        return not self.continues_examples or self.proposal_fits(kind, shown, most)

    def proposer_prompt(self, kind: TaskKind, references: list[Task], max_tokens: int) -> tuple[TokenArray, list[Task]]:
        """Return prompt ids, and the references that fitted into ``max_tokens``; the last are left out first.

        Raises:
            UserError: not even the shortest form of the prompt fits.
        """
        fewest = 1 if kind.references_per_prompt(0) else 0
        for count in range(len(references), fewest - 1, -1):
            shown = references[:count]
            ids = self.proposal_ids(kind, shown)
            if len(ids) <= max_tokens:
                return ids, shown
        raise UserError(
            f"A {kind.name} proposal prompt with {fewest} references has {len(ids)} tokens, but "
            f"rollout.max_prompt_tokens is {max_tokens}; raise it."
        )

    def check_prompts(self, kinds: Iterable[TaskKind], max_tokens: int) -> None:
        """Raise UserError if the shortest prompt of a kind has over ``max_tokens`` tokens."""
        for kind in kinds:
            self.proposer_prompt(kind, [kind.seed()], max_tokens)
            if (length := len(self.solver_prompt(kind, kind.seed()))) > max_tokens:
                raise UserError(
                    f"A {kind.name} solver prompt has {length} tokens or more, but rollout.max_prompt_tokens is "
                    f"{max_tokens}; raise it."
                )


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer. Raises UserError if it has no end token, so that no response could ever end."""
    tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path)
    if tokenizer.eos_token_id is None:
        raise UserError(f"The tokenizer in {path} has no end token; set eos_token in its tokenizer_config.json.")
    return tokenizer


def _continues_by_default(config: Config, tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether `model.prompt_format` auto is completion: nothing of the config needs questions in words, and the model
    has no template for them."""
    model, data = config.model, config.data
    in_words = model.template != "auto" or model.thinking != "auto" or data.path is not None
    in_words |= config.selfplay.tools != "none"
    if in_words or chat_template.own_template(tokenizer) is not None:
        return False
    return missing_examples(config.kinds, config.selfplay.induction_inputs) is None


def _facts(config: Config) -> PromptFacts:
    return PromptFacts(
        induction_inputs=config.selfplay.induction_inputs,
        easy_to_hard=config.selfplay.replay == "easy_to_hard",
        tools=config.selfplay.tools,
        wall_s=config.executor.wall_s,
        modules=tuple(name for name in ALLOWED_MODULES if not name.startswith("_") and "." not in name),
        refused_names=tuple(sorted(name for name in BANNED_BUILTINS if not name.startswith("_"))),
    )


def _end_ids_of_generation(path: str) -> set[int]:
    """Return the end tokens of the model's generation config, which may differ from the tokenizer's. Raises UserError
    when it is there and cannot be read."""
    try:
        ids = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError as error:
        if (Path(path) / "generation_config.json").is_file():
            raise UserError(f"The generation_config.json in {path} is not JSON: correct or remove it.") from error
        return set()
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    if not all(isinstance(each, int) for each in ids):
        raise UserError(f"eos_token_id in the generation_config.json of {path} must be ids of tokens, not {ids}.")
    return set(ids)
