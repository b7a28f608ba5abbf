"""``azr prompts`` shows what a model is asked, as it is asked."""

import pytest

from azr.cli.main import dispatch
from tests import chat_tokenizers
from tests.datasets.test_rows import write

KINDS = ("deduction", "induction")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made, folder = chat_tokenizers.llama(), tmp_path_factory.mktemp("tokenizer")
    return chat_tokenizers.save(made, folder, ["<|end_of_text|>", "<|eot_id|>"])


def test_a_prompt_is_shown_with_its_length_and_its_ends_and_all_of_a_compact_recipe(folder, capsys):
    argv = ["prompts", "azr_llama8b_ppo", "--model.path", str(folder)]
    assert dispatch([*argv, "--kind", "abduction", "--role", "solver"]) == 0
    head, *text, end = capsys.readouterr().out.splitlines()
    tokens = chat_tokenizers.llama().encode("\n".join(text), add_special_tokens=False)
    assert head == f"======== abduction, solver: {len(tokens)} tokens of at most 6144"
    assert text[0].startswith("<|begin_of_text|>A conversation between") and text[-1] == "Assistant: <think>"
    assert end == (
        "======== A response ends with token 257 (<|end_of_text|>) or 260 (<|eot_id|>), or with the text </answer>, "
        "or after 8096 tokens."
    )
    assert dispatch(["prompts", "azr_14m_three_kinds"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("======== ") == 7 and "<|propose|><|induction|>" in shown and "with the text" not in shown


def test_rows_of_a_file_are_shown_as_they_are_asked_with_a_trace_as_it_is_learned(folder, tmp_path, capsys):
    row = {"prompt": "2 + 2?", "grader": "math", "answer": "4", "source": "sums", "traces": ["<think>Two.</think>4"]}
    rows = write(tmp_path / "rows.jsonl", row, {**row, "prompt": "1 + 1?"}, {**row, "source": "more", "traces": None})
    template = ["--model.template", "conversation"]
    assert dispatch(["prompts", "luffy_7b", "--model.path", str(folder), *template, "--data.path", str(rows)]) == 0
    shown = capsys.readouterr().out
    heads = [line.partition(":")[0] for line in shown.splitlines() if line.startswith("======== ")]
    assert heads[:2] == ["======== sums, row 1, graded by math", "======== its first trace"]
    assert heads[2] == "======== more, row 3, graded by math" and len(heads) == 4
    assert "User: 2 + 2?\nAssistant: <think>\n======== its first trace" in shown and "\nTwo.</think>4<|" in shown
    assert "1 + 1?" not in shown and "proposer" not in shown


def test_functions_of_a_corpus_are_shown_as_proposers_see_them(folder, tmp_path, capsys):
    (tmp_path / "code.py").write_text(
        "class A:\n    def b(self, x):\n        return x\n\n\ndef two(x):\n    return x * 2\n"
    )
    argv = ["prompts", "azr_llama8b_ppo", "--model.path", str(folder), "--selfplay.kinds", ",".join(KINDS)]
    assert dispatch([*argv, "--selfplay.corpus", str(tmp_path), "--role", "proposer"]) == 0
    shown = capsys.readouterr().out
    heads = [line.partition(", proposer, who is ")[::2] for line in shown.splitlines() if "corpus:" in line]
    told = [(kind.split()[1], rest.rpartition(":")[0]) for kind, rest in heads]
    passages = [("deduction", "shown corpus:code.py:A.b"), *((kind, "given corpus:code.py:two") for kind in KINDS)]
    assert told == passages
    assert "copy nothing of it:\n```python\ndef b(self, x):" in shown and "def f(x):\n    return x * 2" in shown
