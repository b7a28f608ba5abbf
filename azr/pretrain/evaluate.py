"""What a base model can do on programs it was not trained on: solve rates and valid proposals, by kind."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerFast, Qwen2ForCausalLM

from azr.pretrain.corpus import make_task, proposal_prompt, solver_prompt
from azr.records import ExecutionRequest, ExecutionResult, Task
from azr.tasks.base import Proposal, Refusal, Rules, TaskKind, Verdict
from azr.tasks.prompts import CompactStyle
from azr.tasks.registry import KINDS

Execute = Callable[[Sequence[ExecutionRequest]], Awaitable[list[ExecutionResult]]]
"""Runs model-written programs behind walls, e.g. ``SandboxPool.execute_many``."""


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """How much is sampled, at temperature 1."""

    tasks: int = 128
    """Held-out tasks per kind."""
    samples: int = 8
    """Solutions per task."""
    proposals: int = 256
    """Proposals per kind."""
    references: int = 2
    """Past tasks in a proposal prompt."""
    induction_inputs: int = 6
    """Inputs of an induction task."""
    max_new_tokens: int = 128
    """Longest response; a longer one counts as malformed."""
    batch: int = 256
    """Sequences sampled at once."""
    seed: int = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveReport:
    """Solutions of held-out tasks of one kind."""

    solve_rate: float
    """Share of right solutions."""
    well_formed: float
    """Share of solutions in the asked form."""
    sometimes: float
    """Share of tasks solved by some samples and not by others: what self-play can learn from."""
    never: float
    """Share of tasks no sample solved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalReport:
    """Proposals of one kind."""

    valid: float
    """Share that became a task."""
    distinct: float
    """Share of valid proposals with a program and inputs of their own."""
    refusals: dict[str, int]
    """Why the others did not, counted."""


@torch.inference_mode()
def sample_responses(
    model: Qwen2ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    config: EvaluationConfig,
) -> list[str]:
    """One response per prompt at temperature 1, end token included; empty when the limit came first."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    responses = [""] * len(prompts)
    for start in range(0, len(order), config.batch):
        rows = order[start : start + config.batch]
        batch = tokenizer([prompts[i] for i in rows], padding=True, padding_side="left", return_tensors="pt")
        ids = model.generate(
            input_ids=batch.input_ids,
            attention_mask=batch.attention_mask,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=config.max_new_tokens,
        )
        texts = tokenizer.batch_decode(ids[:, batch.input_ids.shape[1] :])
        for i, text in zip(rows, texts, strict=True):
            body, end, _ = text.partition(CompactStyle.end)
            responses[i] = body + end if end else ""
    return responses


async def grade(kind: TaskKind, tasks: Sequence[Task], responses: Sequence[str], execute: Execute) -> list[Verdict]:
    """Verdict of each response to the task of the same index."""
    verdicts: dict[int, Verdict] = {}
    pending: dict[int, ExecutionRequest] = {}
    for index, (task, response) in enumerate(zip(tasks, responses, strict=True)):
        sections = CompactStyle().parse(response)
        outcome = Verdict.MALFORMED if sections is None else kind.verification(task, sections)
        if isinstance(outcome, ExecutionRequest):
            pending[index] = outcome
        else:
            verdicts[index] = outcome
    results = await execute(list(pending.values()))
    for index, result in zip(pending, results, strict=True):
        verdicts[index] = kind.verdict(tasks[index], result)
    return [verdicts[index] for index in range(len(tasks))]


async def solve_report(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, name: str, config: EvaluationConfig, execute: Execute
) -> SolveReport:
    """Solve rates of one kind on tasks whose programs were held out and differ from each other."""
    rng, kind = random.Random(config.seed), KINDS[name]
    fresh: dict[str, Task] = {}
    while len(fresh) < config.tasks:
        task = make_task(rng, name, config.induction_inputs, held_out=True)
        fresh.setdefault(task.program, task)
    tasks = [task for task in fresh.values() for _ in range(config.samples)]
    responses = sample_responses(model, tokenizer, [solver_prompt(kind, task) for task in tasks], config)
    verdicts = await grade(kind, tasks, responses, execute)
    rates = [
        sum(v is Verdict.RIGHT for v in verdicts[i : i + config.samples]) / config.samples
        for i in range(0, len(verdicts), config.samples)
    ]
    return SolveReport(
        solve_rate=sum(rates) / len(rates),
        well_formed=sum(v is not Verdict.MALFORMED for v in verdicts) / len(verdicts),
        sometimes=sum(0 < rate < 1 for rate in rates) / len(rates),
        never=sum(rate == 0 for rate in rates) / len(rates),
    )


async def proposal_report(
    model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast, name: str, config: EvaluationConfig, execute: Execute
) -> ProposalReport:
    """Share of valid proposals of one kind, through the same checks as in self-play."""
    rng, kind = random.Random(config.seed), KINDS[name]
    shown = [
        [
            make_task(rng, name, config.induction_inputs, held_out=True)
            for _ in range(kind.references_per_prompt(config.references))
        ]
        for _ in range(config.proposals)
    ]
    rules = Rules(source_bytes=16384, induction_inputs=config.induction_inputs, repeats=1)
    responses = sample_responses(model, tokenizer, [proposal_prompt(kind, tasks) for tasks in shown], config)
    read: list[Proposal | Refusal] = []
    for tasks, response in zip(shown, responses, strict=True):
        sections = CompactStyle().parse(response)
        read.append(Refusal.MALFORMED if sections is None else kind.read_proposal(sections, tasks, rules))
    proposals = [proposal for proposal in read if isinstance(proposal, Proposal)]
    results = await execute([kind.validation(proposal, rules) for proposal in proposals])
    admitted = [
        kind.admit(proposal, result, id="", step=0, parents=())
        for proposal, result in zip(proposals, results, strict=True)
    ]
    valid = [task for task in admitted if isinstance(task, Task)]
    refusals = Counter(outcome.value for outcome in (*read, *admitted) if isinstance(outcome, Refusal))
    return ProposalReport(
        valid=len(valid) / config.proposals,
        distinct=len({task.fingerprint for task in valid}) / max(1, len(valid)),
        refusals=dict(refusals),
    )


async def evaluate(folder: Path, config: EvaluationConfig, execute: Execute) -> dict[str, dict[str, dict]]:
    """Evaluate the saved model of a folder on every registered kind and write ``evaluation.json`` beside it.

    Returns ``{"solve": {kind: SolveReport}, "propose": {kind: ProposalReport}}`` as plain dicts.
    """
    torch.manual_seed(config.seed)
    model = Qwen2ForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    report = {
        "solve": {k: asdict(await solve_report(model, tokenizer, k, config, execute)) for k in KINDS},
        "propose": {k: asdict(await proposal_report(model, tokenizer, k, config, execute)) for k in KINDS},
    }
    (folder / "evaluation.json").write_text(json.dumps(report, indent=2) + "\n")
    return report
