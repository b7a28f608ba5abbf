"""Which model is meant, and how it is asked."""

from dataclasses import replace
from pathlib import Path

import pytest

from azr.errors import UserError
from azr.evaluation.asking import prompt_ids
from azr.evaluation.suites import to_be_continued
from azr.graders.question import Question
from azr.own_data import own_data
from azr.records import Stops
from azr.runs.asked_model import open_model
from azr.runs.run_dir import PromptForm
from azr.tasks.registry import KINDS
from tests import chat_tokenizers
from tests.runs.factory import completion
from tests.tiny_models import save_run, save_tiny

BRACKETS = "{% for message in messages %}[{{ message['content'] }}]{% endfor %}"


def model(folder: Path, *, instruct: bool = False) -> Path:
    return save_tiny(folder, "qwen2", chat_tokenizers.chatml(instruct=instruct))


def asked(place: Path, template: str = "train", step: int | None = None) -> str:
    codec = open_model(str(place), step, template).codec
    return codec.decode(codec.ask("Hi"))


@pytest.mark.parametrize(("prompt_format", "opened"), [("completion", "output"), ("worked", "trace")])
def test_a_run_that_continues_examples_asks_tasks_by_them_and_all_else_by_its_template(prompt_format, opened, tmp_path):
    form = PromptForm(BRACKETS, Stops(("\nExercise ",), (256,)))
    run = save_run(tmp_path, 2, form=form, prompt_format=prompt_format)
    codec, task = open_model(str(run.path)).codec, KINDS["deduction"].seed()
    exam = Question(id="1", suite="exam", group="deduction", message="in words", gold=task)
    assert codec.decode(prompt_ids(codec, exam)).endswith(f"'Hello world'\n```\n```{opened}\n")
    assert codec.decode(prompt_ids(codec, replace(exam, gold="4"))) == "[in words]"
    assert asked(run.path, "conversation").endswith("Assistant: <think>")


def test_a_model_without_a_template_is_asked_by_examples_unless_told_otherwise(tmp_path: Path):
    place = str(save_tiny(tmp_path, "qwen2", chat_tokenizers.plain()))
    assert open_model(place).codec.continues_examples
    assert not open_model(place, template="conversation").codec.continues_examples
    for form in ("completion", "worked"):
        assert to_be_continued(("cruxeval-o", "exam", "gsm8k"), form) == (f"cruxeval-o:{form}", "exam", "gsm8k")


def test_a_run_is_asked_as_it_was_trained_and_each_template_in_its_own_way(tmp_path: Path):
    base = model(tmp_path / "base")
    (tmp_path / "own.jinja").write_text(BRACKETS)
    assert asked(base) == asked(base, "conversation")
    assert asked(base).endswith("\n\nUser: Hi\nAssistant: <think>")
    assert asked(base, "tokenizer") == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert asked(base, str(tmp_path / "own.jinja")) == "[Hi]"
    stops = {name: open_model(str(base), template=name).codec.stops for name in ("train", "tokenizer")}
    ends = open_model(str(base)).codec
    assert stops["train"].strings == ("</answer>",) and stops["tokenizer"].strings == ()
    assert sorted(map(ends.decode, ([end] for end in stops["tokenizer"].token_ids))) == ["<|endoftext|>", "<|im_end|>"]
    run = save_run(tmp_path, 2, 10, form=PromptForm(BRACKETS, Stops(("END",), (256,))))
    opened = open_model(str(run.path))
    assert (opened.step, opened.label, opened.context) == (10, "run step 10", 1024)
    assert opened.config is not None and opened.config.model.path == str(tmp_path / "base")
    assert asked(run.path) == "[Hi]" and opened.codec.stops == Stops(("END",), (256,))
    checkpoint = run.path / "checkpoints" / "step_000002"
    (checkpoint / "config.yaml").write_text(run.config.read_text())
    named = open_model(str(checkpoint))
    assert (named.step, named.place) == (2, str(run.path)), "a run's step by its checkpoint's folder"
    assert asked(run.path, "tokenizer", step=2).startswith("<|im_start|>user")
    with pytest.raises(UserError, match="there are steps 2 and 10"):
        open_model(str(run.path), 3)


def test_tags_have_no_template_and_a_compact_model_may_work_its_answer_out(tiny_model_path: Path):
    opened = open_model(str(tiny_model_path))
    assert opened.codec.template is None and opened.step is None and opened.config is None
    worked = "x = len(x)\n4\nreturn x + 6\n<|output|>10<|end|>"
    for name in ("azr_14m_worked", "azr_14m_base"):
        codec = open_model(own_data(name)).codec
        ids = codec.encode(worked)
        sections = codec.parse_response(completion(ids))
        assert sections is not None and [(each.label, each.text) for each in sections] == [("output", "10")]
