"""Training documents: prompts and answers exactly as self-play writes them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from azr import values
from azr.records import Task
from azr.tasks.base import TaskKind
from azr.tasks.prompts import CompactFormat
from azr.tasks.registry import KINDS
from tools.pretrain.generator import (
    ALL,
    Domain,
    Sample,
    compile_program,
    random_error_sample,
    random_identity_sample,
    random_sample,
    straight,
)

SEED_SHARE = 0.04
"""How often a reference, or the program of an induction proposal, is the identity that self-play grows from."""

# Shapes: B = documents, T = tokens of the longest one.


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """What the documents are about."""

    solve: dict[str, float]
    """Share of solver documents by kind, relative."""
    propose: dict[str, float]
    """Share of proposer documents by kind, relative."""
    references: int = 2
    """Most past tasks in a proposal prompt; half of the documents show fewer."""
    induction_inputs: int = 6
    """Inputs of an induction task; the first half is shown to the solver."""
    solve_domain: Domain = ALL
    """Of the programs that solvers see."""
    propose_domain: Domain = ALL
    """Of the programs that proposers see and write."""
    worked: bool = False
    """Answers to deductions begin with each line of the program and the value after it, as `worked_out` writes them."""
    distinct: bool = True
    """No document comes twice; of few programs there are not enough for that."""
    answers_only: bool = False
    """Only answers are learned, and not the prompts before them."""


CORPORA = {
    "all": CorpusConfig(
        solve={"deduction": 0.40, "abduction": 0.21, "induction": 0.21, "error": 0.02},
        propose={"deduction": 0.05, "abduction": 0.05, "induction": 0.05, "error": 0.01},
    ),
    "worked": CorpusConfig(
        solve={"deduction": 0.70},
        propose={"deduction": 0.30},
        solve_domain=straight(0.50, 0.34, 0.12, 0.04),
        propose_domain=straight(0.45, 0.35, 0.14, 0.06),
        worked=True,
        distinct=False,
        answers_only=True,
    ),
}
"""By name: what `data/azr_14m_base` was trained on; deductions of few operations, worked out, for a model trained
on from it."""


@dataclass(frozen=True, slots=True)
class Document:
    """A prompt and its answer."""

    prompt: str
    answer: str


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """Right-padded documents; every row starts at position 0, as in inference."""

    ids_BT: torch.Tensor
    """Token ids, int64; 0 is padding."""
    real_BT: torch.Tensor
    """Whether a token is not padding, bool."""
    answers_BT: torch.Tensor
    """Whether a token belongs to the answer, bool."""


def as_task(kind: str, sample: Sample) -> Task:
    """A generated program as a task of a kind. Its fingerprint is never read: deduplication is by program text."""
    return Task(
        id="",
        kind=kind,
        program=sample.program,
        inputs=sample.inputs,
        outputs=sample.outputs,
        fingerprint="",
        message=sample.message if kind == "induction" else "",
    )


def make_task(rng: random.Random, kind: str, induction_inputs: int, domain: Domain = ALL) -> Task:
    """A fresh task of a kind; those of `error` are drawn from all programs."""
    if kind == "error":
        return as_task(kind, random_error_sample(rng))
    return as_task(kind, random_sample(rng, induction_inputs if kind == "induction" else 1, domain=domain))


def proposal_prompt(kind: TaskKind, references: list[Task]) -> str:
    return CompactFormat().propose(kind, references)


def solver_prompt(kind: TaskKind, task: Task) -> str:
    return CompactFormat().solve(kind, kind.solver_view(task))


def make_document(rng: random.Random, config: CorpusConfig) -> Document:
    """One document of a random role and kind."""
    choices = [("solve", k, w) for k, w in config.solve.items()] + [
        ("propose", k, w) for k, w in config.propose.items()
    ]
    role, name, _ = rng.choices(choices, [weight for *_, weight in choices])[0]
    kind, form = KINDS[name], CompactFormat()
    domain = config.solve_domain if role == "solve" else config.propose_domain
    task = make_task(rng, name, config.induction_inputs, domain)
    if role == "solve":
        working = worked_out(task) if config.worked and name == "deduction" else ""
        return Document(solver_prompt(kind, task), working + form.response(kind.solution(task)))
    shown = [task]
    if name != "induction":
        count = config.references if rng.random() < 0.5 else rng.randint(1, config.references)
        shown = [_reference(rng, kind, config) for _ in range(kind.references_per_prompt(count))]
    elif rng.random() < SEED_SHARE:
        task = as_task(name, random_identity_sample(rng, config.induction_inputs))
        shown = [task]
    answer = form.response(kind.proposal(task))
    return Document(proposal_prompt(kind, shown), answer)


def _reference(rng: random.Random, kind: TaskKind, config: CorpusConfig) -> Task:
    if rng.random() < SEED_SHARE:
        return kind.seed()
    return make_task(rng, kind.name, config.induction_inputs, config.propose_domain)


def worked_out(task: Task) -> str:
    """Each line of a program of assignments to its argument, with the value after it on the next line; the value that
    the last one returns is the answer and does not follow it."""
    head, *lines = (line.strip() for line in task.program.split("\n"))
    texts = []
    for count, line in enumerate(lines[:-1], 1):
        before = "\n    ".join([head, *lines[:count], "return x"])
        value = compile_program(before)(*values.parse_arguments(task.inputs[0]))
        texts.append(f"{line}\n{values.canonical(value)}\n")
    return "".join(texts) + f"{lines[-1]}\n"


def collate(encoded: list[tuple[list[int], list[int]]], multiple: int) -> PaddedBatch:
    """Ids of prompts and answers, padded to a common length that is a ``multiple``."""
    length = max(len(prompt) + len(answer) for prompt, answer in encoded)
    length = -(-length // multiple) * multiple
    ids_BT = torch.zeros(len(encoded), length, dtype=torch.long)
    real_BT = torch.zeros(len(encoded), length, dtype=torch.bool)
    answers_BT = torch.zeros(len(encoded), length, dtype=torch.bool)
    for row, (prompt, answer) in enumerate(encoded):
        start, stop = len(prompt), len(prompt) + len(answer)
        ids_BT[row, :stop] = torch.tensor(prompt + answer)
        real_BT[row, :stop] = True
        answers_BT[row, start:stop] = True
    return PaddedBatch(ids_BT, real_BT, answers_BT)


def batches(
    tokenizer: PreTrainedTokenizerFast,
    config: CorpusConfig,
    *,
    seed: int,
    tokens_per_batch: int,
    pool: int = 4096,
    multiple: int = 8,
) -> Iterator[PaddedBatch]:
    """Endless batches of about ``tokens_per_batch`` tokens, padding included.

    Documents are made ``pool`` at a time, without repeats within the run where the config says so, sorted by length
    into batches, and the batches are shuffled.
    """
    rng = random.Random(seed)
    seen: set[int] = set()
    while True:
        documents: list[Document] = []
        while len(documents) < pool:
            document = make_document(rng, config)
            key = hash((document.prompt, document.answer))
            if key not in seen or not config.distinct:
                seen.add(key)
                documents.append(document)
        prompts = tokenizer([d.prompt for d in documents]).input_ids
        answers = tokenizer([d.answer for d in documents]).input_ids
        rows = sorted(zip(prompts, answers, strict=True), key=lambda row: len(row[0]) + len(row[1]))
        chunks = _chunks(rows, tokens_per_batch)
        rng.shuffle(chunks)
        for chunk in chunks:
            yield collate(chunk, multiple)


def _chunks(rows: list[tuple[list[int], list[int]]], tokens_per_batch: int) -> list[list[tuple[list[int], list[int]]]]:
    """Consecutive rows, sorted by length, cut so that rows times the longest stays within the budget."""
    chunks: list[list[tuple[list[int], list[int]]]] = [[]]
    for row in rows:
        length = len(row[0]) + len(row[1])
        if chunks[-1] and (len(chunks[-1]) + 1) * length > tokens_per_batch:
            chunks.append([])
        chunks[-1].append(row)
    return chunks
