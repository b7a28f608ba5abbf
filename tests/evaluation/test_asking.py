"""Scripted answers, the real executor: what a model is asked, and what is made of its answers."""

from collections import Counter
from contextlib import nullcontext
from functools import partial

import pytest

from azr.answering import Problem
from azr.config import ExecutorConfig
from azr.errors import UserError
from azr.evaluation.asking import Sampling, answer_all, prompt_ids, question_problem
from azr.evaluation.graders import open_graders
from azr.evaluation.graders.maths import MathGold
from azr.evaluation.graders.value import ProgramValue
from azr.evaluation.question import TASK, Grader, Question
from azr.evaluation.suites import SUITES
from azr.evaluation.suites.short_answers import COMPLETION, value_question
from azr.executor.pool import SandboxPool
from azr.prompts.chat_template import choose_template
from azr.prompts.codec import PromptCodec
from azr.records import Completion, FinishReason, Judgement, Sample, Task
from azr.tasks.base import Verdict
from azr.tasks.prompts import CompactFormat
from tests import chat_tokenizers
from tests.conftest import byte_tokenizer
from tests.evaluation.grading import needs
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
        reason = FinishReason.LENGTH if text == self._cut_off else FinishReason.STOP
        return factory.completion(self._codec.encode(text), prompt_ids, finish=reason)


async def ask(
    codec: PromptCodec, model: Model, questions: list[Question], sampling: Sampling = SAMPLING
) -> list[Sample]:
    pool = partial(SandboxPool, EXECUTOR)
    names = {question.suite: SUITES[question.suite].grader for question in questions}
    found: list[Sample] = []
    async with open_graders(names.values(), answers=pool, tasks=pool) as graders:
        problems = [problem(codec, question, graders[names[question.suite]]) for question in questions]
        await answer_all(problems, sampling, sampler=model, codec=codec, step=4, done=found.extend)
    order = {(question.suite, question.id): i for i, question in enumerate(questions)}
    return sorted(found, key=lambda answer: order[answer.kind, answer.problem_id])


def problem(codec: PromptCodec, question: Question, grader: Grader) -> Problem:
    return question_problem(question, prompt_ids(codec, question), codec, grader)


def verdicts(answers: list[Sample]) -> list[str]:
    return [answer.verdict for answer in answers]


RIGHT = {
    "<|deduction|>": "<|output|>2<|end|>",
    "<|abduction|>": "<|input|>1<|end|>",
    "<|induction|>": "<|program|>def f(b):\n    return 1 + b<|end|>",
}


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


async def test_a_model_of_tags_answers_questions_about_programs_by_tags():
    script = {"<|deduction|>": ["<|output|>6<|end|>"], "<|abduction|>": ["<|input|>3<|end|>"]}
    none = Sampling(samples=0, temperature=1.0, max_tokens=9, seed=1)
    answers = await ask(TAGS, Model(TAGS, script), [crux("output"), crux("input")], none)
    assert verdicts(answers) == [Verdict.RIGHT, Verdict.RIGHT]
    assert [a.judgement.answer for a in answers] == [(("answer", "6"),), (("answer", "3"),)]
    script = {"<|deduction|>": ["<|input|>6<|end|>"], "<|abduction|>": ["<|input|>3<|input|>3<|end|>"]}
    answers = await ask(TAGS, Model(TAGS, script), [crux("output"), crux("input")], none)
    assert verdicts(answers) == [Verdict.MALFORMED, Verdict.MALFORMED]


async def test_words_are_asked_by_the_template_and_the_last_answer_counts(words: PromptCodec):
    needs("math_verify")
    question = Question(id="1", suite="math500", group="all", message="1 + 1?", gold=MathGold(("2",)))
    texts = ["Two.</think> <answer>\\boxed{2}</answer>", "\\boxed{3}", "\\boxed{2}", "no idea"]
    model = Model(words, {"User: 1 + 1?": texts}, cut_off="\\boxed{2}")
    answers = await ask(words, model, [question])
    assert verdicts(answers)[:3] == [Verdict.RIGHT, Verdict.RIGHT, Verdict.WRONG]
    # An answer that was cut off after its box states it all the same.
    assert answers[3].verdict == Verdict.RIGHT and answers[3].finish_reason is FinishReason.LENGTH
    assert answers[4].verdict == Verdict.MALFORMED
    assert [answers[at].judgement.detail for at in (0, 2)] == ["", "a right answer is 2"]
    assert answers[0].prompt.endswith("User: 1 + 1?\nAssistant: <think>")


async def test_a_question_with_an_opened_answer_is_continued_as_it_is(words: PromptCodec):
    question = value_question("cruxeval-o:completion", "0", "all", crux("output").gold, COMPLETION)
    model = Model(words, {"assert f(3) ==": [" 6\n", " 7\n", " f(3)\n", ""]})
    answers = await ask(words, model, [question])
    assert verdicts(answers) == [Verdict.RIGHT, Verdict.RIGHT, Verdict.WRONG, Verdict.MALFORMED, Verdict.MALFORMED]
    assert answers[2].judgement.detail == "a right answer is 6"
    assert answers[0].prompt == question.message and "Assistant" not in answers[0].prompt
    assert model.stop_strings == {("\n",)} and answers[0].judgement.answer == (("answer", "6"),)
    with pytest.raises(UserError, match="cruxeval-o:completion needs a model that reads words"):
        prompt_ids(TAGS, question)


async def test_what_an_engine_gave_up_is_ungraded():
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
        await answer_all(problems, SAMPLING, sampler=model, codec=TAGS, step=0, done=lambda answers: None)


async def test_only_the_executors_that_the_graders_need_are_started():
    def refuse() -> nullcontext:
        raise AssertionError("nobody needs it")

    async with open_graders([SUITES["arc-c"].grader], tasks=refuse, answers=refuse) as graders:
        assert set(graders) == {"choice"}
    async with open_graders([TASK], tasks=lambda: nullcontext(object()), answers=refuse) as graders:
        assert set(graders) == {TASK}
