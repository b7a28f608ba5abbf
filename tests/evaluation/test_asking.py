"""Scripted answers, the real executor: what a model is asked, by itself and within a run, and what is made of it."""

import gzip
import json
import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from azr.answering import Problem, judged
from azr.config import Config, EvalConfig, ExecutorConfig, RolloutConfig, RunConfig
from azr.errors import UserError
from azr.evaluation.answer_file import read_answers
from azr.evaluation.asking import EvalSet, Sampling, answer_all, prompt_ids, question_problem
from azr.evaluation.periodic import PeriodicEval
from azr.evaluation.suites import SUITES, load_suites
from azr.evaluation.suites.exam import exam_questions
from azr.evaluation.suites.short_answers import COMPLETION, value_question
from azr.executor.pool import SandboxPool
from azr.graders import open_graders
from azr.graders.mathematics import MathGold
from azr.graders.question import TASK, Grader, Question
from azr.graders.value import ProgramValue
from azr.own_data import own_data
from azr.prompts.chat_template import choose_template
from azr.prompts.codec import PromptCodec
from azr.records import Completion, Judgement, Sample, Task
from azr.tasks.base import Verdict
from azr.tasks.normalize import fingerprint, held_out_keys
from azr.tasks.prompts import CompactFormat
from tests import chat_tokenizers
from tests.conftest import byte_tokenizer
from tests.executor.public_data import file
from tests.graders.grading import needs
from tests.mistakes import mistake
from tests.runs import factory

TAGS = PromptCodec(byte_tokenizer(), CompactFormat())
EXECUTOR = ExecutorConfig(workers=1, wall_s=5.0)
SAMPLING = Sampling(samples=4, temperature=0.6, max_tokens=77, seed=3)


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> PromptCodec:
    tokenizer = chat_tokenizers.chatml()
    folder = chat_tokenizers.save(tokenizer, tmp_path_factory.mktemp("words"))
    return PromptCodec.with_template(str(folder), choose_template("conversation", tokenizer))


def exam_task(kind: str) -> Question:
    inputs = ("1", "2", "3", "4") if kind == "induction" else ("1",)
    outputs = tuple(str(int(given) + 1) for given in inputs)
    program = "def f(a):\n    return a + 1"
    task = Task(id=kind, kind=kind, program=program, inputs=inputs, outputs=outputs, fingerprint="", message="add")
    return Question(id=kind, suite="exam", group=f"{kind}/short", message=f"A {kind}?", gold=task)


def crux(asked: str) -> Question:
    gold = ProgramValue("def f(a):\n    return a * 2", asked, "3", "6")  # type: ignore[arg-type]
    return Question(id="0", suite=f"cruxeval-{asked[0]}", group="all", message="What?", gold=gold)


class Model:
    """Gives the texts of a list in turn when it is sampled, and the first one when it is greedy."""

    def __init__(self, codec: PromptCodec, texts: dict[str, list[str]], cut_off: str = "") -> None:
        self._codec, self._texts, self._cut_off = codec, texts, cut_off
        self.calls: Counter[tuple[float, int, int]] = Counter()
        self.seeds: set[int | None] = set()
        self.stop_strings: set[tuple[str, ...]] = set()

    async def generate(self, prompt_ids, *, n, max_tokens, temperature, seed=None, stop_strings=()):
        self.calls[temperature, n, max_tokens] += 1
        self.seeds.add(seed)
        self.stop_strings.add(stop_strings)
        shown = self._codec.decode(prompt_ids)
        (texts,) = (texts for mark, texts in self._texts.items() if mark in shown)
        return [self._completion(prompt_ids, text) for text in texts[:n]]

    def _completion(self, prompt_ids, text: str) -> Completion:
        reason = "length" if text == self._cut_off else "stop"
        return factory.completion(self._codec.encode(text), prompt_ids, finish=reason)


async def ask(
    codec: PromptCodec, model: Model, questions: list[Question], sampling: Sampling = SAMPLING
) -> list[Sample]:
    pool = partial(SandboxPool, EXECUTOR)
    names = {question.suite: SUITES[question.suite].grader for question in questions}
    found: list[Sample] = []
    async with open_graders(names.values(), answers=pool, tasks=pool) as graders:
        problems = [problem(codec, question, graders[names[question.suite]]) for question in questions]
        await answer_all(problems, sampling, generate=model.generate, codec=codec, step=4, done=found.extend)
    order = {(question.suite, question.id): i for i, question in enumerate(questions)}
    return sorted(found, key=lambda answer: order[answer.kind, answer.problem_id])


def problem(codec: PromptCodec, question: Question, grader: Grader) -> Problem:
    return question_problem(question, prompt_ids(codec, question), codec, grader)


def verdicts(answers: list[Sample]) -> list[str]:
    return [answer.verdict for answer in answers]


RIGHT = {
    "<|deduction|>": "<|output|>2<|end|>", "<|abduction|>": "<|input|>1<|end|>",
    "<|induction|>": "<|program|>def f(b):\n    return 1 + b<|end|>",
}  # fmt: skip


async def test_every_question_is_asked_greedily_and_by_samples_and_graded_by_running():
    script = {mark: [right, "<|output|>9<|end|>", "never ends", right] for mark, right in RIGHT.items()}
    model = Model(TAGS, script, cut_off="never ends")
    answers = await ask(TAGS, model, [exam_task(kind) for kind in ("deduction", "abduction", "induction")])
    right, malformed = Verdict.RIGHT, Verdict.MALFORMED
    for number, mark in enumerate(RIGHT):
        of_kind = answers[5 * number : 5 * number + 5]
        second = Verdict.WRONG if mark == "<|deduction|>" else malformed
        assert verdicts(of_kind) == [right, right, second, malformed, right]
        assert [answer.index for answer in of_kind] == [None, 0, 1, 2, 3]
        assert [answer.finish_reason for answer in of_kind] == ["stop", "stop", "stop", "length", "stop"]
        assert mark in of_kind[0].prompt and of_kind[3].response == "never ends" and of_kind[3].response_tokens == 10
        assert {(answer.step, answer.used, answer.reward) for answer in of_kind} == {(4, "recorded", None)}
    assert model.calls == {(0.0, 1, 77): 3, (0.6, 4, 77): 3} and len(model.seeds) == 3


async def test_a_question_with_an_opened_answer_is_continued_and_words_are_asked_by_the_template(words: PromptCodec):
    needs("math_verify")
    question = Question(id="1", suite="math500", group="all", message="1 + 1?", gold=MathGold(("2",)))
    texts = ["Two.</think> <answer>\\boxed{2}</answer>", "\\boxed{3}", "\\boxed{2}", "no idea"]
    model = Model(words, {"User: 1 + 1?": texts}, cut_off="\\boxed{2}")
    answers = await ask(words, model, [question])
    assert verdicts(answers)[:3] == [Verdict.RIGHT, Verdict.RIGHT, Verdict.WRONG]
    # An answer that was cut off after its box states it all the same.
    assert answers[3].verdict == Verdict.RIGHT and answers[3].finish_reason == "length"
    assert answers[4].verdict == Verdict.MALFORMED
    assert [answers[at].judgement.detail for at in (0, 2)] == ["", "a right answer is 2"]
    assert answers[0].prompt.endswith("User: 1 + 1?\nAssistant: <think>")
    question = value_question("cruxeval-o:completion", "0", "all", crux("output").gold, COMPLETION)
    model = Model(words, {"assert f(3) ==": [" 6\n", " 7\n", " f(3)\n", ""]})
    answers = await ask(words, model, [question])
    assert verdicts(answers) == [Verdict.RIGHT, Verdict.RIGHT, Verdict.WRONG, Verdict.MALFORMED, Verdict.MALFORMED]
    assert answers[2].judgement.detail == "a right answer is 6"
    assert answers[0].prompt == question.message and "Assistant" not in answers[0].prompt
    assert model.stop_strings == {("\n",)} and answers[0].judgement.answer == (("answer", "6"),)
    with pytest.raises(UserError, match="cruxeval-o:completion asks in words"):
        prompt_ids(TAGS, question)


async def test_a_model_of_tags_answers_by_tags_and_what_an_engine_gave_up_is_ungraded():
    none = Sampling(samples=0, temperature=1.0, max_tokens=9, seed=1)
    for deduced, abduced, stated in (
        ("<|output|>6", "<|input|>3", [(("answer", "6"),), (("answer", "3"),)]),
        ("<|input|>6", "<|input|>3<|input|>3", [None, None]),
    ):
        model = Model(TAGS, {"<|deduction|>": [f"{deduced}<|end|>"], "<|abduction|>": [f"{abduced}<|end|>"]})
        answers = await ask(TAGS, model, [crux("output"), crux("input")], none)
        assert verdicts(answers) == [Verdict.RIGHT if stated[0] else Verdict.MALFORMED] * 2
        assert [a.judgement.answer for a in answers] == stated
    answers = await ask(TAGS, Model(TAGS, {"<|deduction|>": ["<|output|>6<|end|>"] * 2}), [crux("output")])
    assert verdicts(answers) == [Verdict.RIGHT] * 3 + [Verdict.UNGRADED] * 2
    assert [answer.index for answer in answers] == [None, 0, 1, 2, 3]
    last = answers[-1]
    assert (last.finish_reason, last.response, last.response_tokens, last.used) == ("given_up", "", 0, "ungraded")


async def test_a_grader_that_fails_ends_the_evaluation_as_itself():
    class Broken:
        async def grade(self, question: Question, response: str) -> Judgement:
            raise OSError("the disk is gone")

    model = Model(TAGS, {"<|deduction|>": ["<|output|>6<|end|>"] * 4})
    problems = [problem(TAGS, crux("output"), Broken())] * 3
    with pytest.raises(OSError, match="the disk is gone"):
        await answer_all(problems, SAMPLING, generate=model.generate, codec=TAGS, step=0, done=lambda answers: None)


@pytest.mark.parametrize("error", [ValueError("digits"), RecursionError("too deep"), OverflowError("too large")])
async def test_a_text_that_a_grader_fails_over_is_malformed_with_its_question_in_the_log(error, caplog):
    async def grade(question: Question, response: str) -> Judgement:
        raise error

    asked = problem(TAGS, crux("output"), SimpleNamespace(grade=grade))
    said = await judged(asked, factory.completion(TAGS.encode("<|output|>6<|end|>")))
    assert (said.verdict, said.judgement.reason, said.accuracy) == (Verdict.MALFORMED, "grader_failed", 0.0)
    assert "0 of cruxeval-o" in caplog.text and str(error) in caplog.text


async def test_only_the_executors_that_the_graders_need_are_started():
    def refuse() -> nullcontext:
        raise AssertionError("nobody needs it")

    async with open_graders([SUITES["arc-c"].grader], tasks=refuse, answers=refuse) as graders:
        assert set(graders) == {"choice"}
    tasks = SimpleNamespace(execute=None)
    async with open_graders([TASK], tasks=lambda: nullcontext(tasks), answers=refuse) as graders:
        assert set(graders) == {TASK}


async def test_grader_and_tool_share_one_executor(words: PromptCodec, own: Path):
    started, pool = Counter[str](), SimpleNamespace(execute=None)
    config = Config(rollout=RolloutConfig(tools="python"))
    asked = EvalSet(suites=load_suites(["own"], own), codec=words, config=config, sampling=SAMPLING, ks=())
    for _ in range(2):
        opened = asked.opened(asked.questions, answers=lambda: started.update("p") or nullcontext(pool), tasks=None)
        async with opened as problem:
            assert problem(asked.questions[0]).id == asked.questions[0].id
    assert started == {"p": 2}


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


def test_evaluations_are_every_few_steps_and_of_as_many_questions_of_each_kind():
    periodic = PeriodicEval(with_eval(every=4), TAGS)
    assert [step for step in range(11) if periodic.should_run(step, last=step == 10)] == [0, 4, 8, 10]
    assert not any(PeriodicEval(with_eval(), TAGS).should_run(step, last=step == 10) for step in range(11))
    assert len(periodic.programs) > 600
    # Of the exam as many of each kind are asked, spread over the difficulties.
    assert Counter(question.group.split("/")[0] for question in periodic.asked.questions) == {
        "deduction": 64, "abduction": 64, "induction": 64,
    }  # fmt: skip
    assert periodic.asked.questions == PeriodicEval(with_eval(every=4), TAGS).asked.questions
    assert Counter(q.group for q in periodic.asked.questions)["deduction/novel"] == pytest.approx(64 * 0.3, abs=1)
    periodic = PeriodicEval(with_eval(path=None), TAGS)
    assert not periodic.programs and not periodic.asked.questions
    with mistake("eval.every", "eval.path", "eval.suites"):
        PeriodicEval(with_eval(path=None, every=1), TAGS)


def test_a_sealed_exam_is_never_asked_and_its_programs_are_refused():
    folder = Path(own_data("exam_worked"))
    periodic = PeriodicEval(with_eval(every=1, path=str(folder), limit=480), TAGS)
    asked, sealed = exam_questions(folder), exam_questions(folder / "sealed")
    assert {question.problem for question in periodic.asked.questions} == {each.gold.program for each in asked}
    for each in (*asked, *sealed):
        near = re.sub(r"\bx\b", "number", re.sub(r"\b3\b", "17", each.gold.program))
        assert any(key in periodic.programs for key in held_out_keys(near)), near


def test_suites_without_a_folder_are_left_out_and_programs_of_the_others_refused(tmp_path: Path):
    periodic = PeriodicEval(with_eval(every=1, suites=("exam", "cruxeval-o,mbpp+")), TAGS)
    assert {question.suite for question in periodic.asked.questions} == {"exam"}
    said = "neither evaluated nor held out: {}, for eval.data names no folder of their files"
    assert periodic.notes == [said.format("cruxeval-o, mbpp+")]
    with pytest.raises(UserError, match="There is no folder /nope"):
        PeriodicEval(with_eval(every=1, suites=("exam", "algebra"), data="/nope"), TAGS)
    assert PeriodicEval(with_eval(suites=("cruxeval-o",)), TAGS).notes == [said.format("cruxeval-o")]
    assert not PeriodicEval(with_eval(), TAGS).notes
    assert not PeriodicEval(with_eval(every=1, suites=("cruxeval-o",)), TAGS).should_run(1, last=True)
    (tmp_path / "MbppPlus.jsonl").write_text(json.dumps(MBPP) + "\n")
    (tmp_path / "cruxeval.jsonl").write_text(json.dumps(CRUX) + "\n")
    options = {"data": str(tmp_path), "suites": ("mbpp+", "cruxeval-i"), "path": None}
    with pytest.raises(UserError, match="is not the tested file of the suite mbpp"):
        PeriodicEval(with_eval(**options), TAGS)
    (tmp_path / "cruxeval.jsonl").unlink()
    (tmp_path / "MbppPlus.jsonl.gz").write_bytes(gzip.compress((tmp_path / "MbppPlus.jsonl").read_bytes()))
    (tmp_path / "MbppPlus.jsonl").unlink()
    periodic = PeriodicEval(with_eval(**options | {"suites": ("mbpp+",)}), TAGS)
    assert periodic.programs == {fingerprint("def f(a):\n    return a + 1"): "question Mbpp/3 of mbpp+"}


async def test_a_run_gets_metrics_and_answers_of_its_subset(own: Path, ray_cluster: None):
    settings = {"data": str(own), "suites": ("exam", "own", "back"), "limit": 6, "samples": 1}
    periodic = PeriodicEval(with_eval(every=4, **settings), TAGS)
    script = {mark: [right] for mark, right in RIGHT.items()} | {
        "# own": ["<|output|>'aaa'<|end|>"],
        "# back": ["<|input|>'a'<|end|>"],
    }
    async with SandboxPool(CONFIG.executor) as pool:
        found = await periodic.run(Scripted(TAGS, script).generate, pool, 4)
    wanted = {"exam/mean@1", "exam/mean@1_low", "exam/deduction/greedy", "exam/induction/short/mean@1"}
    assert wanted <= found.metrics.keys()
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


async def test_a_run_may_ask_few_shot(words: PromptCodec):
    name, data = "cruxeval-o:completion", str(file("cruxeval.jsonl").parent)
    config = replace(
        with_eval(every=1, data=data, suites=(name,), limit=3, samples=0, path=None),
        rollout=RolloutConfig(max_prompt_tokens=8192),
    )
    periodic = PeriodicEval(config, words)
    model = Model(words, {"[ANSWER]\nassert f(": [" 0\n"]})
    async with SandboxPool(CONFIG.executor) as pool:
        found = await periodic.run(model.generate, pool, 0)
    assert {f"{name}/greedy", f"{name}/malformed"} <= found.metrics.keys() and found.metrics[f"{name}/malformed"] == 0
    assert model.stop_strings == {("\n",)} and found.protocol["suites"][name]["stop_strings"] == ["\n"]
