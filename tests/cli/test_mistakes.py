"""What is typed wrongly is told in one sentence, with exit code 2, and nothing is written."""

import json
import shlex
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from azr.cli.main import dispatch
from azr.errors import UserError
from tests import chat_tokenizers
from tests.conftest import byte_tokenizer
from tests.explorer.made_runs import small_run
from tests.mistakes import part, sentences
from tests.tiny_models import save_run, save_tiny, save_weights

NO_CONFIGS = ("{", "[]", "{}", '{"model_type": "nonesuch"}', '{"model_type": "qwen2"}')
OTHER_CONFIGS = {"mixtral": '{"model_type": "mixtral"}', "llama": '{"model_type": "llama", "hidden_size": 8}'}
SENTENCES = sentences("Commands.") | dict(line.split(" | ") for line in part("Commands, and the options or words."))


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, tiny_model_path: Path) -> Iterator[dict[str, object]]:
    """A model that chats, a run with the policies of two steps, one to be explored, rows, and a port that is taken."""
    here = tmp_path_factory.mktemp("mistakes")
    chat = save_tiny(here / "chat", "qwen2", chat_tokenizers.chatml(), max_position_embeddings=8192)
    run, bare = save_run(here, 3, 10), save_run(here / "bare")
    whole = tiny_model_path / "model.safetensors"
    for name in ("weightless", "cut", "other", "thin", "deep", "odd", "larger", "uneven", "shared", "none", "fewer"):
        shutil.copytree(tiny_model_path, here / name)
    (here / "weightless" / whole.name).unlink()
    (here / "cut" / whole.name).write_bytes(whole.read_bytes()[:9999])
    sizes = json.loads((tiny_model_path / "config.json").read_text())
    others = {"other": {"hidden_size": 8}, "thin": {"intermediate_size": 7}, "odd": {"vocab_size": "many"}}
    others |= {"uneven": {"num_attention_heads": 3, "head_dim": None}, "shared": {"num_key_value_heads": 3}}
    others |= {"none": {"num_attention_heads": 0}, "fewer": {"num_key_value_heads": 1}}
    for name, other in {**others, "deep": {"num_hidden_layers": 99, "layer_types": 99 * ["full_attention"]}}.items():
        (here / name / "config.json").write_text(json.dumps(sizes | other))
    larger = AutoTokenizer.from_pretrained(tiny_model_path)
    larger.add_tokens([f"<tool{index}>" for index in range(sizes["vocab_size"])])
    larger.save_pretrained(here / "larger")
    for name, text in [*((str(index), text) for index, text in enumerate(NO_CONFIGS)), *OTHER_CONFIGS.items()]:
        byte_tokenizer().save_pretrained(here / name)
        (here / name / "config.json").write_text(text)
        if name in "0123":
            save_weights(here / name)
    save_tiny(here / "caps", "gemma2", byte_tokenizer())
    save_tiny(here / "convolution", "lfm2", byte_tokenizer())
    for name, family in (("spoiled", "qwen2"), ("mute", "llama")):
        save_tiny(here / name, family, byte_tokenizer())
        (here / name / "tokenizer.json").write_text("{")
    (here / "mute" / "tokenizer.json").unlink()
    (here / "nested.toml").write_text(f"rule = {5000 * '['}")
    (here / "rows.jsonl").write_text('{"prompt": "How many legs has an ant?", "grader": "math", "answer": "6"}\n')
    small_run(here / "small")
    dispatch(["show", str(here / "small")])  # makes its index
    small_run(here / "torn")
    rollouts = here / "torn" / "rollouts" / "step_000002.jsonl.gz"
    rollouts.write_bytes(rollouts.read_bytes()[:40])
    dispatch(["show", str(here / "torn")])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        files = {"chat": chat, "run": run.path, "bare": bare.path, "small": here / "small", "out": here / "out"}
        more = {"model": tiny_model_path, "base": "data/azr_14m_base", "mini": "azr_14m_three_kinds --dry-run"}
        more |= {"long": 5000 * "9", "lines": "a\nb", "nested": 5000 * "["}
        yield {**files, **more, "taken": taken.getsockname()[1], "here": here, "rows": here / "rows.jsonl"}


@pytest.mark.parametrize("typed", SENTENCES)
def test_a_mistake_is_one_sentence_and_nothing_is_written(typed, places, capsys):
    def there() -> list[Path]:
        return sorted([*Path(str(places["here"])).rglob("*"), *Path("orz_ckpt").glob("eval/*")])

    before = there()
    assert dispatch(shlex.split(typed.format(**places))[1:]) == 2
    written = capsys.readouterr()
    (line,) = (line for line in written.err.splitlines() if line and not line.startswith("Loading weights:"))
    assert line.startswith("error: ") and written.err.endswith(f"{line}\n")
    sentence, said = line.removeprefix("error: "), SENTENCES[typed].format(**places)
    if said.startswith("... "):
        assert said[4:] in sentence
    else:
        assert said in (sentence, " ".join(UserError(sentence).options))
    assert not written.out or typed.startswith("azr plan"), "a plan says what it was made for before it fails"
    assert there() == before
