"""Tokens of the completion format's prompts about tasks that real base models proposed, in real tokenizers."""

import random
from dataclasses import replace
from statistics import median

import pytest

from azr.config import Config, ModelConfig, SelfPlayConfig
from azr.prompts.codec import PromptCodec
from azr.records import Task
from azr.selfplay.buffer import TaskBuffer
from azr.selfplay.proposer import draw_references
from azr.selfplay.seeds import read_seeds
from azr.tasks.prompts import CompletionFormat
from azr.tasks.registry import KINDS
from tests.executor import public_data
from tests.real_models import REAL

PLAYED = ("deduction", "abduction", "error", "induction")
INPUTS = (4, 10)
PROMPTS = 100
OURS = 160
"""Most tokens of a long solver prompt beside its question: heading, one example and the words around them."""


@pytest.fixture(scope="module")
def seeds() -> list[Task]:
    lines = read_seeds(public_data.file("azr_seed_tasks.jsonl.gz"), PLAYED[:3])
    tasks = [task for _, task in lines if isinstance(task, Task)]
    known = [replace(task, fingerprint=KINDS[task.kind].fingerprint(task.program, task.inputs)) for task in tasks]
    return list({(task.kind, task.fingerprint): task for task in known}.values())


@pytest.mark.parametrize("inputs", INPUTS)
@pytest.mark.parametrize("model", REAL)
def test_prompts_keep_to_their_tokens_as_far_as_tasks_let_them(model, inputs, seeds):
    play = SelfPlayConfig(kinds=PLAYED, references=4, induction_inputs=inputs)
    codec = PromptCodec.load(Config(model=ModelConfig(path=str(model), prompt_format="completion"), selfplay=play))
    buffer = TaskBuffer(PLAYED)
    buffer.restore(seeds)
    for name in PLAYED:
        kind, rng = KINDS[name], random.Random(1)
        newest = [buffer.references(name, "newest", 0) for _ in range(PROMPTS)]
        drawn = [draw_references(name, pool, codec, play.references, rng) for pool in newest]
        lengths = [len(codec.proposal_ids(kind, tasks)) for tasks in drawn]
        assert {len(tasks) for tasks in drawn} == {kind.references_per_prompt(4)}
        assert sum(length <= CompletionFormat.proposal_tokens for length in lengths) >= 0.95 * PROMPTS, name
        shown = {task.fingerprint for tasks in drawn for task in tasks}
        assert len(shown) > 0.8 * sum(map(len, drawn)), "most of them come once"
        some = rng.sample(buffer.tasks(name), PROMPTS)
        asked = [replace(each, inputs=each.inputs[:inputs], outputs=each.outputs[:inputs]) for each in some]
        solved = [len(codec.solver_prompt(kind, task)) for task in asked]
        fenced = ("".join(f"```{x.label}\n{x.text}\n```\n" for x in kind.solver_view(task)) for task in asked)
        questions = [len(codec.encode(text)) for text in fenced]
        bound = CompletionFormat.solver_tokens
        for length, question in zip(solved, questions, strict=True):
            assert length <= max(bound, question + OURS), name
        # Half of the inductions of ten inputs have over 230 tokens themselves.
        assert (name == "induction" and inputs > 4) or median(solved) <= bound, name


def test_formats_without_such_a_limit_draw_once(seeds, tiny_model_path):
    model = ModelConfig(path=str(tiny_model_path), prompt_format="compact")
    config = Config(model=model, selfplay=SelfPlayConfig(kinds=PLAYED))
    buffer = TaskBuffer(PLAYED)
    buffer.restore(seeds)
    count = config.selfplay.references
    pool = buffer.references("deduction", "newest", 0)
    drawn = draw_references("deduction", pool, PromptCodec.load(config), count, random.Random(1))
    assert drawn == pool(count, random.Random(1))
