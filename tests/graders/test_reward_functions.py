"""Reward functions and rows as TRL and verl document them: a reward here is what the function returns to its project.

Responses are traces of the rows, so that nothing stands in for a model.
"""

import asyncio
import importlib
import inspect
import sys
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from azr.config import DataConfig
from azr.datasets.choice import load_rows
from azr.datasets.play import DataPlay
from azr.datasets.rows import grader_names
from azr.errors import UserError
from azr.evaluation.periodic import AnswerExecutor
from azr.graders import open_graders
from azr.records import Sample
from tests.datasets.test_play import codec as codec
from tests.datasets.test_play import config as config
from tests.datasets.test_play import order_of
from tests.runs.factory import completion

MODULE = "reward_functions_of_others"
SAID = ("It is \\boxed{24}", "First I halve. It is 24", "Half of 48 is 23, \\boxed{23}")
TEXTS: list[dict[str, Any]] = [
    {"prompt": "Half of 48?", "ground_truth": "24", "task": "sum"},
    {"prompt": "Write a poem about 24.", "ground_truth": "24", "task": "poem"},
]
TURNS = [row | {"prompt": [{"role": "user", "content": row["prompt"]}]} for row in TEXTS]
VERL: list[dict[str, Any]] = [
    {
        "data_source": "any/sums", "prompt": row["prompt"], "ability": "math", "extra_info": {"index": i},
        "reward_model": {"style": "rule", "ground_truth": "24"},
    }
    for i, row in enumerate(TURNS)
]  # fmt: skip


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The functions, of a module in the working directory."""
    (tmp_path / f"{MODULE}.py").write_text(Path(__file__).with_name("reward_functions.txt").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return importlib.import_module(MODULE)


def as_trl_calls(function: Any, rows: list[dict[str, Any]], said: str) -> list[float | None]:
    """Return rewards of one response to all rows, in a batch."""
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    answers = [said if isinstance(row["prompt"], str) else [{"role": "assistant", "content": said}] for row in rows]
    given = {"prompts": columns.pop("prompt"), "completions": answers, **columns}
    if function.__name__ == "few_columns":
        given = {name: given[name] for name in ("completions", "ground_truth")}
    returned = function(**given)
    return list(asyncio.run(returned) if inspect.isawaitable(returned) else returned)


def as_verl_calls(function: Any, rows: list[dict[str, Any]], said: str) -> list[float]:
    rewards = []
    for row in rows:
        truth, about = row["reward_model"]["ground_truth"], row["extra_info"]
        returned = function(data_source=row["data_source"], solution_str=said, ground_truth=truth, extra_info=about)
        returned = asyncio.run(returned) if inspect.isawaitable(returned) else returned
        rewards.append(float(returned["score"] if isinstance(returned, dict) else returned))
    return rewards


async def rewarded(config, codec, rows: list[dict[str, Any]], *graders: str) -> list[list[Sample]]:
    """Return the samples of each row's traces, by a run's own way from a parquet file."""
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row | {"traces": SAID} for row in rows]), "rows.parquet")
    data = DataConfig(path="rows.parquet", grader=graders, prompts=len(rows), samples=0, traces=len(SAID))
    config = replace(config, data=data, reward=replace(config.reward, wrong=-0.5, malformed=-1.0))
    loaded, _ = load_rows(config, codec)
    async with open_graders(grader_names(loaded), answers=partial(AnswerExecutor, config)) as opened:
        play = DataPlay(config=config, codec=codec, rows=loaded, graders=opened, order=order_of(loaded))
        played = await play.play(1, None, lambda name: nullcontext())
        cut = completion(codec.encode(SAID[0]), [1], finish="length")
        judged = await play._problem(loaded[0], 0, cut.prompt_ids).judge(cut)
        assert judged.reason != "cut_off", "a function pays for what was cut off by its own rule"
    order = sorted(played.samples, key=lambda each: SAID.index(codec.response_text(each.completion)))
    return [[each for each in order if each.problem_id == row.question.id] for row in loaded]


@pytest.mark.parametrize(("name", "rows"), [
    ("boxed", TEXTS), ("longer", TEXTS), ("thinks_first", TURNS), ("only_sums", TEXTS), ("asks_elsewhere", TEXTS),
    ("named_alone", TEXTS), ("few_columns", TEXTS), ("by_length", VERL), ("of_source", VERL),
    ("judged_elsewhere", VERL),
])  # fmt: skip
async def test_a_reward_is_what_the_function_returns_to_its_own_project(functions, config, codec, name, rows):
    call = as_verl_calls if rows is VERL else as_trl_calls
    by_response = [await asyncio.to_thread(call, getattr(functions, name), rows, said) for said in SAID]
    samples = await rewarded(config, codec, rows, f"{MODULE}:{name}")
    by_row = [list(of_row) for of_row in zip(*by_response, strict=True)]
    assert [[each.reward for each in of_row] for of_row in samples] == by_row
    for each in (each for of_row in samples for each in of_row):
        assert each.accuracy == (None if each.reward is None else float(each.reward >= 1))
        assert each.used == ("trained" if each.reward is not None else "ungraded")
        assert (each.judgement.reason == "no_reward") == (each.reward is None)
    if name == "of_source":
        assert samples[0][0].kind == "any-sums" and samples[0][1].judgement.parts == {"acc": True}


async def test_several_functions_add_up_and_one_that_gives_none_is_left_out(functions, config, codec) -> None:
    graders = f"{MODULE}:boxed", f"{MODULE}:only_sums=0.5", f"{MODULE}:longer=0.01"
    sums, poem = await rewarded(config, codec, TEXTS, *graders)
    longer = [0.01 * len(said) for said in SAID]
    assert [each.reward for each in sums] == pytest.approx([1.5 + longer[0], 0.5 + longer[1], -0.5 + longer[2]])
    assert [each.reward for each in poem] == pytest.approx([1 + longer[0], longer[1], longer[2]])
    assert sums[2].judgement.parts[f"{MODULE}.only_sums"] == -1.0
    assert f"{MODULE}.only_sums" not in poem[0].judgement.parts


@pytest.mark.parametrize(("code", "says"), [
    ("def f(completions, gold, **more): return [1]", r"raised TypeError: f\(\) missing 1 .* 'gold' .*, and --data"),
    ("def f(completions, completion_ids): return [1]", "missing 1 required positional argument: 'completion_ids'"),
    ("async def f(prompts, completions, **kwargs): raise ValueError('x')", "raised ValueError: x for its first row"),
    ("def f(solution_str, **kwargs): return {'score': 1}", "raised KeyError: 'answer' .* and --data.fields"),
])  # fmt: skip
async def test_a_function_that_fails_over_the_first_row_is_named_before_a_run(functions, config, codec, code, says):
    Path("failing_rewards.py").write_text(code)
    sys.modules.pop("failing_rewards", None)
    with pytest.raises(UserError, match=f"The grader failing_rewards:f .*{says}"):
        await rewarded(config, codec, TEXTS, "failing_rewards:f")
