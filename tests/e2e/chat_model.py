"""A tiny chat model, taught here in half a minute to propose and solve one small family of tasks in chat form.

It stands where a pretrained base model stands in a recipe: its tokenizer has a chat template and special tokens, it is
asked in English, and it answers with a thought and fenced blocks. Everything else of a run is the real thing.
"""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2ForCausalLM

from azr.config import Config
from azr.prompts.codec import PromptCodec
from azr.records import Task
from azr.tasks.base import TaskKind
from azr.tasks.prompts import ChatFormat
from azr.tasks.registry import KINDS
from tests import chat_tokenizers
from tests.tiny_models import tiny_config
from tools.pretrain.tokenizer import save_tokenizer

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
BATCH = 24


def random_task(rng: random.Random, kind: TaskKind, inputs: int) -> Task:
    """A program that returns its argument, a digit, and has three other digits that make it unlike other programs."""
    program = "def f(a):\n    b = " + ", ".join(str(rng.randrange(10)) for _ in range(3)) + "\n    return a"
    given = rng.sample(range(10), inputs) if kind.name == "induction" else [rng.randrange(10)]
    values, message = tuple(map(str, given)), "It stays." if kind.name == "induction" else ""
    return Task(id="", kind=kind.name, program=program, inputs=values, outputs=values, fingerprint="", message=message)


def documents(rng: random.Random, config: Config, folder: Path) -> Iterator[tuple[str, str]]:
    """Prompts and responses of both roles and all kinds of the run, without end.

    Asked by its tokenizer's template, the model chats, as many do that were tuned on their own template.
    """
    style, other = style_of(config, folder, "conversation"), style_of(config, folder, "tokenizer")
    references, inputs = config.selfplay.references, config.selfplay.induction_inputs
    while True:
        kind = KINDS[rng.choice(config.selfplay.kinds)]
        task = kind.seed() if rng.random() < 0.1 else random_task(rng, kind, inputs)
        asked = other if rng.random() < 0.15 else style
        if rng.random() < 0.5:
            prompt, response = asked.solve(kind, kind.solver_view(task)), style.response(kind.solution(task))
        else:
            count = kind.references_per_prompt(rng.randint(1, references))
            shown = [random_task(rng, KINDS["deduction"], inputs) for _ in range(count)]
            if rng.random() < 0.2:
                shown[0] = KINDS["deduction"].seed()
            prompt = asked.propose(kind, shown)
            response = style.response(kind.proposal(random_task(rng, kind, inputs)))
        yield prompt, f"I see.\n{response}" if asked is style else "Sure, here you are.<|im_end|>"


def make_tokenizer(config: Config, folder: Path) -> PreTrainedTokenizerFast:
    """Whole sentences of the prompts are tokens, and every digit is one, so that prompts are short."""
    chat_tokenizers.save(chat_tokenizers.chatml(), folder)
    texts = documents(random.Random(0), config, folder)
    corpus = [text for _ in range(200) for text in next(texts)]
    tokenizer = Tokenizer(models.BPE())
    digits, of_bytes = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, of_bytes(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder, alphabet = decoders.ByteLevel(), of_bytes.alphabet()
    options = {"special_tokens": SPECIAL, "initial_alphabet": alphabet, "show_progress": False}
    trainer = trainers.BpeTrainer(vocab_size=6000, **options)
    tokenizer.train_from_iterator(corpus, trainer)
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[0], pad_token=SPECIAL[0], chat_template=chat_tokenizers.CHATML
    )
    save_tokenizer(made, folder)
    return made


def codec_of(config: Config, folder: Path, template: str) -> PromptCodec:
    return PromptCodec.load(replace(config, model=replace(config.model, path=str(folder), template=template)))


def style_of(config: Config, folder: Path, template: str) -> ChatFormat:
    style = codec_of(config, folder, template)._format
    assert isinstance(style, ChatFormat)
    return style


def teach(config: Config, folder: Path, *, references: int, induction_inputs: int, steps: int = 120) -> Path:
    """A folder with a tokenizer and a model of 0.6M parameters that was taught on random documents."""
    play = replace(config.selfplay, references=references, induction_inputs=induction_inputs)
    config = replace(config, selfplay=play)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer = make_tokenizer(config, folder)
    codec = codec_of(config, folder, "conversation")
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    sizes = {"vocab_size": 64 * (len(tokenizer) // 64 + 1), "num_hidden_layers": 3, "intermediate_size": 256}
    model = Qwen2ForCausalLM(tiny_config("qwen2", **ids, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps, pct_start=0.1)
    texts = documents(random.Random(1), config, folder)
    for _ in range(steps):
        learn(model, optimizer, [tuple(map(codec.encode, next(texts))) for _ in range(BATCH)])
        schedule.step()
    model.save_pretrained(folder)
    ends = [int(tokenizer.convert_tokens_to_ids(token)) for token in ("<|im_end|>", "<|endoftext|>")]
    GenerationConfig(eos_token_id=ends).save_pretrained(folder)
    return folder


def learn(model: Qwen2ForCausalLM, optimizer: torch.optim.Optimizer, rows: list[tuple[list[int], list[int]]]) -> None:
    """Take a step on the responses of rows of a prompt's and a response's ids."""
    length = -(-max(len(prompt) + len(response) for prompt, response in rows) // 16) * 16
    ids_BT, target_BT = torch.zeros(len(rows), length, dtype=torch.long), torch.full((len(rows), length), -100)
    for row, (prompt, response) in enumerate(rows):
        end = len(prompt) + len(response)
        ids_BT[row, :end] = torch.tensor(prompt + response)
        target_BT[row, len(prompt) : end] = torch.tensor(response)
    loss = cross_entropy(model(ids_BT).logits[:, :-1].flatten(0, 1), target_BT[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
