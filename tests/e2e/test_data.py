"""Recipes of data files, end to end: rewards and traces teach. `test_two_steps` kills a run with rows.

`benchmarks.data_learning` says more of what they learn, in an hour.
"""

import json
import random
import shlex
from pathlib import Path
from statistics import fmean

import pytest
import torch
from transformers import GenerationConfig, Qwen2ForCausalLM

from benchmarks.data_learning import SFT, SIZES, TEMPLATE, write_questions
from tests.conftest import byte_tokenizer
from tests.e2e.chat_model import learn
from tests.e2e.runs import metrics, succeed
from tests.tiny_models import tiny_of

pytestmark = pytest.mark.long

BASE = "data/azr_14m_base"
ANSWERS = {"zero": 0, "traced": 7, "untraced": 853}
"""To every question of a source. The taught model says a digit below 5, so it happens on the first alone."""

FIRST_AND_LAST = slice(0, 2), slice(-5, None)
"""Steps of a run."""


def recipe_on(folder: Path, recipe: str, name: str, model: str, *options: str) -> list[object]:
    """Command of a recipe on the rows of the folder."""
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)
    command = [f"playground.{recipe}", *SIZES, *options, "--model.path", model, "--model.template", template]
    return [*command, "--data.path", folder / "rows.jsonl", "--run.root", folder, "--run.name", name]


def question(dice: random.Random, source: str) -> str:
    digit, number = dice.randrange(10), dice.randrange(1000)
    return {"zero": f"0 times {digit}{number:03}", "traced": f"old {number:03}", "untraced": f"new {number:03}"}[source]


def boxed(answer: int) -> str:
    return f"</think>\\boxed{{{answer}}}"


def teach_the_form(folder: Path) -> str:
    """A model of 0.3M parameters that answers each question by any digit below 5, after some ten seconds."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    tokenizer, dice = byte_tokenizer(), random.Random(1)
    model = Qwen2ForCausalLM(tiny_of("qwen2", tokenizer, intermediate_size=128).config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    for _ in range(80):
        sources = dice.choices(list(ANSWERS), k=64)
        texts = [f"User: {question(dice, source)}\nAssistant: <think>" for source in sources]
        answers = [[*tokenizer.encode(boxed(dice.randrange(5))), tokenizer.eos_token_id] for _ in texts]
        learn(model, optimizer, list(zip(map(tokenizer.encode, texts), answers, strict=True)))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    GenerationConfig(eos_token_id=tokenizer.eos_token_id).save_pretrained(folder)
    return str(folder)


@pytest.mark.timeout(900)
def test_rewards_teach_what_happens_and_traces_what_does_not(tmp_path: Path) -> None:
    """LUFFY's recipe with its RL and SFT loss: rewards alone suffice where a right answer happens now and then; where
    none ever does, rows with traces learn, and rows without do not."""
    dice, rows = random.Random(2), {}
    while len(rows) < 1500:
        source = dice.choice(list(ANSWERS))
        answer = ANSWERS[source]
        row = {"prompt": question(dice, source), "grader": "math", "answer": str(answer), "source": source}
        rows[row["prompt"]] = row | ({"traces": [boxed(answer)]} if source == "traced" else {})
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows.values()))
    options = shlex.split(
        "--run.steps 20 --train.dtype float32 --train.policy-lr 5e-4 --train.warmup-steps 0 --data.prompts 48 "
        "--algorithm.off-policy.loss sft"
    )
    succeed(*recipe_on(tmp_path, "luffy_7b", "mixed", teach_the_form(tmp_path / "base"), *options))
    lines = metrics(tmp_path / "mixed")
    right = {source: [line[f"{source}/solver/accuracy"] for line in lines] for source in ANSWERS}
    before, after = ({source: fmean(shares[part]) for source, shares in right.items()} for part in FIRST_AND_LAST)
    assert before["zero"] < 0.25 and after["zero"] > 0.5, right
    assert before["traced"] < 0.02 and after["traced"] > 0.05, right
    assert max(right["untraced"]) < 0.02, right


def test_fine_tuning_on_traces_learns_their_form_within_sixteen_steps(tmp_path: Path) -> None:
    write_questions(tmp_path / "rows.jsonl", "larger", 16 * 64)
    succeed(*recipe_on(tmp_path, "sft", "sft", BASE, *SFT, "--run.steps", "16"))
    lines = metrics(tmp_path / "sft")
    probabilities = [line["policy/trace_prob"] for line in lines]
    assert len(lines) == 16 and probabilities[0] < 0.02 and probabilities[-1] > 0.4, probabilities
    assert all(line["data/traces"] == 64 and not line["policy/sampled_tokens"] for line in lines)
