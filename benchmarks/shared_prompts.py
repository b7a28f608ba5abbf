"""What an update of the 14M policy costs when the samples of a group share their prompt's tokens, and when not.

python -m benchmarks.shared_prompts [--groups 36] [--samples 6 12]
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import AutoTokenizer

from azr.algorithms.attention import PADDED
from azr.algorithms.models import PolicyModel
from azr.algorithms.packing import pack
from azr.records import Completion
from azr.tasks.prompts import CompactFormat
from azr.tasks.registry import KINDS
from tools.pretrain.corpus import make_task, solver_prompt

MODEL, REPEATS = "data/azr_14m_base", 3


def groups(count: int, samples: int) -> list[Completion]:
    """Right answers, each several times, to tasks of the three kinds in turn."""
    tokenizer, rng = AutoTokenizer.from_pretrained(MODEL), random.Random(1)
    completions = []
    for index in range(count):
        kind = KINDS[("deduction", "abduction", "induction")[index % 3]]
        task = make_task(rng, kind.name, 6)
        prompt, answer = (
            tuple(tokenizer.encode(text, add_special_tokens=False))
            for text in (solver_prompt(kind, task), CompactFormat().response(kind.solution(task)))
        )
        completions += [
            Completion(
                prompt_ids=prompt,
                response_ids=answer,
                logprobs=0.0,
                finish_reason="stop",
                weight_versions=0,
            )
        ] * samples
    return completions


def apart(completions: Sequence[Completion]) -> list[Completion]:
    """The same lengths, and no two prompts alike: each begins with the digits of its index as tokens."""
    return [
        replace(c, prompt_ids=(index % 600, index // 600, *c.prompt_ids[2:])) for index, c in enumerate(completions)
    ]


def seconds(model: PolicyModel, completions: Sequence[Completion]) -> tuple[float, int]:
    """Median CPU time of a forward and a backward, and the tokens of the packed batch."""
    batch, times = pack(completions), []
    for _ in range(REPEATS):
        started = time.process_time()
        logprobs_R, _ = model(batch, 1.0)
        logprobs_R.mean().backward()
        times.append(time.process_time() - started)
    return statistics.median(times), len(batch.token_ids_T)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--groups", type=int, default=36)
    parser.add_argument("--samples", type=int, nargs="+", default=[6, 12])
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = PolicyModel.from_pretrained(MODEL, dtype=torch.bfloat16, attention=PADDED, logprob_chunk=2048)
    print(f"{options.groups} groups, bfloat16, one thread: CPU seconds of a forward and a backward")
    print(f"{'samples':>8}{'apart':>8}{'tokens':>8}{'shared':>8}{'tokens':>8}{'ratio':>8}")
    for samples in options.samples:
        completions = groups(options.groups, samples)
        (apart_s, apart_tokens), (shared_s, shared_tokens) = (
            seconds(model, apart(completions)),
            seconds(model, completions),
        )
        print(
            f"{samples:>8}{apart_s:>8.2f}{apart_tokens:>8}{shared_s:>8.2f}{shared_tokens:>8}{apart_s / shared_s:>8.2f}"
        )


if __name__ == "__main__":
    main()
