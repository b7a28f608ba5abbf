"""A whole evaluation with scripted answers: what it leaves, what it continues from, and whom it makes way for."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from azr.answering import Generate
from azr.config import Config
from azr.errors import UserError
from azr.evaluation.answer_file import read_answers
from azr.evaluation.asking import Sampling
from azr.evaluation.standalone import Evaluation, check_out, run_evaluation
from azr.evaluation.suites import load_suites
from azr.records import Completion
from azr.runs.asked_model import AskedModel, open_model
from tests import chat_tokenizers
from tests.runs.factory import completion
from tests.tiny_models import save_tiny

SUITE = """
name = "mine"
file = "mine.jsonl"
grader = "choice"
prompt = "{question}{options}"
"""
ROWS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> AskedModel:
    folder = save_tiny(tmp_path_factory.mktemp("model") / "tiny", "qwen2", chat_tokenizers.chatml())
    return open_model(str(folder), template="tokenizer")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [{"id": i, "question": f"Which is {i}? ", "options": ["this", "that"], "answer": "A"} for i in range(ROWS)]
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "mine.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mine.toml").write_text(SUITE)
    return folder


def evaluation(model: AskedModel, data: Path, ks: tuple[int, ...] = (2,)) -> Evaluation:
    suites, sampling = load_suites(["mine"], data), Sampling(samples=2, temperature=1.0, max_tokens=16, seed=1)
    how = {"model": model, "codec": model.codec, "config": Config()}
    return Evaluation(suites=suites, sampling=sampling, ks=ks, **how)


class Server:
    """Answers "A" until it has been asked ``fails_after`` times."""

    def __init__(self, model: AskedModel, fails_after: int = 10**9) -> None:
        self._model, self._left = model, fails_after
        self.asked = 0

    async def generate(self, prompt_ids: Sequence[int], *, n: int, **options: object) -> list[Completion]:
        self.asked += 1
        if self.asked > self._left:
            raise RuntimeError("the engine is gone")
        return [completion(self._model.codec.encode("ANSWER: A"), prompt_ids)] * n

    @asynccontextmanager
    async def __call__(self, evaluation: Evaluation) -> AsyncIterator[Generate]:
        yield self.generate


def keys(out: Path) -> list[tuple[str, int | None]]:
    return [(answer.problem_id, answer.index) for answer in read_answers(out / "answers.jsonl.gz")[1]]


async def test_what_an_engine_answered_before_it_failed_is_not_asked_again(model, data, tmp_path):
    out = tmp_path / "out"
    first, second = Server(model, fails_after=5), Server(model)
    with pytest.raises(RuntimeError, match="the engine is gone"):
        await run_evaluation(evaluation(model, data), out, first)
    assert not (out / "results.json").exists()
    kept = len(keys(out))
    with pytest.raises(UserError, match="holds an evaluation already: continue it by --resume"):
        check_out(out, resume=False)
    (row,) = await run_evaluation(evaluation(model, data), out, second)
    assert second.asked == 2 * (ROWS - kept // 3) and len(set(keys(out))) == len(keys(out)) == 3 * ROWS
    assert row.estimates["greedy"].value == row.estimates["pass@2"].value == 1 and row.questions == ROWS
    assert json.loads((out / "results.json").read_text())["answered_before"] == kept // 3


async def test_another_k_changes_the_results_and_asks_nothing(model, data, tmp_path):
    out = tmp_path / "out"
    await run_evaluation(evaluation(model, data), out, Server(model))
    before = json.loads((out / "results.json").read_text())
    again = Server(model)
    await run_evaluation(evaluation(model, data, ks=(1, 2)), out, again)
    after = json.loads((out / "results.json").read_text())
    assert again.asked == 0 and after["seconds"] == before["seconds"]
    assert set(after["rows"][0]["estimates"]) == {"greedy", "mean@2", "pass@1", "pass@2"}
    assert "pass@1" in (out / "table.md").read_text()


async def test_what_another_evaluation_answered_meanwhile_is_not_answered_twice(model, data, tmp_path):
    out = tmp_path / "out"
    late = Server(model)

    @asynccontextmanager
    async def slow(asked: Evaluation) -> AsyncIterator[Generate]:
        await run_evaluation(asked, out, Server(model))
        yield late.generate

    await run_evaluation(evaluation(model, data), out, slow)
    assert late.asked == 0 and len(keys(out)) == 3 * ROWS


async def test_questions_in_other_words_are_not_mixed_in(model, data, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(RuntimeError, match="the engine is gone"):
        await run_evaluation(evaluation(model, data), out, Server(model, fails_after=5))
    (data / "mine.toml").write_text(SUITE.replace("{question}", "Choose well. {question}"))
    with pytest.raises(UserError, match="an evaluation with another suites"):
        await run_evaluation(evaluation(model, data), out, Server(model))
