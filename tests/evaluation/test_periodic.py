"""Suites within a run: when and on what it is evaluated, and what it may not train on."""

import gzip
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from azr.config import Config, EvalConfig, ExecutorConfig, RolloutConfig, RunConfig
from azr.errors import UserError
from azr.evaluation.answer_file import read_answers
from azr.evaluation.periodic import PeriodicEval
from azr.evaluation.suites.exam import exam_questions
from azr.executor.pool import SandboxPool
from azr.own_data import own_data
from azr.prompts.chat_template import choose_template
from azr.prompts.codec import PromptCodec
from azr.tasks.normalize import fingerprint, held_out_keys
from azr.tasks.prompts import CompactFormat
from tests import chat_tokenizers
from tests.conftest import byte_tokenizer
from tests.evaluation.test_asking import RIGHT, Model
from tests.executor.public_data import file

CODEC = PromptCodec(byte_tokenizer(), CompactFormat())
CONFIG = Config(
    rollout=RolloutConfig(max_prompt_tokens=512, max_response_tokens=77, temperature=0.3),
    executor=ExecutorConfig(workers=1, wall_s=5.0),
)
MBPP = {
    "task_id": "Mbpp/3", "prompt": '"""\nAdd one.\nassert add_one(1) == 2\n"""', "entry_point": "add_one",
    "canonical_solution": "def add_one(number):\n    return number + 1\n", "base_input": [[1]], "plus_input": [[2]],
    "atol": 0, "contract": "", "assertion": "",
}  # fmt: skip
CRUX = {"code": "def f(text):\n    return text * 3", "input": "'a'", "output": "'aaa'", "id": "sample_0"}


def with_eval(**options) -> Config:
    return replace(CONFIG, run=RunConfig(steps=10), eval=EvalConfig(**options))


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder with two suites of one's own: what programs return, and with which inputs they do."""
    for name, asked in (("own", "output"), ("back", "input")):
        (tmp_path / f"{name}.toml").write_text(
            f'name = "{name}"\nfile = "{name}.jsonl"\ngrader = "value"\nasked = "{asked}"\nprompt = "{{code}}"\n'
            '[fields]\nprogram = "code"\n'
        )
        rows = [
            CRUX | {"id": str(i), "code": f"def f(text):\n    return text * {i}  # {name}", "output": repr("a" * i)}
            for i in range(2, 12)
        ]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_evaluations_are_at_the_start_every_few_steps_and_at_the_end():
    periodic = PeriodicEval(with_eval(every=4), CODEC)
    assert [step for step in range(11) if periodic.should_run(step, last=step == 10)] == [0, 4, 8, 10]
    assert not any(PeriodicEval(with_eval(), CODEC).should_run(step, last=step == 10) for step in range(11))
    assert len(periodic.programs) > 600


def test_of_the_exam_as_many_of_each_kind_are_asked_spread_over_the_difficulties():
    periodic = PeriodicEval(with_eval(every=4), CODEC)
    assert Counter(question.group.split("/")[0] for question in periodic.questions) == {
        "deduction": 64, "abduction": 64, "induction": 64,
    }  # fmt: skip
    assert periodic.questions == PeriodicEval(with_eval(every=4), CODEC).questions
    assert Counter(q.group for q in periodic.questions)["deduction/novel"] == pytest.approx(64 * 0.3, abs=1)


def test_a_run_without_an_exam_refuses_no_program():
    periodic = PeriodicEval(with_eval(path=None), CODEC)
    assert not periodic.programs and not periodic.questions
    with pytest.raises(UserError, match=r"eval\.path is none"):
        PeriodicEval(with_eval(path=None, every=1), CODEC)


def test_a_sealed_exam_is_never_asked_and_its_programs_are_refused():
    folder = Path(own_data("exam_worked"))
    periodic = PeriodicEval(with_eval(every=1, path=str(folder), limit=480), CODEC)
    asked, sealed = exam_questions(folder), exam_questions(folder / "sealed")
    assert {question.problem for question in periodic.questions} == {each.gold.program for each in asked}
    for each in (*asked, *sealed):
        near = re.sub(r"\bx\b", "number", re.sub(r"\b3\b", "17", each.gold.program))
        assert any(key in periodic.programs for key in held_out_keys(near)), near


def test_without_a_folder_other_suites_are_left_out_and_this_is_said():
    periodic = PeriodicEval(with_eval(every=1, suites=("exam", "cruxeval-o,mbpp+")), CODEC)
    assert {question.suite for question in periodic.questions} == {"exam"}
    assert periodic.notes == ["not evaluated: cruxeval-o, mbpp+, for eval.data names no folder of their files"]
    assert not PeriodicEval(with_eval(suites=("cruxeval-o",)), CODEC).notes
    assert not PeriodicEval(with_eval(every=1, suites=("cruxeval-o",)), CODEC).should_run(1, last=True)


def test_programs_of_the_suites_are_refused_however_their_function_is_called(tmp_path: Path):
    (tmp_path / "MbppPlus.jsonl").write_text(json.dumps(MBPP) + "\n")
    (tmp_path / "cruxeval.jsonl").write_text(json.dumps(CRUX) + "\n")
    options = {"data": str(tmp_path), "suites": ("mbpp+", "cruxeval-i"), "path": None}
    with pytest.raises(UserError, match="is not the tested file of the suite mbpp"):
        PeriodicEval(with_eval(**options), CODEC)
    (tmp_path / "cruxeval.jsonl").unlink()
    (tmp_path / "MbppPlus.jsonl.gz").write_bytes(gzip.compress((tmp_path / "MbppPlus.jsonl").read_bytes()))
    (tmp_path / "MbppPlus.jsonl").unlink()
    periodic = PeriodicEval(with_eval(**options | {"suites": ("mbpp+",)}), CODEC)
    assert periodic.programs == {fingerprint("def f(a):\n    return a + 1"): "question Mbpp/3 of mbpp+"}


async def test_a_run_gets_metrics_and_answers_of_its_subset(own: Path, ray_cluster: None):
    settings = {"data": str(own), "suites": ("exam", "own", "back"), "limit": 6, "samples": 1}
    periodic = PeriodicEval(with_eval(every=4, **settings), CODEC)
    script = {mark: [right] for mark, right in RIGHT.items()} | {
        "# own": ["<|output|>'aaa'<|end|>"],
        "# back": ["<|input|>'a'<|end|>"],
    }
    async with SandboxPool(CONFIG.executor) as pool:
        found = await periodic.run(Scripted(CODEC, script), pool, 4)
    assert {
        "exam/mean@1",
        "exam/mean@1_low",
        "exam/deduction/greedy",
        "exam/induction/short/mean@1",
    } <= found.metrics.keys()
    assert not any("pass@" in name for name in found.metrics)
    # Six of ten, spread evenly: one of them has the answer that the model always gives.
    assert found.metrics["own/greedy"] == pytest.approx(1 / 6)
    assert found.metrics["back/greedy"] == 1
    path = own / "evaluations" / "step_000004.jsonl.gz"
    found.write(path)
    protocol, answers = read_answers(path)
    assert answers == found.answers and {each.step for each in answers} == {4}
    assert len(answers) == 2 * 18 and set(protocol["suites"]) == {"exam", "own", "back"}


class Scripted(Model):
    """Of several marks in a prompt the last of the script counts."""

    async def generate(self, prompt_ids, **options):
        shown = self._codec.decode(prompt_ids)
        (*_, mark) = (mark for mark in self._texts if mark in shown)
        return await Model(self._codec, {mark: self._texts[mark]}).generate(prompt_ids, **options)


async def test_a_run_may_ask_few_shot(tmp_path: Path):
    tokenizer = chat_tokenizers.chatml()
    folder = chat_tokenizers.save(tokenizer, tmp_path)
    words = PromptCodec.with_template(str(folder), choose_template("conversation", tokenizer))
    name, data = "cruxeval-o:completion", str(file("cruxeval.jsonl").parent)
    config = replace(
        with_eval(every=1, data=data, suites=(name,), limit=3, samples=0, path=None),
        rollout=RolloutConfig(max_prompt_tokens=8192),
    )
    periodic = PeriodicEval(config, words)
    model = Model(words, {"[ANSWER]\nassert f(": [" 0\n"]})
    async with SandboxPool(CONFIG.executor) as pool:
        found = await periodic.run(model, pool, 0)
    assert {f"{name}/greedy", f"{name}/malformed"} <= found.metrics.keys() and found.metrics[f"{name}/malformed"] == 0
    assert model.stop_strings == {("\n",)} and found.protocol["suites"][name]["stop_strings"] == ["\n"]
