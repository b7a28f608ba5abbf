"""Between text and tokens: prompts are encoded and responses parsed for one model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from azr.config import ModelConfig
from azr.errors import UserError
from azr.records import Completion, FinishReason, Task
from azr.tasks.base import TaskKind
from azr.tasks.prompts import ChatFormat, CompactFormat, PromptFormat, Section, plain_conversation


class PromptCodec:
    """A tokenizer and a prompt format."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, prompt_format: PromptFormat) -> None:
        self._tokenizer, self._format = tokenizer, prompt_format

    @classmethod
    def load(cls, model: ModelConfig) -> PromptCodec:
        """Tokenizer of the model and the configured format.

        Raises:
            UserError: the tokenizer has no end token, so no response could ever be finished.
        """
        tokenizer = AutoTokenizer.from_pretrained(model.path)
        if tokenizer.eos_token_id is None:
            raise UserError(
                f"The tokenizer in {model.path} has no end token; set eos_token in its tokenizer_config.json."
            )
        if model.prompt_format == "compact":
            return cls(tokenizer, CompactFormat())
        return cls(tokenizer, ChatFormat(_conversation(tokenizer)))

    @property
    def end_id(self) -> int:
        return int(self._tokenizer.eos_token_id)

    def encode(self, prompt: str) -> list[int]:
        return list(self._tokenizer.encode(prompt, add_special_tokens=False))

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(token_ids, skip_special_tokens=False))

    def parse_response(self, completion: Completion) -> tuple[Section, ...] | None:
        """Sections a response states; None when it was cut off or does not have the asked form."""
        if completion.finish_reason is not FinishReason.STOP:
            return None
        ids = completion.response_ids
        return self._format.parse(self.decode(ids[:-1] if ids[-1] == self.end_id else ids))

    def solver_prompt(self, kind: TaskKind, task: Task) -> list[int]:
        return self.encode(self._format.solve(kind.name, kind.instructions, kind.solver_view(task)))

    def proposal_ids(self, kind: TaskKind, shown: Sequence[Task]) -> list[int]:
        """Ids of the proposal prompt that shows these tasks, however long."""
        return self.encode(self._format.propose(kind.name, kind.instructions, [kind.reference(task) for task in shown]))

    def proposer_prompt(self, kind: TaskKind, references: list[Task], max_tokens: int) -> tuple[list[int], list[Task]]:
        """Prompt ids and the references that fitted into ``max_tokens``; the last ones are left out first.

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


def _conversation(tokenizer: PreTrainedTokenizerBase) -> Callable[[str], str]:
    if tokenizer.chat_template is None:
        return plain_conversation

    def through_template(question: str) -> str:
        turns = [{"role": "user", "content": question}]
        return str(tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)) + "<think>"

    return through_template
