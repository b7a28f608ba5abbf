"""A grader of the user's own: what it says counts, and what goes wrong in it costs its own answers only."""

import json
import logging
import re
import sys
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from azr import isolated
from azr.config import DataConfig
from azr.datasets.choice import load_rows
from azr.datasets.rows import grader_names, read_rows
from azr.errors import UserError
from azr.evaluation.periodic import AnswerExecutor
from azr.evaluation.suites.own import read_declaration
from azr.graders import open_graders
from azr.graders.own import OwnGrader, checked, load_grader, try_grader
from azr.graders.question import Question
from azr.tasks.base import Verdict
from tests.datasets.test_play import codec as codec
from tests.datasets.test_play import config as config
from tests.datasets.test_rows import write
from tests.mistakes import mistake

ROOT = Path(__file__).parents[2]
GRADERS = """
import os, time

def grade(row, response):
    print("said where verdicts are written")
    return response == row["answer"]

def trouble(row, response):
    while response == "hang": pass
    if response == "die": os._exit(1)
    if response in ("number", "right"): return 1.5 if response == "number" else True
    raise ValueError(response)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of a module of graders in the working directory."""
    name = f"graders_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(GRADERS)
    (tmp_path / f"{name}_broken.py").write_text("raise RuntimeError('no such thing')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def question(**fields: object) -> Question:
    return Question(id="1", suite="s", group="s", message="?", gold=fields)


def test_the_example_for_verifiers_asks_the_python_that_is_named(tmp_path, monkeypatch):
    other = tmp_path / "python"
    lines = ("print('ready', flush=True)", "while True: print(input().count('x'), flush=True)")
    other.write_text("\n".join((f"#!{sys.executable}", *lines)))
    other.chmod(0o755)
    monkeypatch.setenv("VERIFIERS_PYTHON", str(other))
    asked = {"row": {"task": 3}, "prompt": [], "response": "xx"}
    said = isolated.ask_once("it", "azr.graders.own", ("examples.verifiers_tasks:reward",), asked)
    assert said == {"score": 2.0, "parts": {}}


async def test_what_goes_wrong_is_ungraded_and_named_once(module, monkeypatch, caplog):
    monkeypatch.setattr(isolated, "TIME_LIMIT_S", 4.0)
    with caplog.at_level(logging.WARNING):
        async with OwnGrader(f"{module}:trouble", workers=1) as grader:
            for text in ("raise", "raise", "number", "hang", "die"):
                failed = await grader.grade(question(), text)
                assert (failed.verdict, failed.reason) == (Verdict.UNGRADED, "grader_failed")
                assert failed.detail.startswith(f"the grader {module}:trouble "), "and says what went wrong"
                assert (await grader.grade(question(), "right")).verdict is Verdict.RIGHT, "the next one is graded"
    # asyncio may say of a process that died and was killed that it does not know how it ended.
    said = [record.getMessage() for record in caplog.records if record.name == isolated.__name__]
    assert len(said) == 3 and all(f"the grader {module}:trouble " in each for each in said)
    assert "raised ValueError: raise;" in said[0]
    assert "returned 1.5, which is none of True, False, None and a number" in said[1]
    assert "took over 4 s, or ended its process" in said[2]


SCORES = """
import decimal, numpy

def grade(row, response):
    return eval(response)
"""


async def test_a_number_is_a_score_and_a_dict_adds_named_parts(module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}_scores.py").write_text(SCORES)
    wanted = {
        "True": (Verdict.RIGHT, None, {}), "False": (Verdict.WRONG, None, {}), "None": (Verdict.MALFORMED, None, {}),
        "0.25": (Verdict.WRONG, 0.25, {}), "1": (Verdict.RIGHT, 1.0, {}),
        "numpy.float32(0.5)": (Verdict.WRONG, 0.5, {}), "numpy.isclose(1, 2)": (Verdict.WRONG, None, {}),
        "numpy.bool_(True)": (Verdict.RIGHT, None, {}), "numpy.array(0.5)": (Verdict.WRONG, 0.5, {}),
        "numpy.int8(1)": (Verdict.RIGHT, 1.0, {}), "decimal.Decimal('0.5')": (Verdict.WRONG, 0.5, {}),
        "{'score': 1, 'short': numpy.False_}": (Verdict.RIGHT, 1.0, {"short": False}),
        "{'score': 0.5, 'style': 1, 'short': True}": (Verdict.WRONG, 0.5, {"style": 1.0, "short": True}),
        "{'score': True, 'length': -30.5}": (Verdict.RIGHT, None, {"length": -30.5}),
        "{'score': None, 'length': 3}": (Verdict.MALFORMED, None, {"length": 3.0}),
    }  # fmt: skip
    async with OwnGrader(f"{module}_scores:grade") as grader:
        for text, (verdict, score, parts) in wanted.items():
            said = await grader.grade(question(), text)
            assert (said.verdict, said.score, said.parts) == (verdict, score, parts), text
            assert (said.reason == "no_answer") == (verdict is Verdict.MALFORMED)


NUMBER = "which is none of True, False, None and a number from 0 to 1"


@pytest.mark.parametrize("returned, said", [
    (float("nan"), f"nan, {NUMBER}"), (1.0000001, f"1.0000001, {NUMBER}"), (-0.1, f"-0.1, {NUMBER}"),
    (Decimal("sNaN"), f"inf, {NUMBER}"), (np.array([1.0]), f"array([1.]), {NUMBER}"), (np.str_("1"), f"'1', {NUMBER}"),
    (10**400, f"inf, {NUMBER}"), ("0.5", f"'0.5', {NUMBER}"), ((0.5, {}), f"(0.5, {{}}), {NUMBER}"),
    ({"style": 1}, "a dict without 'score', which must be"), ({"score": "1"}, f"score '1', {NUMBER}"),
    ({"score": 1, "style": "good"}, "the part style 'good', which is neither a bool nor a finite number"),
    ({"score": 1, "style": float("inf")}, "the part style inf, which is neither a bool"),
    ({"score": 1, "a/b": 1}, "a part named 'a/b', which must be up to 40"), ({"score": 1, 2: 1}, "a part named 2, "),
    ({"score": 1} | {f"p{n}": 1 for n in range(17)}, "17 parts, and at most 16 are logged"),
])  # fmt: skip
def test_what_a_function_must_not_return_is_one_sentence(returned: object, said: str) -> None:
    for form, given in (("trl", 1.0), ("trl", [1.0, 2.0]), ("trl", ["1"]), ("verl", float("nan")), ("verl", {"a": 1})):
        with pytest.raises(isolated.InvalidReply, match=r"list of one reward|neither a finite|without 'score'"):
            checked(given, form)
    with pytest.raises(isolated.InvalidReply) as caught:
        checked(returned)
    assert str(caught.value).startswith(said) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name, says", [
    ("{module}:grad", "has no function 'grad'; did you mean grade?"),
    ("{module}_broken:grade", "cannot be imported: RuntimeError: no such thing."),
    ("no_such_module_anywhere:grade", "cannot be imported: ModuleNotFoundError: No module named"),
])  # fmt: skip
def test_one_that_is_not_there_is_one_sentence(module, name, says, capsys):
    with mistake(says=says):
        load_grader(name.format(module=module))
    assert ("Traceback" in capsys.readouterr().err) == ("broken" in name), "a traceback where it is the module's own"


FAILING = """
import os
one = lambda response: True
text = lambda row, response: "right"
field = lambda row, response: row["gone"] == response
end = lambda row, response: os._exit(1)
def hang(row, response):
    while True: pass
"""


@pytest.mark.parametrize("name, says", [
    ("one", "raised TypeError: <lambda>() takes 1 positional argument but 2 were given for its first row and the"),
    ("text", f"returned 'right', {NUMBER} for its first row"), ("field", "raised KeyError: 'gone' for its first row"),
    ("end", "took over 2 s, or ended its process for"), ("hang", "took over 2 s, or ended its process for"),
])  # fmt: skip
def test_one_that_fails_is_named_before_a_run(module, name, says, config, codec, tmp_path, monkeypatch):
    monkeypatch.setattr(isolated, "TIME_LIMIT_S", 2.0)
    (tmp_path / f"{module}_failing.py").write_text(FAILING)
    row = {"prompt": "2 + 2?", "grader": f"{module}_failing:{name}", "answer": "4"}
    with mistake(says=f"The grader {module}_failing:{name} {says}"):
        load_rows(replace(config, data=DataConfig(path=str(write(tmp_path / "rows.jsonl", row)))), codec)


async def test_a_module_that_works_in_no_process_of_its_own_is_one_sentence(module: str, tmp_path: Path) -> None:
    text = "import sys\nassert 'pytest' in sys.modules\ndef grade(row, response): return True\n"
    (tmp_path / f"{module}_needy.py").write_text(text)
    with pytest.raises(UserError, match=f"The grader {module}_needy:grade does not start in its own process"):
        async with OwnGrader(f"{module}_needy:grade"):
            pass
    with pytest.raises(UserError, match=f"The grader {module}_needy:grade does not start in its own process"):
        try_grader(f"{module}_needy:grade", Question(id="q", suite="s", group="", message="?", gold={}))


async def test_rows_and_suites_name_it_and_it_gets_all_their_fields(module, config, codec, tmp_path):
    row = {"prompt": "2 + 2?", "grader": f"{module}:grade", "answer": "4", "more": {"of": [1]}, "hint": None}
    config = replace(config, data=DataConfig(path=str(write(tmp_path / "rows.jsonl", row))))
    rows, _ = load_rows(config, codec)
    assert rows[0].question.gold == row
    async with open_graders(grader_names(rows), answers=partial(AnswerExecutor, config)) as graders:
        assert (await graders[f"{module}:grade"].grade(rows[0].question, "4")).verdict is Verdict.RIGHT
    write(tmp_path / "rows.jsonl", {**row, "grader": f"{module}:grad"})
    with pytest.raises(UserError, match="did you mean grade"):
        load_rows(config, codec)
    write(tmp_path / "mine.jsonl", {"q": "2 + 2?", "answer": "4"})
    stated = f'name = "mine"\nfile = "mine.jsonl"\ngrader = "{module}:grade"\nprompt = "{{q}}"\n'
    (tmp_path / "mine.toml").write_text(stated)
    suite = read_declaration(tmp_path / "mine.toml")
    (asked,) = suite.read(tmp_path)
    assert asked.message == "2 + 2?" and asked.gold == {"q": "2 + 2?", "answer": "4"}
    (tmp_path / "mine.toml").write_text(stated.replace(f"{module}:grade", "maths"))
    with pytest.raises(UserError, match=r"declares no suite: the grader 'maths' is none of value, calls"):
        read_declaration(tmp_path / "mine.toml")


async def test_the_example_of_the_docs_is_the_file_and_grades() -> None:
    shown = (ROOT / "docs" / "extending.md").read_text()
    code, *_ = re.findall(r"```python\n(.*?)```", shown, re.DOTALL)
    assert (ROOT / "examples" / "near_enough.py").read_text().endswith(code)
    (line,) = re.findall(r"```json\n(.*?)```", shown, re.DOTALL)
    rows = read_rows(ROOT / "examples" / "near_enough.jsonl")
    assert json.loads(line) in [row.question.gold for row in rows]
    async with OwnGrader(rows[0].graders[0].name) as grader:
        answers = ("It is 40,000 or so: 40000", "30000", "far")
        said = [(await grader.grade(rows[0].question, text)).verdict for text in answers]
    assert said == [Verdict.RIGHT, Verdict.WRONG, Verdict.MALFORMED]
