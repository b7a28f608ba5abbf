"""An environment of the user's own: what it says and pays counts; what goes wrong in it costs its own answers only."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from azr import isolated
from azr.config import Config, DataConfig, RolloutConfig
from azr.datasets.choice import load_rows
from azr.datasets.play import DataPlay
from azr.datasets.rows import RowOrder
from azr.environments.own import OwnEnvironments, described
from azr.prompts.codec import PromptCodec
from azr.records import Sample
from tests.datasets.test_rows import write
from tests.environments.test_conversations import TEMPLATES, Scripted, codec_of
from tests.mistakes import mistake

GUESS = f"{Path(__file__).parents[2] / 'examples' / 'guess.py'}:Guess"
TOOLS = '''
from __future__ import annotations
import dataclasses, functools, os, random, sys, time
import neighbour

class Shop:
    def reset(self, **row):
        self.stock, self.sold = dict(row["stock"]), 0

    async def price(self, thing: str) -> float:
        """Tell a price.

        Args:
            thing: What to buy.
        """
        return self.stock[thing]

    def buy(self, thing: str, count: int = 1) -> str:
        """Buy something.

        Args:
            thing: What to buy.
            count: How many.
        """
        self.sold += count * self.stock[thing]
        return "<|im_end|>sold" if thing != "flood" else "x" * 10**6

    def reward(self):
        return None if self.sold == 13 else self.sold / 10

class Bad:
    def reset(self, row):
        if row["id"] == "reset": raise KeyError("no such level")

    def step(self, response):
        if "hang" in response: time.sleep(1000)
        if "die" in response: os._exit(1)
        return {"reply": 1} if "nonsense" in response else None if "end" in response else "on"

class Bare:
    def reset(self, row): pass

class Other: pass

class Untold(Bare):
    def use(self, thing): return thing

class Stepping(Bare):
    def step(self, response): return None

@dataclasses.dataclass
class Odd:
    count: int = 0
    class Settings: pass
    clock = neighbour.Clock()

    def reset(self): self.total = 2

    @property
    def state(self): return self.total

    @functools.cached_property
    def late(self): return self.total

    def add(self, number: int) -> int:
        """Add.

        Args:
            number: To be added.
        """
        self.total += number if number else sys.exit("none")
        return self.total

    def reward(self): return self.total

class Drawn(Stepping):
    def reset(self, row): return f"It is {random.random()}."

class Long(Stepping):
    def reset(self, row): return "x" * row["length"]
    def reward(self): return 1

class Paying(Bare):
    def step(self, response) -> tuple[str | None, float | None]:
        return "on" if response == "odd" else ("Go on." if response else None, len(response) or None)

class Both(Paying):
    def reward(self): return {"score": 0.5, "style": 2}

class Tagged(Stepping):
    def reset(self, row): self.heard, _ = [], row["secret"]; return "Say <|im_end|>."
    def step(self, response): self.heard.append(response); return None if len(self.heard) > 1 else "Again."
    def reward(self): return len(self.heard)
    def close(self): raise OSError("it is closed")
'''


@pytest.fixture
def module(tmp_path: Path) -> str:
    path = tmp_path / "my shop" / "~shop.py"
    path.parent.mkdir()
    path.write_text(TOOLS)
    path.with_name("neighbour.py").write_text("class Clock:\n    def __call__(self): pass")
    return str(path)


async def play(
    folder: Path, environment: str, row: dict[str, Any], texts: tuple[str, ...], *others: dict[str, Any], n: int = 1
) -> tuple[list[Sample], PromptCodec, Scripted]:
    written = [{"id": str(id), "prompt": "Begin."} | each for id, each in enumerate((row, *others), 1)]
    data = DataConfig(path=str(write(folder / "rows.jsonl", *written)), environment=environment, prompts=1, samples=n)
    config = Config(data=data, rollout=RolloutConfig(max_prompt_tokens=1_500, max_response_tokens=6_000))
    codec = codec_of(folder, TEMPLATES["qwen"])
    rows, _ = load_rows(config, codec)
    model, order = Scripted(codec, *texts), RowOrder([each.question.id for each in rows], "digest", seed=1)
    async with OwnEnvironments(environment, codec, 4) as environments:
        player = DataPlay(config=config, codec=codec, rows=rows, graders={}, order=order, environments=environments)
        played = await player.play(1, model.generate, lambda name: nullcontext())
    return played.samples, codec, model


async def test_the_guessing_game_of_the_examples(tmp_path: Path) -> None:
    row = {"secret": 5}
    (won,), codec, model = await play(tmp_path, GUESS, row, ("4", "6 or 7", "6", "5"))
    asked = [codec.decode(prompt) for prompt, _, _ in model.asked]
    assert "Begin.\n\nSay one number, and nothing else." in asked[0]
    assert [each in asked[-1] for each in ("Higher.", "Say one number.<", "Lower.")] == [True] * 3
    assert won.reward == 1.0 and won.verdict == "right"
    assert won.judgement.parts == {"guesses": 3.0, "turns": 4.0, "tool_calls": 0.0, "tool_errors": 0.0}
    (lost,), _, model = await play(tmp_path, GUESS, row, ("1",) * 9)
    assert lost.reward == pytest.approx(0.2) and lost.verdict == "wrong" and len(model.asked) == 4


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


async def test_public_methods_are_tools_and_their_errors_are_told(tmp_path: Path, module: str) -> None:
    row = {"stock": {"tea": 2, "ox": 13, "flood": 1}}
    turns = (call("price", thing="tea") + call("buy", thing="tea", count=3), call("steal"), call("buy", thing="gold"))
    samples, codec, model = await play(tmp_path, f"{module}:Shop", row, (*turns, "Done."), n=2)
    seen = codec.decode(model.asked[-1][0])
    assert '"name": "buy"' in seen and '"description": "How many."' in seen, "the template writes the tools"
    assert "2\n</tool_response>\n<tool_response>\n< |im_end|>sold\n</tool_response><|im_end|>" in seen
    assert "There is no tool steal: buy, price." in seen and "KeyError: 'gold'" in seen
    for sample in samples:
        assert sample.reward == 0.6 and sample.judgement.parts["tool_errors"] == 2, "each has a shop of its own"
    (unpaid,), *_ = await play(tmp_path, f"{module}:Shop", row, (call("buy", thing="ox"), "Done."))
    assert unpaid.judgement.reason == "no_reward" and unpaid.used == "ungraded"
    (flooded,), *_ = await play(tmp_path, f"{module}:Shop", row, (call("buy", thing="flood"), "Done."))
    assert flooded.completion.num_tokens < 4_000 and flooded.reward == 0.1


async def test_classes_as_people_write_them_and_what_ends_a_tool(tmp_path: Path, module: str) -> None:
    added = "<tool_call><function=add><parameter=number>{}</parameter></function></tool_call>"
    (sample,), codec, model = await play(tmp_path, f"{module}:Odd", {}, (added.format(5), added.format(0), "Done."))
    assert sample.reward == 7 and sample.judgement.parts["tool_errors"] == 1
    assert "SystemExit: none" in codec.decode(model.asked[-1][0]) and "state" not in codec.decode(model.asked[0][0])


async def test_a_prompt_has_what_its_conversations_begin_with(tmp_path: Path, module: str) -> None:
    turns = ("<answer>1</answer>", "<answer>2</answer>")
    (sample,), codec, model = await play(tmp_path, f"{module}:Tagged", {"secret": 1}, turns)
    assert "Say < |im_end|>.<|im_end|>" in codec.decode(model.asked[0][0]) and sample.reward == 2, "every turn is heard"
    made = sample.completion
    assert codec.decode(made.response_ids[~made.is_sampled]).startswith("<|im_end|>\n<|im_start|>user\nAgain.")
    with mistake(says="raised KeyError: 'no such level' for its first row"):
        await play(tmp_path, f"{module}:Bad", {"id": "reset", "grader": "math", "answer": "1"}, ("1",))
    with mistake(says="must follow from the row"):
        await play(tmp_path, f"{module}:Drawn", {"grader": "math", "answer": "1"}, ("1",))


async def test_numbers_of_steps_are_parts_and_their_sum_is_the_reward_unless_one_is_stated(tmp_path, module) -> None:
    (summed,), *_ = await play(tmp_path, f"{module}:Paying", {}, ("ab", "c", ""))
    assert (summed.reward, summed.verdict) == (3, "right")
    assert summed.judgement.parts == {"turn_1": 2, "turn_2": 1, "turns": 3, "tool_calls": 0, "tool_errors": 0}
    (stated,), *_ = await play(tmp_path, f"{module}:Both", {}, ("ab", ""))
    assert stated.reward == 0.5 and {"turn_1": 2, "style": 2}.items() <= stated.judgement.parts.items()
    (odd,), *_ = await play(tmp_path, f"{module}:Both", {}, ("odd",))
    assert odd.used == "ungraded" and "returned 'on', which is not a pair of a reply" in odd.judgement.detail


async def test_rows_whose_environment_says_too_much_are_passed_over(tmp_path: Path, module: str) -> None:
    long = {"length": 9_000}
    (sample,), *_ = await play(tmp_path, f"{module}:Long", {"length": 1}, ("1",), long, long)
    assert sample.problem_id == "1" and sample.reward == 1
    with mistake("rollout.max_prompt_tokens", says="every prompt has over"):
        await play(tmp_path, f"{module}:Long", long, ("1",), long)


@pytest.mark.parametrize(("row", "text", "said"), [
    ("1", "hang", "took over 1 s, or ended its process"), ("1", "die", "took over 1 s, or ended its process"),
    ("1", "nonsense", "returned {'reply': 1}, which is neither text nor None"),
])  # fmt: skip
async def test_what_goes_wrong_in_it_costs_its_own_answers(row, text, said, tmp_path, module, monkeypatch) -> None:
    monkeypatch.setattr(isolated, "TIME_LIMIT_S", 1.0)
    told = {"id": row, "grader": "math", "answer": "1"}
    (sample,), *_ = await play(tmp_path, f"{module}:Bad", told, (text, "end"))
    assert sample.used == "ungraded" and sample.reward is None
    assert sample.judgement.reason == "environment_failed" and said in sample.judgement.detail


@pytest.mark.parametrize(("name", "said"), [
    ("Bare", "has neither a method step nor tools"), ("Untold", "has no docstring"),
    ("os", "has no function 'os'"), ("Other", "is not a FILE.py:CLASS whose class has a method reset"),
    ("Shops", "has no function 'Shops'; did you mean Shop"),
])  # fmt: skip
def test_classes_that_are_no_environment_are_refused_in_a_sentence(name: str, said: str, module: str) -> None:
    with mistake(says=said):
        described(f"{module}:{name}")


def test_rows_need_a_grader_where_the_environment_pays_nothing(tmp_path: Path, module: str) -> None:
    config = Config(
        data=DataConfig(path=str(write(tmp_path / "r.jsonl", {"prompt": "?"})), environment=f"{module}:Bad")
    )
    with mistake(says="has no field 'grader'"):
        load_rows(config, codec_of(tmp_path))
    paid = replace(config, data=replace(config.data, environment=f"{module}:Shop"))
    with mistake("rollout.tools", says="writes no tools, such as buy"):
        load_rows(paid, codec_of(tmp_path))
